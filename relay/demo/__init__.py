"""`outbox demo`: the real thing on one machine, with a kill -9 for the leading relay and one for a worker.

The shop itself is ordinary application code in consumers/demo; it is started by name, as a process, so this room still
imports nothing of that one.
"""

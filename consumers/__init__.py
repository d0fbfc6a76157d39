"""Run a handler once per message."""

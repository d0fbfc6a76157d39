"""The wake-up flag: 2 = asleep, writers notify; 1 = awake, they are silent. See relay/wakeup.py."""

from typing import LiteralString

WAKEUP: dict[str, LiteralString] = {
    "listen": "LISTEN outbox",
    # pg_current_xact_id() in the same transaction: the snapshot that is taken next then lies behind every writer that
    # still read "awake". An unfenced flag of 2 costs notifications, nothing else.
    "asleep": "SELECT setval(f.tableoid::regclass, 2), pg_current_xact_id() FROM {schema}.outbox_wake f",
    # Fenced: a zombie that says "awake" would silence the writers of the relay that leads.
    "awake": """\
SELECT setval(f.tableoid::regclass, 1) FROM {schema}.outbox_wake f, {schema}.outbox_leader p WHERE {fence}""",
    "snapshot": "SELECT pg_current_snapshot()::text",
    # Somebody else may have written the flag: a relay that was replaced, a restore.
    "reassert": """\
SELECT setval(f.tableoid::regclass, 2) FROM {schema}.outbox_wake f WHERE f.last_value <> 2""",
}

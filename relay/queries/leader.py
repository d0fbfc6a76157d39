"""Who leads, and which relays are there."""

from typing import LiteralString

LEADER: dict[str, LiteralString] = {
    # Which cluster, which schema revision, is it writable: asked on every new connection, before anything else.
    "identify": """\
SELECT p.system_id = c.system_identifier, {schema}.outbox_revision(), pg_is_in_recovery()
FROM {schema}.outbox_leader p, pg_control_system() c""",
    # Free, ours, expired, or so far ahead that the clock must have jumped back: then it is ours to take.
    "acquire": """\
UPDATE {schema}.outbox_leader p SET epoch = p.epoch + 1, holder = %(holder)s, holds_lock = false,
    expires_at = clock_timestamp() + %(ttl)s
WHERE p.holder IS NULL OR p.holder = %(holder)s OR p.expires_at <= clock_timestamp()
   OR p.expires_at > clock_timestamp() + 2 * %(ttl)s
RETURNING p.epoch""",
    "renew": """\
UPDATE {schema}.outbox_leader p SET expires_at = clock_timestamp() + %(ttl)s WHERE {fence} RETURNING p.epoch""",
    "release": """\
UPDATE {schema}.outbox_leader p SET holder = NULL, holds_lock = false, expires_at = '-infinity' WHERE {fence}""",
    "seen": """\
INSERT INTO {schema}.outbox_relay AS r (holder, name, version, broker_ok_at, last_error)
VALUES (%(holder)s, %(name)s, %(version)s, CASE WHEN %(broker_ok)s THEN clock_timestamp() END, %(last_error)s)
ON CONFLICT (holder) DO UPDATE SET seen_at = clock_timestamp(), last_error = excluded.last_error,
    broker_ok_at = coalesce(excluded.broker_ok_at, r.broker_ok_at)""",
    "gone": """\
DELETE FROM {schema}.outbox_relay WHERE holder = %(holder)s OR seen_at < clock_timestamp() - interval '1 day'""",
}

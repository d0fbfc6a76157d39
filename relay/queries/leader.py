"""Who leads, and which relays are there."""

from typing import LiteralString

from relay.queries.render import DURABLE

# The lock of one epoch of one outbox. The table's own number keeps two outboxes of a database apart whatever they are
# called, and the epoch keeps a frozen old leader, whose session still has its lock, out of the new one's way.
_LOCK: LiteralString = "hashint8extended(%(epoch)s, p.tableoid::bigint)"
_CURRENT_LOCK: LiteralString = "hashint8extended(p.epoch, p.tableoid::bigint)"

# Free, ours, expired, or so far ahead that the clock must have jumped back: then it is ours to take.
_FREE: LiteralString = """\
(p.holder IS NULL OR p.holder = %(holder)s OR p.expires_at <= clock_timestamp()
    OR p.expires_at > clock_timestamp() + 2 * %(ttl)s)"""

LEADER: dict[str, LiteralString] = {
    # Which cluster, which schema revision, is it writable: asked on every new connection, before anything else.
    # Ids of transactions ahead of the cluster's own, or a log ahead of its own sequence, are another cluster's too.
    "identify": """\
SELECT CASE WHEN p.system_id <> c.system_identifier THEN 'its system identifier differs'
        WHEN greatest(pg_snapshot_xmax(p.prev), pg_snapshot_xmax(coalesce(p.next, p.prev)))
            > pg_snapshot_xmax(pg_current_snapshot()) THEN 'its transaction ids are behind the stored position'
        WHEN p.high_seq > s.last_value THEN 'its sequence is behind the stored position' END,
    {schema}.outbox_revision(),
    pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean, p.epoch
FROM {schema}.outbox_leader p, pg_control_system() c, {schema}.outbox_message_seq s""",
    # A standby's poll: reads only. The lock is tried and given back in one statement, so it is never left held; and
    # only tried (a wait for it would pin the vacuum horizon), and only if the row says that a living holder has it.
    "look": f"""\
SELECT p.epoch, p.expires_at::text, {_FREE},
    CASE WHEN %(probe)s AND p.holds_lock AND NOT {_FREE} THEN
        CASE WHEN pg_try_advisory_lock({_CURRENT_LOCK}) THEN pg_advisory_unlock({_CURRENT_LOCK}) ELSE false END
    ELSE false END
FROM {{schema}}.outbox_leader p""",
    # The epoch must be the one that was looked at, because the lock that was taken before is the next one's. A lease
    # that still runs is taken only from a holder that was suspected, and has not renewed since.
    "acquire": f"""\
UPDATE {{schema}}.outbox_leader p SET epoch = p.epoch + 1, holder = %(holder)s, holds_lock = %(lock)s,
    expires_at = clock_timestamp() + %(ttl)s
FROM {DURABLE}
WHERE p.epoch = %(seen)s AND ({_FREE} OR (p.holds_lock AND p.expires_at = %(dead)s::timestamptz))
RETURNING p.epoch""",
    # Says anew each time whether this session has the lock: a lease without it must never look like a dead holder's.
    "renew": """\
UPDATE {schema}.outbox_leader p SET expires_at = clock_timestamp() + %(ttl)s, holds_lock = %(lock)s
WHERE {fence} RETURNING p.epoch""",
    # Tells the standbys in the same commit: they need not wait for their next look.
    "release": """\
WITH released AS (
    UPDATE {schema}.outbox_leader p SET holder = NULL, holds_lock = false, expires_at = '-infinity'
    WHERE {fence} RETURNING p.epoch)
SELECT pg_notify('outbox_lease', '') FROM released""",
    "lock": f"SELECT pg_try_advisory_lock({_LOCK}) FROM {{schema}}.outbox_leader p",
    "unlock": f"SELECT pg_advisory_unlock({_LOCK}) FROM {{schema}}.outbox_leader p",
    # Another relay that is there, and has reached the broker since we could not.
    "better_peer": """\
SELECT EXISTS (SELECT FROM {schema}.outbox_relay r WHERE r.holder <> %(holder)s
    AND r.seen_at > clock_timestamp() - %(recent)s AND r.broker_ok_at > clock_timestamp() - %(recent)s)""",
    "seen": """\
INSERT INTO {schema}.outbox_relay AS r (holder, name, version, broker_ok_at, last_error)
VALUES (%(holder)s, %(name)s, %(version)s, CASE WHEN %(broker_ok)s THEN clock_timestamp() END, %(last_error)s)
ON CONFLICT (holder) DO UPDATE SET seen_at = clock_timestamp(), last_error = excluded.last_error,
    broker_ok_at = coalesce(excluded.broker_ok_at, r.broker_ok_at)""",
    "gone": """\
DELETE FROM {schema}.outbox_relay WHERE holder = %(holder)s OR seen_at < clock_timestamp() - interval '1 day'""",
}

# One channel for all outboxes of a database: a needless look costs nothing.
LISTEN: LiteralString = "LISTEN outbox_lease"

"""All SQL of the relay, each statement named, with a line saying why it has that shape.

Rules that hold for all of them: every write is one autocommit statement that hangs on the leader row
(`FENCE`: epoch and holder), so a relay that lost its lease changes nothing; the row is found by its remembered ctid
first, because under somebody's open snapshot the primary key walks over every dead version; the database clock
decides; transaction ids and snapshots travel as text made by PostgreSQL itself, since 'abc'::xid8 is silently 0.
"""

from dataclasses import dataclass, fields
from typing import LiteralString

from psycopg import sql

FENCE: LiteralString = "p.epoch = %(epoch)s AND p.holder = %(holder)s"

# Rows of the log between snapshots {prev} and {next}: fresh ones by range, late committers one by one.
# A range from prev.xmin instead would read everything written while the oldest transaction was open.
_ROWS_BETWEEN = """\
(EXISTS (SELECT FROM {schema}.outbox_message m WHERE NOT m.held AND m.seq > p.base_seq
    AND m.xid >= pg_snapshot_xmax({prev}) AND m.xid < pg_snapshot_xmax({next})
    AND pg_visible_in_snapshot(m.xid, {next}))
 OR EXISTS (SELECT FROM pg_snapshot_xip({prev}) x JOIN {schema}.outbox_message m
    ON m.xid = x AND NOT m.held AND m.seq > p.base_seq WHERE pg_visible_in_snapshot(x, {next})))"""

# Counts no further than one page: whether a plan is needed is all we want to know.
_COUNT_BETWEEN = """\
(SELECT count(*) FROM (
    (SELECT FROM {schema}.outbox_message m WHERE NOT m.held AND m.seq > p.last_seq
        AND m.xid >= pg_snapshot_xmax(p.prev) AND m.xid < pg_snapshot_xmax(p.next)
        AND pg_visible_in_snapshot(m.xid, p.next)
     LIMIT %(page)s + 1)
    UNION ALL
    (SELECT FROM pg_snapshot_xip(p.prev) x JOIN {schema}.outbox_message m
        ON m.xid = x AND NOT m.held AND m.seq > p.last_seq WHERE pg_visible_in_snapshot(x, p.next) LIMIT %(page)s + 1)
) counted)"""

_POSITION = (
    "p.ctid::text, p.window_no, p.prev::text, p.next::text, p.last_seq, "
    "CASE WHEN p.next IS NULL THEN 0 ELSE " + _COUNT_BETWEEN + " END, clock_timestamp()"
)

# Commits asynchronously without a second round trip: the setting is local to this statement's transaction.
_ASYNC = "(SELECT set_config('synchronous_commit', 'off', true)) AS async_commit"

_LATE = """\
ARRAY(SELECT x FROM pg_snapshot_xip(%(prev)s::pg_snapshot) x WHERE pg_visible_in_snapshot(x, %(next)s::pg_snapshot))"""

_COLUMNS = (
    "m.id::text, m.seq, m.task, m.queue, m.priority, m.args::text, m.kwargs::text, m.headers::text,"
    " encode(m.body_hash, 'hex'), m.ordering_key, m.key_prev::text, m.created_at, m.expires_at"
)

STATEMENTS: dict[str, LiteralString] = {
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
    # The position as the term begins: a window left open by the last leader is resumed.
    "position": f"SELECT {_POSITION} FROM {{schema}}.outbox_leader p WHERE {{fence}}",
    # Durable before the first publish of the window; without new rows it writes nothing, so it is the poll as well.
    # high_seq bounds what was ever published, for a later re-base.
    "open": f"""\
UPDATE {{schema}}.outbox_leader p SET next = pg_current_snapshot(), last_seq = p.base_seq, window_no = p.window_no + 1,
    high_seq = (SELECT last_value FROM {{schema}}.outbox_message_seq)
WHERE {{at}} {{fence}} AND p.next IS NULL
  AND {_ROWS_BETWEEN.replace("{prev}", "p.prev").replace("{next}", "pg_current_snapshot()")}
RETURNING {_POSITION}""",
    # Close and open in one commit: a busy relay pays one durable commit a window instead of two.
    "turn": f"""\
UPDATE {{schema}}.outbox_leader p SET prev = p.next, next = pg_current_snapshot(), last_seq = p.base_seq,
    window_no = p.window_no + 1, high_seq = (SELECT last_value FROM {{schema}}.outbox_message_seq)
WHERE {{at}} {{fence}} AND p.window_no = %(window_no)s AND p.next IS NOT NULL
  AND {_ROWS_BETWEEN.replace("{prev}", "p.next").replace("{next}", "pg_current_snapshot()")}
RETURNING {_POSITION}""",
    "close": f"""\
UPDATE {{schema}}.outbox_leader p SET prev = p.next, next = NULL FROM {_ASYNC}
WHERE {{at}} {{fence}} AND p.window_no = %(window_no)s AND p.next IS NOT NULL
RETURNING p.ctid::text, clock_timestamp()""",
    # Only ever after the broker confirmed, and to the page's bound, not to the last row that was seen.
    "advance": f"""\
UPDATE {{schema}}.outbox_leader p SET last_seq = %(last_seq)s FROM {_ASYNC}
WHERE {{at}} {{fence}} AND p.window_no = %(window_no)s AND p.next IS NOT NULL AND p.last_seq <= %(last_seq)s
RETURNING p.ctid::text, clock_timestamp()""",
    # One index-only pass over a large window: each page's highest seq and range of fresh transaction ids.
    "plan": f"""\
SELECT max(seq), (min(xid) FILTER (WHERE NOT late))::text, (max(xid) FILTER (WHERE NOT late))::text
FROM (SELECT xid, seq, late, (row_number() OVER (ORDER BY seq) - 1) / %(page)s AS page FROM (
    SELECT m.xid, m.seq, false AS late FROM {{schema}}.outbox_message m WHERE NOT m.held AND m.seq > %(last_seq)s
        AND m.xid >= pg_snapshot_xmax(%(prev)s::pg_snapshot) AND m.xid < pg_snapshot_xmax(%(next)s::pg_snapshot)
        AND pg_visible_in_snapshot(m.xid, %(next)s::pg_snapshot)
    UNION ALL
    SELECT m.xid, m.seq, true FROM {{schema}}.outbox_message m WHERE NOT m.held AND m.seq > %(last_seq)s
        AND m.xid = ANY({_LATE})) rows) numbered
GROUP BY page ORDER BY page""",
    # Both branches on the one log index; late and fresh rows merge by seq, neither group may go first.
    "page": f"""\
SELECT {_COLUMNS} FROM {{schema}}.outbox_message m WHERE NOT m.held
    AND m.xid >= %(first_xid)s::xid8 AND m.xid <= %(last_xid)s::xid8 AND m.seq > %(low)s AND m.seq <= %(high)s
    AND m.xid >= pg_snapshot_xmax(%(prev)s::pg_snapshot) AND m.xid < pg_snapshot_xmax(%(next)s::pg_snapshot)
    AND pg_visible_in_snapshot(m.xid, %(next)s::pg_snapshot)
UNION ALL
SELECT {_COLUMNS} FROM {{schema}}.outbox_message m WHERE NOT m.held
    AND m.xid = ANY({_LATE}) AND m.seq > %(low)s AND m.seq <= %(high)s
ORDER BY 2""",
    # What the consumers asked for becomes a plan. The lock on the leader row is the fence: whoever takes the lease
    # must update that row, and waits until this statement has committed.
    "collect": """\
WITH fence AS MATERIALIZED (SELECT FROM {schema}.outbox_leader p WHERE {fence} FOR NO KEY UPDATE),
taken AS (
    DELETE FROM {schema}.inbox_retry r WHERE EXISTS (SELECT FROM fence) AND r.ctid = ANY (ARRAY(
        SELECT d.ctid FROM {schema}.inbox_retry d WHERE d.due_at <= (SELECT clock_timestamp())
            AND d.kind IN ('failure', 'check', 'early') ORDER BY d.due_at LIMIT 1000))
    RETURNING r.message_id, r.attempt)
INSERT INTO {schema}.outbox_due AS d (message_id, due_at, attempt, publication, reason)
SELECT message_id, clock_timestamp(), max(attempt), 1, 'retry' FROM taken GROUP BY message_id
ON CONFLICT (message_id) DO UPDATE
    SET due_at = least(d.due_at, excluded.due_at), attempt = greatest(d.attempt, excluded.attempt)""",
    # (SELECT clock_timestamp()): a volatile call is no index condition, its value once read is.
    # A plan whose message has a receipt needs no publication, only forgetting: asked here, last before publishing.
    "due": f"""\
SELECT {_COLUMNS}, d.publication, d.attempt, c.task IS NOT NULL,
    EXISTS (SELECT FROM {{schema}}.inbox_receipt r WHERE r.message_id = m.id AND r.consumer = m.task)
FROM {{schema}}.outbox_due d JOIN {{schema}}.outbox_message m ON m.id = d.message_id
    LEFT JOIN {{schema}}.inbox_consumer c ON c.task = m.task
WHERE d.due_at <= (SELECT clock_timestamp()) ORDER BY d.due_at LIMIT %(page)s""",
    # A plan is kept until the receipt exists, each time twice as far ahead: published is not delivered.
    "settle": """\
WITH fence AS MATERIALIZED (SELECT FROM {schema}.outbox_leader p WHERE {fence} FOR NO KEY UPDATE),
forgotten AS (
    DELETE FROM {schema}.outbox_due d WHERE EXISTS (SELECT FROM fence) AND d.message_id = ANY(%(finished)s::uuid[])
    RETURNING 1),
kept AS (UPDATE {schema}.outbox_due d SET publication = d.publication + 1,
        due_at = clock_timestamp() + least(c.receipt_timeout * 2 ^ least(d.publication, 10), interval '1 hour')
    FROM {schema}.outbox_message m JOIN {schema}.inbox_consumer c ON c.task = m.task
    WHERE EXISTS (SELECT FROM fence) AND d.message_id = m.id AND d.message_id = ANY(%(published)s::uuid[]) RETURNING 1)
SELECT count(*) FROM fence""",
    # A stretch of the log that is with the broker, and when: what the sweep works off, also under the next leader.
    "note": """\
WITH fence AS MATERIALIZED (SELECT p.* FROM {schema}.outbox_leader p WHERE {fence} FOR NO KEY UPDATE)
INSERT INTO {schema}.outbox_window (window_no, from_snapshot, to_snapshot, last_seq, epoch, relay)
SELECT f.window_no - (f.next IS NOT NULL)::int,
    coalesce((SELECT w.to_snapshot FROM {schema}.outbox_window w ORDER BY w.window_no DESC LIMIT 1), f.reconciled),
    f.prev, f.last_seq, f.epoch, %(relay)s
FROM fence f ON CONFLICT (window_no) DO NOTHING""",
    # The newest stretch that is older than the shortest receipt timeout. No consumer: nothing is owed a receipt.
    "ripe": """\
SELECT w.window_no, w.to_snapshot::text, (SELECT clock_timestamp()) - w.closed_at
FROM {schema}.outbox_window w
WHERE w.closed_at <= (SELECT clock_timestamp() - min(c.receipt_timeout) FROM {schema}.inbox_consumer c)
ORDER BY w.window_no DESC LIMIT 1""",
    # Everything between the reconciled snapshot and this older position, once: what has no receipt is planned.
    "sweep": """\
WITH fence AS MATERIALIZED (SELECT p.reconciled FROM {schema}.outbox_leader p WHERE {fence} FOR NO KEY UPDATE),
published AS (
    SELECT m.id, m.task FROM fence f, {schema}.outbox_message m WHERE NOT m.held
        AND m.xid >= pg_snapshot_xmax(f.reconciled) AND m.xid < pg_snapshot_xmax(%(upto)s::pg_snapshot)
        AND pg_visible_in_snapshot(m.xid, %(upto)s::pg_snapshot)
    UNION ALL
    SELECT m.id, m.task FROM {schema}.outbox_message m WHERE NOT m.held AND m.xid = ANY (ARRAY(
        SELECT x FROM fence f, pg_snapshot_xip(f.reconciled) x
        WHERE pg_visible_in_snapshot(x, %(upto)s::pg_snapshot)))),
planned AS (
    INSERT INTO {schema}.outbox_due (message_id, due_at, publication, reason)
    SELECT m.id, clock_timestamp() + greatest(c.receipt_timeout - %(age)s, interval '0'), 1, 'redelivery'
    FROM published m JOIN {schema}.inbox_consumer c ON c.task = m.task
    WHERE NOT EXISTS (SELECT FROM {schema}.inbox_receipt r WHERE r.message_id = m.id AND r.consumer = m.task)
    ON CONFLICT (message_id) DO NOTHING RETURNING 1),
swept AS (
    DELETE FROM {schema}.outbox_window w WHERE EXISTS (SELECT FROM fence) AND w.window_no <= %(window_no)s RETURNING 1)
UPDATE {schema}.outbox_leader p SET reconciled = %(upto)s::pg_snapshot FROM fence WHERE {fence}
RETURNING (SELECT count(*) FROM planned)""",
    "seen": """\
INSERT INTO {schema}.outbox_relay AS r (holder, name, version, broker_ok_at, last_error)
VALUES (%(holder)s, %(name)s, %(version)s, CASE WHEN %(broker_ok)s THEN clock_timestamp() END, %(last_error)s)
ON CONFLICT (holder) DO UPDATE SET seen_at = clock_timestamp(), last_error = excluded.last_error,
    broker_ok_at = coalesce(excluded.broker_ok_at, r.broker_ok_at)""",
    "gone": """\
DELETE FROM {schema}.outbox_relay WHERE holder = %(holder)s OR seen_at < clock_timestamp() - interval '1 day'""",
}

# Published means visible in prev, or visible in next up to last_seq. Bounded: status must be cheap on a huge backlog.
_WAITING = """m.seq > p.base_seq
    AND NOT (p.next IS NOT NULL AND m.seq <= p.last_seq AND pg_visible_in_snapshot(m.xid, p.next))"""
_BACKLOG = f"""\
SELECT count(*), extract(epoch FROM clock_timestamp() - min(created_at))::float8
FROM {{schema}}.outbox_leader p CROSS JOIN LATERAL (
    (SELECT m.created_at FROM {{schema}}.outbox_message m
     WHERE NOT m.held AND m.xid >= pg_snapshot_xmax(p.prev) AND {_WAITING} ORDER BY m.xid, m.seq LIMIT %(most)s)
    UNION ALL
    (SELECT m.created_at FROM {{schema}}.outbox_message m
     WHERE NOT m.held AND m.xid = ANY (ARRAY(SELECT pg_snapshot_xip(p.prev))) AND {_WAITING} LIMIT %(most)s)
    LIMIT %(most)s) waiting"""

STATUS_STATEMENTS: dict[str, LiteralString] = {
    "leader": """\
SELECT p.epoch, p.holder::text, coalesce(r.name, 'unknown'), p.expires_at > clock_timestamp(), p.window_no
FROM {schema}.outbox_leader p LEFT JOIN {schema}.outbox_relay r USING (holder)""",
    "relays": """\
SELECT holder::text, name, version, extract(epoch FROM clock_timestamp() - seen_at)::float8,
    extract(epoch FROM clock_timestamp() - broker_ok_at)::float8, last_error
FROM {schema}.outbox_relay ORDER BY started_at""",
    "backlog": _BACKLOG,
    "due": """\
SELECT reason, count(*), count(*) FILTER (WHERE due_at <= clock_timestamp())
FROM {schema}.outbox_due GROUP BY reason ORDER BY reason""",
    # The BRIN index on applied_at makes this a look at the newest blocks only.
    "receipts": """\
SELECT status, count(*) FROM {schema}.inbox_receipt
WHERE applied_at > (SELECT clock_timestamp()) - interval '1 minute' GROUP BY status ORDER BY status""",
    "consumers": """\
SELECT task, extract(epoch FROM clock_timestamp() - last_seen)::float8 FROM {schema}.inbox_consumer ORDER BY task""",
}


@dataclass(frozen=True, slots=True)
class Queries:
    """The statements for one schema, rendered once."""

    identify: bytes
    acquire: bytes
    renew: bytes
    release: bytes
    position: bytes
    open: bytes
    turn: bytes
    close: bytes
    advance: bytes
    open_at: bytes
    turn_at: bytes
    close_at: bytes
    advance_at: bytes
    plan: bytes
    page: bytes
    collect: bytes
    due: bytes
    settle: bytes
    note: bytes
    ripe: bytes
    sweep: bytes
    seen: bytes
    gone: bytes


@dataclass(frozen=True, slots=True)
class StatusQueries:
    """What `outbox status` asks."""

    leader: bytes
    relays: bytes
    backlog: bytes
    due: bytes
    receipts: bytes
    consumers: bytes


def status_queries_for(schema: str) -> StatusQueries:
    return StatusQueries(**{name: _rendered(text, schema) for name, text in STATUS_STATEMENTS.items()})


def queries_for(schema: str) -> Queries:
    def render(name: str) -> bytes:
        at: LiteralString = "p.ctid = %(ctid)s::tid AND" if name.endswith("_at") else ""
        text = STATEMENTS[name.removesuffix("_at")].replace("{fence}", FENCE).replace("{at}", at)
        return _rendered(text, schema)

    return Queries(**{field.name: render(field.name) for field in fields(Queries)})


def _rendered(text: LiteralString, schema: str) -> bytes:
    # A percent sign in the name would be read as a parameter: doubled here, so every statement is run with parameters.
    return sql.SQL(text).format(schema=sql.Identifier(schema.replace("%", "%%"))).as_bytes(None)

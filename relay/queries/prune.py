"""Retention: what may be forgotten, a bounded stretch at a time.

One statement takes a message with everything that belongs to it, in one commit. It needs no row lock on the leader:
what it may delete is decided in the snapshot in which it leads, and stays true whoever leads next. So the leader's own
writes never wait for it. All times are the database's.
"""

from dataclasses import dataclass, fields
from typing import LiteralString

from relay.queries.render import rendered

# The newest of the oldest notes that has been behind the position for long enough: everything visible in its snapshot
# was with the broker that long ago. By place in the log, not by a time in the row: a transaction may commit days after
# its INSERT, and a window may be resumed days after it was opened.
_LEADER = """\
leader AS MATERIALIZED (SELECT p.base_seq, p.reconciled FROM {schema}.outbox_leader p WHERE {fence}),
passed AS MATERIALIZED (
    SELECT w.window_no, w.to_snapshot
    FROM (SELECT * FROM {schema}.outbox_window ORDER BY window_no LIMIT %(batch)s) w
    WHERE w.closed_at <= (SELECT clock_timestamp()) - %(keep)s::interval AND EXISTS (SELECT FROM leader)
    ORDER BY w.window_no DESC LIMIT 1)"""

_COLUMNS = "m.id, m.xid, m.seq, m.task, m.key_prev, m.unique_key, m.created_at"

# Finished for long enough, or owed to nobody. Dead is kept: an operator may take it back. A consumer with its receipts
# in another database: nothing here can tell whether it has finished, so it is kept.
_FINISHED = """\
NOT EXISTS (SELECT FROM {schema}.outbox_due d WHERE d.message_id = c.id)
    AND NOT EXISTS (SELECT FROM {schema}.inbox_receipt r WHERE r.message_id = c.id
        AND (r.status = 'dead' OR r.applied_at > (SELECT clock_timestamp()) - %(keep)s::interval))
    AND (NOT EXISTS (SELECT FROM {schema}.inbox_consumer k WHERE k.task = c.task)
        OR {swept} AND EXISTS (SELECT FROM {schema}.inbox_consumer k WHERE k.task = c.task AND k.inbox IS NULL)
            AND EXISTS (SELECT FROM {schema}.inbox_receipt r WHERE r.message_id = c.id AND r.consumer = c.task))
    AND {in_turn}"""

# A cancelled, expired or discarded message of a line stays while an earlier one is unfinished: its successors find
# that one through it. An applied one had nothing unfinished before it. Looks back a bounded way; the rest is for the
# next pass, when the beginning of the line is gone.
_IN_TURN = """\
(c.key_prev IS NULL
    OR EXISTS (SELECT FROM {schema}.inbox_receipt r
        WHERE r.message_id = c.id AND r.consumer = c.task AND r.status = 'applied')
    OR NOT EXISTS (
        WITH RECURSIVE before (key_prev, status, depth) AS (
            SELECT o.key_prev, r.status, 1 FROM {schema}.outbox_message o
                LEFT JOIN {schema}.inbox_receipt r ON r.message_id = o.id AND r.consumer = o.task
            WHERE o.id = c.key_prev
            UNION ALL
            SELECT o.key_prev, r.status, b.depth + 1 FROM before b JOIN {schema}.outbox_message o ON o.id = b.key_prev
                LEFT JOIN {schema}.inbox_receipt r ON r.message_id = o.id AND r.consumer = o.task
            WHERE b.status IN ('cancelled', 'expired', 'discarded') AND b.depth < 64)
        SELECT FROM before b WHERE b.status IS NULL OR b.status = 'dead'
            OR b.depth = 64 AND b.status <> 'applied' AND b.key_prev IS NOT NULL)
    OR NOT EXISTS (SELECT FROM {schema}.inbox_consumer k WHERE k.task = c.task))"""

# Keys by the message that holds them now: whoever took one over since has put his own message there, and the lock
# looks again. A key that a writer has locked stays for the walk over the keys. Receipts last in time, same in commit.
_FORGET = """\
gone AS (DELETE FROM {schema}.outbox_message m USING going g WHERE m.id = g.id RETURNING m.id, m.unique_key),
free AS MATERIALIZED (
    SELECT k.kind, k.scope, k.key, k.message_id FROM gone g JOIN {schema}.outbox_key k ON k.message_id = g.id
    WHERE k.kind <> 'dedup' OR coalesce(k.expires_at <= (SELECT clock_timestamp()), true)
    FOR UPDATE OF k SKIP LOCKED),
keys AS (DELETE FROM {schema}.outbox_key k USING free f
    WHERE k.kind = f.kind AND k.scope = f.scope AND k.key = f.key AND k.message_id = f.message_id RETURNING 1),
rejected AS (DELETE FROM {schema}.outbox_rejected j USING gone g
    WHERE j.unique_key = g.unique_key AND j.live_id = g.id RETURNING 1),
retries AS (DELETE FROM {schema}.inbox_retry t USING gone g WHERE t.message_id = g.id RETURNING 1),
claims AS (DELETE FROM {schema}.inbox_claim t USING gone g WHERE t.message_id = g.id RETURNING 1),
letters AS (DELETE FROM {schema}.inbox_dead_letter t USING gone g WHERE t.message_id = g.id RETURNING 1),
receipts AS (DELETE FROM {schema}.inbox_receipt t USING gone g WHERE t.message_id = g.id RETURNING 1)
SELECT (SELECT count(*) FROM leader), (SELECT count(*) FROM chunk),
    (SELECT ARRAY[c.xid::text, c.seq::text] FROM chunk c ORDER BY c.xid DESC, c.seq DESC LIMIT 1),
    (SELECT count(*) FROM gone), (SELECT count(*) FROM keys), (SELECT count(*) FROM rejected),
    (SELECT count(*) FROM retries), (SELECT count(*) FROM claims), (SELECT count(*) FROM letters),
    (SELECT count(*) FROM receipts), (SELECT count(*) FROM chunk c, leader l WHERE c.seq <= l.base_seq)"""


def _messages(chunk: LiteralString, old_enough: LiteralString, swept: LiteralString) -> LiteralString:
    finished = _FINISHED.replace("{swept}", swept).replace("{in_turn}", _IN_TURN)
    return (
        "WITH " + _LEADER + ",\nchunk AS MATERIALIZED (" + chunk + "),\n"
        "going AS MATERIALIZED (SELECT c.id FROM chunk c CROSS JOIN leader l\n    WHERE "
        + old_enough + "\n    AND " + finished + "),\n" + _FORGET
    )  # fmt: skip


_BEHIND = "(c.seq <= l.base_seq OR pg_visible_in_snapshot(c.xid, {snapshot}))"

PRUNE: dict[str, LiteralString] = {
    # The log index is the order of age. Bounded by what is looked at, not by what goes: a stretch of messages that
    # must stay costs one look a pass. After a re-base (base_seq) old rows have ids of another cluster, anywhere.
    "log": _messages(
        f"""
    SELECT {_COLUMNS} FROM {{schema}}.outbox_message m WHERE NOT m.held AND (m.xid, m.seq) > (%(xid)s::xid8, %(seq)s)
        AND m.xid < (SELECT CASE WHEN l.base_seq > 0 AND %(everywhere)s THEN '9223372036854775807'::xid8
            ELSE pg_snapshot_xmax(b.to_snapshot) END FROM leader l, passed b)
    ORDER BY m.xid, m.seq LIMIT %(batch)s""",
        _BEHIND.replace("{snapshot}", "(SELECT b.to_snapshot FROM passed b)"),
        _BEHIND.replace("{snapshot}", "l.reconciled"),
    ),
    # Held rows are published by their plan alone, and committed together with it: no plan means done. They are few.
    "held": _messages(
        f"""
    SELECT {_COLUMNS} FROM {{schema}}.outbox_message m WHERE m.held AND (m.xid, m.seq) > (%(xid)s::xid8, %(seq)s)
        AND EXISTS (SELECT FROM leader)
    ORDER BY m.xid, m.seq LIMIT %(batch)s""",
        "c.created_at <= (SELECT clock_timestamp()) - %(keep)s::interval",
        "true",
    ),
    # Dedup keys outlive their message until their window ends; and what a writer had locked.
    "keys": """\
WITH leader AS MATERIALIZED (SELECT FROM {schema}.outbox_leader p WHERE {fence}),
chunk AS MATERIALIZED (
    SELECT k.* FROM {schema}.outbox_key k
    WHERE (k.kind, k.scope, k.key) > (%(kind)s, %(scope)s, %(key)s) AND EXISTS (SELECT FROM leader)
    ORDER BY k.kind, k.scope, k.key LIMIT %(batch)s),
over AS MATERIALIZED (
    SELECT c.kind, c.scope, c.key, c.message_id FROM chunk c
    WHERE (c.kind <> 'dedup' OR coalesce(c.expires_at <= (SELECT clock_timestamp()), true))
        AND NOT EXISTS (SELECT FROM {schema}.outbox_message m WHERE m.id = c.message_id)),
free AS MATERIALIZED (
    SELECT k.kind, k.scope, k.key, k.message_id FROM over o JOIN {schema}.outbox_key k
        ON k.kind = o.kind AND k.scope = o.scope AND k.key = o.key AND k.message_id = o.message_id
    FOR UPDATE OF k SKIP LOCKED),
gone AS (DELETE FROM {schema}.outbox_key k USING free f
    WHERE k.kind = f.kind AND k.scope = f.scope AND k.key = f.key AND k.message_id = f.message_id RETURNING 1)
SELECT (SELECT count(*) FROM leader), (SELECT count(*) FROM chunk),
    (SELECT ARRAY[c.kind, c.scope, c.key] FROM chunk c ORDER BY c.kind DESC, c.scope DESC, c.key DESC LIMIT 1),
    (SELECT count(*) FROM gone)""",
    # A consumer's request can become a plan just after its message went; it would wait for ever. A plan never stands
    # before its message: writers commit both at once, and the relay plans what it has read.
    "plans": """\
WITH leader AS MATERIALIZED (SELECT FROM {schema}.outbox_leader p WHERE {fence}),
chunk AS MATERIALIZED (
    SELECT d.message_id FROM {schema}.outbox_due d WHERE d.message_id > %(id)s::uuid AND EXISTS (SELECT FROM leader)
    ORDER BY d.message_id LIMIT %(batch)s),
gone AS (DELETE FROM {schema}.outbox_due d USING chunk c WHERE d.message_id = c.message_id
    AND NOT EXISTS (SELECT FROM {schema}.outbox_message m WHERE m.id = c.message_id) RETURNING 1)
SELECT (SELECT count(*) FROM leader), (SELECT count(*) FROM chunk),
    (SELECT ARRAY[c.message_id::text] FROM chunk c ORDER BY c.message_id DESC LIMIT 1), (SELECT count(*) FROM gone)""",
    # Receipts without a message here: of calls past the outbox, of messages from another one. By place on disk: BRIN
    # is blind once new rows fill the gaps of old ones, since its ranges only ever widen.
    "receipts": """\
WITH leader AS MATERIALIZED (SELECT FROM {schema}.outbox_leader p WHERE {fence}),
chunk AS MATERIALIZED (
    SELECT r.message_id, r.consumer, r.status, r.applied_at FROM {schema}.inbox_receipt r
    WHERE r.ctid >= format('(%%s,0)', %(block)s::bigint)::tid
        AND r.ctid < format('(%%s,0)', %(block)s::bigint + %(blocks)s)::tid
        AND EXISTS (SELECT FROM leader)),
gone AS (DELETE FROM {schema}.inbox_receipt r USING chunk c
    WHERE r.message_id = c.message_id AND r.consumer = c.consumer
        AND c.status <> 'dead' AND c.applied_at <= (SELECT clock_timestamp()) - %(keep)s::interval
        AND NOT EXISTS (SELECT FROM {schema}.outbox_message m WHERE m.id = c.message_id) RETURNING 1)
SELECT (SELECT count(*) FROM leader),
    greatest(pg_relation_size(%(receipt_table)s) / current_setting('block_size')::bigint - %(block)s::bigint, 0),
    ARRAY[(%(block)s::bigint + %(blocks)s)::text], (SELECT count(*) FROM gone)""",
    # After a pass over the log everything behind its note has been looked at. That note stays: the next pass needs one.
    "windows": f"""\
WITH {_LEADER},
gone AS (DELETE FROM {{schema}}.outbox_window w WHERE w.window_no < (SELECT b.window_no FROM passed b) RETURNING 1)
SELECT (SELECT count(*) FROM leader), 0, NULL, (SELECT count(*) FROM gone)""",
    "audit": """\
WITH leader AS MATERIALIZED (SELECT FROM {schema}.outbox_leader p WHERE {fence}),
gone AS (DELETE FROM {schema}.outbox_audit a WHERE a.id = ANY (ARRAY(
        SELECT o.id FROM {schema}.outbox_audit o, leader ORDER BY o.id LIMIT %(batch)s))
    AND a.at < (SELECT clock_timestamp()) - interval '1 year' RETURNING 1)
SELECT (SELECT count(*) FROM leader), 0, NULL, (SELECT count(*) FROM gone)""",
    "relays": """\
WITH leader AS MATERIALIZED (SELECT FROM {schema}.outbox_leader p WHERE {fence}),
gone AS (DELETE FROM {schema}.outbox_relay r
    WHERE r.seen_at < (SELECT clock_timestamp()) - interval '1 day' AND EXISTS (SELECT FROM leader) RETURNING 1)
SELECT (SELECT count(*) FROM leader), 0, NULL, (SELECT count(*) FROM gone)""",
    "audited": """\
INSERT INTO {schema}.outbox_audit (who, action, why, affected, detail)
VALUES (%(who)s, 'prune', %(why)s, %(affected)s, %(detail)s::json)""",
}


@dataclass(frozen=True, slots=True)
class PruneQueries:
    """The statements of retention for one schema."""

    log: bytes
    held: bytes
    keys: bytes
    plans: bytes
    receipts: bytes
    windows: bytes
    audit: bytes
    relays: bytes
    audited: bytes


def prune_queries_for(schema: str, *, fenced: bool = True) -> PruneQueries:
    """By hand (`fenced=False`) nothing but the fence is missing: what may go does not depend on who asks."""

    def render(name: str) -> bytes:
        text = PRUNE[name]
        return rendered(text if fenced else text.replace("{fence}", "true"), schema)

    return PruneQueries(**{field.name: render(field.name) for field in fields(PruneQueries)})

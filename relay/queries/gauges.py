"""What the gauges ask. Every relay asks it, leader or not, so each question is bounded and ends within a second."""

from dataclasses import dataclass, fields
from typing import LiteralString

from relay.queries.render import rendered

_AGE: LiteralString = "extract(epoch FROM clock_timestamp() - min({moment}))::float8"

# Not with the broker: neither visible in prev, nor in next up to last_seq.
_WAITING: LiteralString = """m.seq > p.base_seq
    AND NOT (p.next IS NOT NULL AND m.seq <= p.last_seq AND pg_visible_in_snapshot(m.xid, p.next))"""

GAUGES: dict[str, LiteralString] = {
    # For this transaction only: a pooler may give the connection to somebody else after it.
    "limit": """\
SELECT set_config('statement_timeout', %(milliseconds)s, true), set_config('transaction_read_only', 'on', true)""",
    "lease": "SELECT p.epoch, {schema}.outbox_revision() FROM {schema}.outbox_leader p",
    # Counts so far and no further; how many there may be in all is told by the sequence, gaps of rollbacks included.
    "ready": f"""\
SELECT waiting.queue, count(*), {_AGE.replace("{moment}", "waiting.created_at")},
    (SELECT s.last_value FROM {{schema}}.outbox_message_seq s) - min(min(waiting.seq)) OVER () + 1
FROM {{schema}}.outbox_leader p CROSS JOIN LATERAL (
    (SELECT m.queue, m.created_at, m.seq FROM {{schema}}.outbox_message m
     WHERE NOT m.held AND m.xid >= pg_snapshot_xmax(p.prev) AND {_WAITING} ORDER BY m.xid, m.seq LIMIT %(most)s)
    UNION ALL
    (SELECT m.queue, m.created_at, m.seq FROM {{schema}}.outbox_message m
     WHERE NOT m.held AND m.xid = ANY (ARRAY(SELECT pg_snapshot_xip(p.prev))) AND {_WAITING} LIMIT %(most)s)
    LIMIT %(most)s) waiting
GROUP BY waiting.queue""",
    # A plan that is not due has been published and waits for its receipt, unless it is scheduled: those are told apart
    # here. What consumers keep back until its time is up is still in their table.
    "planned": f"""\
SELECT m.queue, 'scheduled', count(*), greatest({_AGE.replace("{moment}", "d.due_at")}, 0)
FROM (SELECT * FROM {{schema}}.outbox_due WHERE blocked_by IS NULL AND reason = 'scheduled' AND publication = 0
      ORDER BY due_at LIMIT %(most)s) d JOIN {{schema}}.outbox_message m ON m.id = d.message_id GROUP BY 1
UNION ALL
SELECT m.queue, 'retrying', count(*), {_AGE.replace("{moment}", "m.created_at")}
FROM ((SELECT message_id FROM {{schema}}.outbox_due
       WHERE blocked_by IS NULL AND (reason <> 'scheduled' OR publication > 0)
           AND due_at <= (SELECT clock_timestamp()) ORDER BY due_at LIMIT %(most)s)
      UNION
      (SELECT message_id FROM {{schema}}.inbox_retry WHERE kind IN ('failure', 'check', 'early')
       ORDER BY due_at LIMIT %(most)s)) r
    JOIN {{schema}}.outbox_message m ON m.id = r.message_id GROUP BY 1""",
    # By the index of parked messages alone; they may be many, so no message is looked up.
    "parked": f"""\
SELECT d.queue, count(*), {_AGE.replace("{moment}", "d.parked_at")}
FROM (SELECT queue, parked_at FROM {{schema}}.outbox_due WHERE blocked_by IS NOT NULL LIMIT %(most)s) d GROUP BY 1""",
    # The sweep looks at everything once; what it found is in outbox_due. Behind it the oldest published are probed, and
    # no more of them than a second allows.
    "unacknowledged": f"""\
SELECT u.queue, count(*), {_AGE.replace("{moment}", "u.created_at")} FROM (
    SELECT m.queue, m.created_at FROM (
        SELECT m.id, m.task, m.queue, m.created_at FROM {{schema}}.outbox_leader p CROSS JOIN LATERAL (
            SELECT * FROM {{schema}}.outbox_message m
            WHERE NOT m.held AND m.xid >= pg_snapshot_xmax(p.reconciled) AND m.xid < pg_snapshot_xmax(p.prev)
                AND pg_visible_in_snapshot(m.xid, p.prev)
            ORDER BY m.xid, m.seq LIMIT %(probed)s) m) m
    JOIN {{schema}}.inbox_consumer c ON c.task = m.task
    WHERE NOT EXISTS (SELECT FROM {{schema}}.inbox_receipt r WHERE r.message_id = m.id AND r.consumer = m.task)
        AND NOT EXISTS (SELECT FROM {{schema}}.outbox_due d WHERE d.message_id = m.id)
        AND NOT EXISTS (SELECT FROM {{schema}}.inbox_retry t WHERE t.message_id = m.id)
    UNION ALL
    SELECT m.queue, m.created_at FROM (
        SELECT message_id FROM {{schema}}.outbox_due WHERE blocked_by IS NULL AND publication > 0
            AND due_at > (SELECT clock_timestamp()) ORDER BY due_at LIMIT %(probed)s) d
    JOIN {{schema}}.outbox_message m ON m.id = d.message_id
    WHERE NOT EXISTS (SELECT FROM {{schema}}.inbox_receipt r WHERE r.message_id = m.id AND r.consumer = m.task)) u
GROUP BY 1""",
    "dead": """\
SELECT category, count(*) FROM (SELECT category FROM {schema}.inbox_dead_letter LIMIT %(most)s) d GROUP BY 1""",
    "paused": """\
SELECT queue FROM {schema}.outbox_pause WHERE paused_until IS NULL OR paused_until > clock_timestamp()""",
    # Only what holds something back has a snapshot or an id. Those of other roles are seen by pg_read_all_stats.
    "transactions": """\
SELECT coalesce(max(extract(epoch FROM clock_timestamp() - began)), 0)::float8 FROM (
    SELECT xact_start AS began FROM pg_stat_activity
        WHERE (backend_xid IS NOT NULL OR backend_xmin IS NOT NULL) AND pid <> pg_backend_pid()
            AND backend_type = 'client backend'
    UNION ALL
    SELECT prepared FROM pg_prepared_xacts) open""",
    # From the statistics, not from the tables.
    "tables": """\
SELECT c.relname, pg_total_relation_size(c.oid), s.n_dead_tup::float8 / greatest(s.n_live_tup + s.n_dead_tup, 1)
FROM pg_class c JOIN pg_stat_user_tables s ON s.relid = c.oid
WHERE c.relnamespace = to_regnamespace(%(schema)s) AND c.relname = ANY (%(tables)s)""",
    "actions": "SELECT action, count(*) FROM {schema}.outbox_audit GROUP BY 1",
}


@dataclass(frozen=True, slots=True)
class GaugeQueries:
    limit: bytes
    lease: bytes
    ready: bytes
    planned: bytes
    parked: bytes
    unacknowledged: bytes
    dead: bytes
    paused: bytes
    transactions: bytes
    tables: bytes
    actions: bytes


def gauge_queries_for(schema: str) -> GaugeQueries:
    return GaugeQueries(**{field.name: rendered(GAUGES[field.name], schema) for field in fields(GaugeQueries)})

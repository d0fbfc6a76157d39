"""What `outbox status` asks. Every count stops at a bound: status must be cheap on whatever has piled up."""

from dataclasses import dataclass
from typing import LiteralString

from relay.queries.render import rendered

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
    # Not refused but told: a status is wanted most where something is wrong. NULL: the flag may not be read.
    "identity": """\
SELECT {schema}.outbox_revision(), pg_is_in_recovery(), p.system_id = c.system_identifier,
    pg_sequence_last_value(format('%%I.outbox_wake', %(schema)s::text)::regclass)
FROM {schema}.outbox_leader p, pg_control_system() c""",
    "leader": """\
SELECT p.epoch, p.holder::text, coalesce(r.name, 'unknown'), p.expires_at > clock_timestamp(),
    extract(epoch FROM clock_timestamp() - r.started_at)::float8
FROM {schema}.outbox_leader p LEFT JOIN {schema}.outbox_relay r USING (holder)""",
    "relays": """\
SELECT holder::text, name, version, extract(epoch FROM clock_timestamp() - seen_at)::float8,
    extract(epoch FROM clock_timestamp() - broker_ok_at)::float8, last_error
FROM {schema}.outbox_relay ORDER BY started_at LIMIT 100""",
    "backlog": _BACKLOG,
    # The earliest first, by the index: what is due now is counted before what is planned for next year.
    "due": """\
SELECT reason, count(*), count(*) FILTER (WHERE due_at <= (SELECT clock_timestamp()))
FROM (SELECT reason, due_at FROM {schema}.outbox_due WHERE blocked_by IS NULL
      ORDER BY due_at, seq LIMIT %(most)s) planned
GROUP BY reason ORDER BY reason""",
    "parked": """\
SELECT blocked_by, queue, why, count(*), extract(epoch FROM clock_timestamp() - min(parked_at))::float8
FROM (SELECT blocked_by, queue, why, parked_at FROM {schema}.outbox_due WHERE blocked_by IS NOT NULL
      ORDER BY blocked_by, queue, seq LIMIT %(most)s) parked
GROUP BY blocked_by, queue, why ORDER BY 4 DESC, 1, 2 LIMIT 20""",
    # Stretches noted in the last minute begin where the log was a minute ago: one range of the log's index.
    "published": """\
SELECT count(*) FROM (SELECT FROM {schema}.outbox_leader p, {schema}.outbox_message m, LATERAL (
    SELECT w.from_snapshot FROM {schema}.outbox_window w
    WHERE w.closed_at > (SELECT clock_timestamp()) - interval '1 minute' ORDER BY w.window_no LIMIT 1) minute
  WHERE NOT m.held AND m.xid >= pg_snapshot_xmax(minute.from_snapshot) AND m.xid < pg_snapshot_xmax(p.prev)
    AND pg_visible_in_snapshot(m.xid, p.prev) LIMIT %(most)s) newest""",
    # The BRIN index on applied_at makes this a look at the newest blocks only.
    "receipts": """\
SELECT status, count(*) FROM (SELECT status FROM {schema}.inbox_receipt
    WHERE applied_at > (SELECT clock_timestamp()) - interval '1 minute' LIMIT %(most)s) newest
GROUP BY status ORDER BY status""",
    "consumers": """\
SELECT task, extract(epoch FROM clock_timestamp() - last_seen)::float8
FROM {schema}.inbox_consumer ORDER BY task LIMIT 1000""",
    # Nothing waits for them, but no dead row that they might still see is ever cleaned up. Only pg_read_all_stats
    # sees those of other roles.
    "open_transactions": """\
SELECT count(*), extract(epoch FROM clock_timestamp() - min(t.began))::float8,
    (array_agg(t.label ORDER BY t.began))[1]
FROM (
    SELECT a.xact_start AS began, format('pid %%s (%%s)', a.pid, coalesce(nullif(a.application_name, ''), a.usename))
        AS label FROM pg_stat_activity a
    WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND a.backend_type = 'client backend'
    UNION ALL
    SELECT x.prepared, format('prepared transaction %%s', left(x.gid, 60)) FROM pg_prepared_xacts x
    WHERE x.database = current_database()) t
WHERE t.began < clock_timestamp() - %(long)s""",
}


@dataclass(frozen=True, slots=True)
class StatusQueries:
    """What `outbox status` asks."""

    schema: str
    identity: bytes
    leader: bytes
    relays: bytes
    backlog: bytes
    due: bytes
    parked: bytes
    published: bytes
    receipts: bytes
    consumers: bytes
    open_transactions: bytes


def status_queries_for(schema: str) -> StatusQueries:
    return StatusQueries(schema, **{name: rendered(text, schema) for name, text in STATUS_STATEMENTS.items()})

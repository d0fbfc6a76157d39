"""What `outbox status` asks."""

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
class StatusQueries:
    """What `outbox status` asks."""

    leader: bytes
    relays: bytes
    backlog: bytes
    due: bytes
    receipts: bytes
    consumers: bytes


def status_queries_for(schema: str) -> StatusQueries:
    return StatusQueries(**{name: rendered(text, schema) for name, text in STATUS_STATEMENTS.items()})

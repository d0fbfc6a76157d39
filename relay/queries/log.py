"""Windows of the log: open, page, advance, close."""

from typing import LiteralString

from relay.queries.fates import FATES
from relay.queries.render import DURABLE

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

# What the relay puts on the wire is rendered here: Python then joins bytes and never parses a payload or a time.
# to_json() writes ISO times whatever DateStyle says. {ended} differs: a resumed page and a plan ask for any receipt; a
# new page only for a cancellation, and only where a cancellation is younger than the message.
COLUMNS: LiteralString = """\
m.id::text, m.seq, m.task, m.queue, m.priority, convert_to('[' || m.args || ', ' || m.kwargs, 'UTF8'), m.headers::text,
    '"created_at": ' || to_json(m.created_at) || coalesce(', "hash": "' || encode(m.body_hash, 'hex') || '"', '')
    || coalesce(', "ordering_key": ' || to_json(m.ordering_key)
        || ', "key_prev": ' || coalesce('"' || m.key_prev || '"', 'null'), '')
    || coalesce(', "expires_at": ' || to_json(m.expires_at), ''),
    m.body_hash IS NOT NULL, m.ordering_key, extract(epoch FROM m.created_at)::float8, m.expires_at,
    m.expires_at IS NOT NULL AND NOT EXISTS (SELECT FROM {schema}.inbox_consumer c WHERE c.task = m.task),
    {ended}"""
_PLANNED: LiteralString = "%(xids)s::xid8[]"
ENDED: LiteralString = "EXISTS (SELECT FROM {schema}.inbox_receipt r WHERE r.message_id = m.id AND r.consumer = m.task)"
_CANCELLED: LiteralString = """\
CASE WHEN m.created_at <= coalesce(
        (SELECT max(c.applied_at) FROM {schema}.inbox_receipt c WHERE c.status = 'cancelled'), '-infinity')
    THEN EXISTS (SELECT FROM {schema}.inbox_receipt r
        WHERE r.message_id = m.id AND r.consumer = m.task AND r.status = 'cancelled')
    ELSE false END"""

# Both branches on the one log index; late and fresh rows merge by seq, neither group may go first. The comparison of
# pairs says where in the index to begin and to end: without it the page of one large transaction walks over all of it.
_PAGE: LiteralString = f"""\
SELECT {COLUMNS} FROM {{schema}}.outbox_message m WHERE NOT m.held
    AND (m.xid, m.seq) > (%(first_xid)s::xid8, %(low)s) AND (m.xid, m.seq) <= (%(last_xid)s::xid8, %(high)s)
    AND m.seq > %(low)s AND m.seq <= %(high)s AND m.xid <> ALL(%(xids)s::xid8[])
    AND m.xid >= pg_snapshot_xmax(%(prev)s::pg_snapshot) AND m.xid < pg_snapshot_xmax(%(next)s::pg_snapshot)
    AND pg_visible_in_snapshot(m.xid, %(next)s::pg_snapshot)
UNION ALL
SELECT {COLUMNS} FROM {{schema}}.outbox_message m WHERE NOT m.held
    AND m.xid = ANY({{singles}}) AND m.seq > %(low)s AND m.seq <= %(high)s
ORDER BY 2 LIMIT %(most)s"""

LOG: dict[str, LiteralString] = {
    # The position as the term begins: a window left open by the last leader is resumed.
    "position": f"SELECT {_POSITION} FROM {{schema}}.outbox_leader p WHERE {{fence}}",
    # Durable before the first publish of the window; without new rows it writes nothing, so it is the poll as well.
    # high_seq bounds what was ever published, for a later re-base.
    "open": f"""\
UPDATE {{schema}}.outbox_leader p SET next = pg_current_snapshot(), last_seq = p.base_seq, window_no = p.window_no + 1,
    high_seq = (SELECT last_value FROM {{schema}}.outbox_message_seq)
FROM {DURABLE}
WHERE {{at}} {{fence}} AND p.next IS NULL
  AND {_ROWS_BETWEEN.replace("{prev}", "p.prev").replace("{next}", "pg_current_snapshot()")}
RETURNING {_POSITION}""",
    # Close and open in one commit: a busy relay pays one durable commit a window instead of two.
    "turn": f"""\
UPDATE {{schema}}.outbox_leader p SET prev = p.next, next = pg_current_snapshot(), last_seq = p.base_seq,
    window_no = p.window_no + 1, high_seq = (SELECT last_value FROM {{schema}}.outbox_message_seq)
FROM {DURABLE}
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
    # One index-only pass over a large window: each page's highest seq, the range of its transaction ids, and those ids
    # that are looked up one by one: late committers, and large transactions, whose rows lie in many pages and would be
    # walked over for each of them.
    "plan": f"""\
SELECT max(high), (min(xid) FILTER (WHERE NOT single))::text, (max(xid) FILTER (WHERE NOT single))::text,
    coalesce(array_agg(xid::text) FILTER (WHERE single), ARRAY[]::text[])
FROM (SELECT page, xid, max(seq) AS high, bool_or(late) OR count(*) > 16 AS single
FROM (SELECT xid, seq, late, (row_number() OVER (ORDER BY seq) - 1) / %(page)s AS page FROM (
    SELECT m.xid, m.seq, false AS late FROM {{schema}}.outbox_message m WHERE NOT m.held AND m.seq > %(last_seq)s
        AND m.xid >= pg_snapshot_xmax(%(prev)s::pg_snapshot) AND m.xid < pg_snapshot_xmax(%(next)s::pg_snapshot)
        AND pg_visible_in_snapshot(m.xid, %(next)s::pg_snapshot)
    UNION ALL
    SELECT m.xid, m.seq, true FROM {{schema}}.outbox_message m WHERE NOT m.held AND m.seq > %(last_seq)s
        AND m.xid = ANY({_LATE})) rows) numbered
GROUP BY page, xid) transactions GROUP BY page ORDER BY page""",
    "page": _PAGE.replace("{ended}", _CANCELLED).replace("{singles}", _PLANNED),
    # A small window needs no plan: its late committers are found here.
    "only_page": _PAGE.replace("{ended}", _CANCELLED).replace("{singles}", _LATE),
    # Left open by a leader before: its messages may have been published and applied long ago, and forgotten since.
    "page_resumed": _PAGE.replace("{ended}", ENDED).replace("{singles}", _PLANNED),
    "only_page_resumed": _PAGE.replace("{ended}", ENDED).replace("{singles}", _LATE),
    # Are earlier messages of these keys still parked? Then these wait behind them.
    "parked_keys": """\
SELECT DISTINCT d.ordering_key FROM {schema}.outbox_due d WHERE d.ordering_key = ANY(%(keys)s)""",
    # The position moves past messages that were not published, in one commit with what becomes of them.
    "advance_past": f"""\
WITH fence AS (
    UPDATE {{schema}}.outbox_leader p SET last_seq = %(last_seq)s FROM {_ASYNC}
    WHERE {{at}} {{fence}} AND p.window_no = %(window_no)s AND p.next IS NOT NULL AND p.last_seq <= %(last_seq)s
    RETURNING p.ctid::text AS place, clock_timestamp() AS now),
{FATES}
SELECT place, now FROM fence""",
}

"""Plans: what is published at a time, and what is parked until something is free."""

from typing import LiteralString

from relay.queries.fates import FATES
from relay.queries.log import COLUMNS, ENDED

# The lock on the leader row is the fence: whoever takes the lease must update that row, and waits for our commit.
_FENCE: LiteralString = (
    "WITH fence AS MATERIALIZED (SELECT FROM {schema}.outbox_leader p WHERE {fence} FOR NO KEY UPDATE),"
)

DUE: dict[str, LiteralString] = {
    # What the consumers asked for becomes a plan. A dead letter that is retried no longer blocks its key.
    "collect": f"""\
{_FENCE}
taken AS (
    DELETE FROM {{schema}}.inbox_retry r WHERE EXISTS (SELECT FROM fence) AND r.ctid = ANY (ARRAY(
        SELECT d.ctid FROM {{schema}}.inbox_retry d WHERE d.due_at <= (SELECT clock_timestamp())
            AND d.kind IN ('failure', 'check', 'early') ORDER BY d.due_at LIMIT 1000))
    RETURNING r.message_id, r.attempt)
INSERT INTO {{schema}}.outbox_due AS d (message_id, due_at, attempt, publication, reason)
SELECT message_id, clock_timestamp(), max(attempt), 1, 'retry' FROM taken GROUP BY message_id
ON CONFLICT (message_id) DO UPDATE SET attempt = greatest(d.attempt, excluded.attempt),
    blocked_by = nullif(d.blocked_by, 'dead'), due_at = least(d.due_at, excluded.due_at)""",
    # (SELECT clock_timestamp()): a volatile call is no index condition, its value once read is.
    # A plan whose message has a receipt needs no publication, only forgetting: asked here, last before publishing.
    # The lower bound is a place already seen: what was settled there left dead rows under somebody's open snapshot.
    # Behind: an earlier one of the key is parked, or its turn comes later than this one's (its queue was freed later).
    "due": f"""\
SELECT {COLUMNS.replace("{ended}", ENDED)}, d.publication, d.attempt,
    EXISTS (SELECT FROM {{schema}}.inbox_consumer c WHERE c.task = m.task),
    d.ordering_key IS NOT NULL AND EXISTS (SELECT FROM {{schema}}.outbox_due e
        WHERE e.ordering_key = d.ordering_key AND e.seq < d.seq
            AND (e.blocked_by IS NOT NULL OR e.due_at > d.due_at OR e.due_at < %(since)s)), d.due_at
FROM {{schema}}.outbox_due d JOIN {{schema}}.outbox_message m ON m.id = d.message_id
WHERE d.blocked_by IS NULL AND d.due_at >= %(since)s AND d.due_at <= (SELECT clock_timestamp())
ORDER BY d.due_at, d.seq LIMIT %(page)s""",
    # A plan is kept until the receipt exists, each time twice as far ahead: published is not delivered. An expired or
    # dead one goes with the receipt that says so, and is looked at again if another holds the message (FATES).
    "settle": f"""\
{_FENCE}
{FATES},
forgotten AS (
    DELETE FROM {{schema}}.outbox_due d WHERE EXISTS (SELECT FROM fence) AND d.message_id = ANY (
        %(finished)s::uuid[] || ARRAY(SELECT x.message_id FROM expired x)
        || ARRAY(SELECT x.message_id FROM dead x WHERE x.message_id <> ALL(%(parked_ids)s::uuid[])))
    RETURNING 1),
kept AS (UPDATE {{schema}}.outbox_due d SET publication = d.publication + 1, ordering_key = NULL, why = NULL,
        due_at = clock_timestamp() + least(c.receipt_timeout * 2 ^ least(d.publication, 10), interval '1 hour')
    FROM {{schema}}.outbox_message m JOIN {{schema}}.inbox_consumer c ON c.task = m.task
    WHERE EXISTS (SELECT FROM fence) AND d.message_id = m.id AND d.message_id = ANY(%(published)s::uuid[]) RETURNING 1)
SELECT count(*) FROM fence""",
    "paused": """\
SELECT queue, why FROM {schema}.outbox_pause WHERE paused_until IS NULL OR paused_until > clock_timestamp()""",
    # Which queues have parked messages, and why: one step of the index for each, however many there are.
    "blocked": """\
WITH RECURSIVE found AS (
    (SELECT d.blocked_by, d.queue FROM {schema}.outbox_due d WHERE d.blocked_by IS NOT NULL
     ORDER BY d.blocked_by, d.queue LIMIT 1)
    UNION ALL
    SELECT after.blocked_by, after.queue FROM found f CROSS JOIN LATERAL (
        SELECT d.blocked_by, d.queue FROM {schema}.outbox_due d
        WHERE d.blocked_by IS NOT NULL AND (d.blocked_by, d.queue) > (f.blocked_by, f.queue)
        ORDER BY d.blocked_by, d.queue LIMIT 1) after)
SELECT f.blocked_by, f.queue, (SELECT d.why FROM {schema}.outbox_due d
    WHERE d.blocked_by = f.blocked_by AND d.queue = f.queue ORDER BY d.seq LIMIT 1) FROM found f""",
    # All of one statement get one time: among them seq decides, so they leave in the order of the log.
    "unpark": f"""\
{_FENCE}
freed AS (UPDATE {{schema}}.outbox_due d SET blocked_by = NULL, due_at = (SELECT clock_timestamp())
    WHERE EXISTS (SELECT FROM fence) AND d.message_id = ANY (ARRAY(
        SELECT b.message_id FROM {{schema}}.outbox_due b WHERE b.blocked_by = %(by)s AND b.queue = %(queue)s
        ORDER BY b.seq LIMIT %(most)s))
    RETURNING 1)
SELECT count(*) FROM freed""",
    # The messages behind one that has left: those of its key up to the next one that waits for something else. Only the
    # first few: the fence is held meanwhile, and a key may have any number of them.
    "unpark_keys": f"""\
{_FENCE}
freed AS (UPDATE {{schema}}.outbox_due d SET blocked_by = NULL, due_at = (SELECT clock_timestamp())
    WHERE EXISTS (SELECT FROM fence) AND d.message_id = ANY (ARRAY(
        SELECT e.message_id FROM unnest(%(keys)s::text[]) AS k (key) CROSS JOIN LATERAL (
            SELECT n.message_id, n.blocked_by,
                bool_or(n.blocked_by IN ('pause', 'queue', 'dead')) OVER (ORDER BY n.seq) AS stopped
            FROM (SELECT b.message_id, b.seq, b.blocked_by FROM {{schema}}.outbox_due b WHERE b.ordering_key = k.key
                ORDER BY b.seq LIMIT %(most)s) n) e
        WHERE e.blocked_by = 'key' AND e.stopped IS NOT TRUE))
    RETURNING 1)
SELECT count(*) FROM freed""",
    # Keys whose messages wait although nothing of them stands before: a leader that died between publishing and
    # releasing leaves some. One step of the index for each key, however many messages it has.
    "waiting_keys": """\
WITH RECURSIVE firsts AS (
    (SELECT d.ordering_key, d.blocked_by FROM {schema}.outbox_due d WHERE d.ordering_key IS NOT NULL
     ORDER BY d.ordering_key, d.seq LIMIT 1)
    UNION ALL
    SELECT after.ordering_key, after.blocked_by FROM firsts f CROSS JOIN LATERAL (
        SELECT d.ordering_key, d.blocked_by FROM {schema}.outbox_due d WHERE d.ordering_key > f.ordering_key
        ORDER BY d.ordering_key, d.seq LIMIT 1) after)
SELECT ordering_key FROM firsts WHERE blocked_by = 'key' LIMIT %(most)s""",
    # A dead message blocks its key until somebody decides: discarded, it goes; retried, it has no receipt any more.
    "decided": f"""\
{_FENCE}
decided AS (SELECT d.message_id, d.ordering_key, r.status FROM {{schema}}.outbox_due d
        JOIN {{schema}}.outbox_message m ON m.id = d.message_id
        LEFT JOIN {{schema}}.inbox_receipt r ON r.message_id = m.id AND r.consumer = m.task
    WHERE d.blocked_by = 'dead' AND r.status IS DISTINCT FROM 'dead' LIMIT 1000),
gone AS (DELETE FROM {{schema}}.outbox_due d USING decided x, fence
    WHERE d.message_id = x.message_id AND x.status IS NOT NULL RETURNING x.ordering_key),
again AS (UPDATE {{schema}}.outbox_due d SET blocked_by = NULL, due_at = (SELECT clock_timestamp())
    FROM decided x, fence WHERE d.message_id = x.message_id AND x.status IS NULL RETURNING x.ordering_key)
SELECT ordering_key FROM gone UNION SELECT ordering_key FROM again""",
}

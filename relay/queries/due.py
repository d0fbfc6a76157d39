"""Plans: what is published at a time."""

from typing import LiteralString

from relay.queries.log import COLUMNS

DUE: dict[str, LiteralString] = {
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
SELECT {COLUMNS}, d.publication, d.attempt, c.task IS NOT NULL,
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
}

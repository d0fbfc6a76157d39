"""What becomes of messages that are not published now: part of the statements that move the position or settle plans.

The statement around it names its fence `fence`: a relation of one row, or none when the lease is lost.
"""

from typing import LiteralString

# The same lock as the consumer's: whoever runs the message now decides its outcome, not we.
_FREE: LiteralString = "pg_try_advisory_xact_lock(hashtextextended(m.task || ' ' || m.id::text, 0))"

# So many locks at most in one commit: the server's table of locks is shared by all. The others are undecided.
_MOST: LiteralString = "1000"

# A parked message has no time of its own: it waits until its queue or its key is free. The ordering key stands here
# only until the first publication, so a key without such a row is free.
# An outcome that cannot be written now, because somebody holds the message, is not forgotten: it is tried again soon.
FATES: LiteralString = f"""\
parked AS (
    INSERT INTO {{schema}}.outbox_due AS d
        (message_id, due_at, reason, seq, queue, ordering_key, blocked_by, why, parked_at)
    SELECT x.id, 'infinity', 'parked', x.seq, x.queue, x.ordering_key, x.blocked_by, x.why, clock_timestamp()
    FROM fence, unnest(%(parked_ids)s::uuid[], %(parked_seqs)s::bigint[], %(parked_queues)s::text[],
        %(parked_keys)s::text[], %(parked_by)s::text[], %(parked_why)s::text[])
        AS x (id, seq, queue, ordering_key, blocked_by, why)
    ON CONFLICT (message_id) DO UPDATE SET due_at = 'infinity', seq = excluded.seq, queue = excluded.queue,
        ordering_key = CASE WHEN d.publication = 0 THEN excluded.ordering_key END, blocked_by = excluded.blocked_by,
        why = excluded.why, parked_at = coalesce(d.parked_at, excluded.parked_at)
    RETURNING 1),
expired AS (
    INSERT INTO {{schema}}.inbox_receipt (message_id, consumer, status, body_hash)
    SELECT m.id, m.task, 'expired', m.body_hash FROM fence, {{schema}}.outbox_message m
    WHERE m.id = ANY((%(expired)s::uuid[])[1:{_MOST}]) AND {_FREE}
    ON CONFLICT (message_id, consumer) DO NOTHING RETURNING message_id),
dead AS (
    INSERT INTO {{schema}}.inbox_receipt (message_id, consumer, status, body_hash)
    SELECT m.id, m.task, 'dead', m.body_hash FROM fence, {{schema}}.outbox_message m
    WHERE m.id = ANY((%(dead)s::uuid[])[1:{_MOST}]) AND {_FREE}
    ON CONFLICT (message_id, consumer) DO NOTHING RETURNING message_id),
letters AS (
    INSERT INTO {{schema}}.inbox_dead_letter
        (message_id, consumer, category, error_class, error, error_group, message)
    SELECT m.id, m.task, 'dead_letter', 'RefusedByRelay', x.why, 'RefusedByRelay ' || m.task,
        json_build_object('task', m.task, 'queue', m.queue, 'args', m.args, 'kwargs', m.kwargs, 'headers', m.headers)
    FROM dead JOIN unnest(%(dead)s::uuid[], %(dead_why)s::text[]) AS x (id, why) ON x.id = dead.message_id
        JOIN {{schema}}.outbox_message m ON m.id = dead.message_id
    ON CONFLICT (message_id, consumer) DO NOTHING RETURNING 1),
undecided AS (
    INSERT INTO {{schema}}.outbox_due AS d (message_id, due_at, reason, seq)
    SELECT m.id, clock_timestamp() + interval '5 seconds', 'parked', m.seq FROM fence, {{schema}}.outbox_message m
    WHERE m.id = ANY(%(expired)s::uuid[] || %(dead)s::uuid[]) AND m.id <> ALL(%(parked_ids)s::uuid[])
        AND m.id <> ALL(ARRAY(SELECT x.message_id FROM expired x UNION ALL SELECT x.message_id FROM dead x))
        AND NOT EXISTS (SELECT FROM {{schema}}.inbox_receipt r WHERE r.message_id = m.id AND r.consumer = m.task)
    ON CONFLICT (message_id) DO UPDATE SET due_at = excluded.due_at
    RETURNING 1)"""

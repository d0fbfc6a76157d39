"""The sweep behind the position."""

from typing import LiteralString

RECONCILE: dict[str, LiteralString] = {
    # A stretch of the log that is with the broker, and when: what the sweep works off, also under the next leader.
    "note": """\
WITH fence AS MATERIALIZED (SELECT p.* FROM {schema}.outbox_leader p WHERE {fence} FOR NO KEY UPDATE)
INSERT INTO {schema}.outbox_window (window_no, from_snapshot, to_snapshot, last_seq, epoch, relay)
SELECT f.window_no - (f.next IS NOT NULL)::int,
    coalesce((SELECT w.to_snapshot FROM {schema}.outbox_window w ORDER BY w.window_no DESC LIMIT 1), f.reconciled),
    f.prev, f.last_seq, f.epoch, %(relay)s
FROM fence f ON CONFLICT (window_no) DO NOTHING""",
    # The newest stretch that is older than the shortest receipt timeout, unless it is swept. No consumer: nothing is
    # owed a receipt. Notes stay for the retention, which needs to know what was with the broker when; so the newest
    # ripe one may be older than the last sweep, after a longer timeout was registered: the sweep never goes back.
    "ripe": """\
SELECT w.window_no, w.to_snapshot::text, (SELECT clock_timestamp()) - w.closed_at
FROM (SELECT n.* FROM {schema}.outbox_window n
    WHERE n.closed_at <= (SELECT clock_timestamp() - min(c.receipt_timeout) FROM {schema}.inbox_consumer c)
    ORDER BY n.window_no DESC LIMIT 1) w, {schema}.outbox_leader p
WHERE pg_snapshot_xmax(w.to_snapshot) > pg_snapshot_xmax(p.reconciled)
    OR (pg_snapshot_xmax(w.to_snapshot) = pg_snapshot_xmax(p.reconciled)
        AND (SELECT count(*) FROM pg_snapshot_xip(w.to_snapshot))
            < (SELECT count(*) FROM pg_snapshot_xip(p.reconciled)))""",
    # Everything between the reconciled snapshot and this older position, once: what has no receipt is planned. Up to
    # base_seq lies what another cluster published: its ids say nothing here, and the re-base has looked at it.
    "sweep": """\
WITH fence AS MATERIALIZED (
    SELECT p.reconciled, p.base_seq FROM {schema}.outbox_leader p WHERE {fence} FOR NO KEY UPDATE),
published AS (
    SELECT m.id, m.task FROM fence f, {schema}.outbox_message m WHERE NOT m.held AND m.seq > f.base_seq
        AND m.xid >= pg_snapshot_xmax(f.reconciled) AND m.xid < pg_snapshot_xmax(%(upto)s::pg_snapshot)
        AND pg_visible_in_snapshot(m.xid, %(upto)s::pg_snapshot)
    UNION ALL
    SELECT m.id, m.task FROM {schema}.outbox_message m
    WHERE NOT m.held AND m.seq > (SELECT f.base_seq FROM fence f) AND m.xid = ANY (ARRAY(
        SELECT x FROM fence f, pg_snapshot_xip(f.reconciled) x
        WHERE pg_visible_in_snapshot(x, %(upto)s::pg_snapshot)))),
planned AS (
    INSERT INTO {schema}.outbox_due (message_id, due_at, publication, reason)
    SELECT m.id, clock_timestamp() + greatest(c.receipt_timeout - %(age)s, interval '0'), 1, 'redelivery'
    FROM published m JOIN {schema}.inbox_consumer c ON c.task = m.task
    WHERE NOT EXISTS (SELECT FROM {schema}.inbox_receipt r WHERE r.message_id = m.id AND r.consumer = m.task)
    ON CONFLICT (message_id) DO NOTHING RETURNING 1)
UPDATE {schema}.outbox_leader p SET reconciled = %(upto)s::pg_snapshot FROM fence WHERE {fence}
RETURNING (SELECT count(*) FROM planned)""",
}

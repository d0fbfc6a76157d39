"""Set the position anew in a database that came from another cluster. One READ COMMITTED transaction, in this order.

Snapshots and transaction ids mean something in their own cluster only. What the old ones say about the old rows is
still true, because both came in one dump; it is used once, here, and then replaced.
"""

from dataclasses import dataclass, fields
from typing import LiteralString

from relay.queries.render import rendered

# Every published row was in an opened window, so its seq is not above high_seq; and as the restored sequence is not
# below high_seq, rows of this cluster are above it. For the rest old ids and old snapshots agree.
# `behind`: the sequence was not carried over (logical replication does not), so a low seq may be old or new. Then only
# an outcome or a plan shows that it was published: rather a copy too many than a message too few.
_PUBLISHED = """\
(m.seq <= %(base_seq)s OR (m.seq <= %(high_seq)s
    AND (pg_visible_in_snapshot(m.xid, %(prev)s::pg_snapshot) OR (%(next)s::pg_snapshot IS NOT NULL
        AND m.seq <= %(last_seq)s AND pg_visible_in_snapshot(m.xid, %(next)s::pg_snapshot)))))
AND (m.seq > %(behind)s
    OR EXISTS (SELECT FROM {schema}.inbox_receipt r WHERE r.message_id = m.id AND r.consumer = m.task)
    OR EXISTS (SELECT FROM {schema}.outbox_due d WHERE d.message_id = m.id))"""

REBASE: dict[str, LiteralString] = {
    # READ COMMITTED: each statement sees what the lock has waited for. Large backlogs take their time, and the one pass
    # over all rows is a sequential scan. Durable: what is published next must not outlive it.
    "prepare": """\
SELECT set_config('transaction_isolation', 'read committed', true), set_config('lock_timeout', %(lock_timeout)s, true),
    set_config('statement_timeout', '0', true), set_config('enable_seqscan', 'on', true),
    set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit') IN ('off', 'local') THEN 'on'
        ELSE current_setting('synchronous_commit') END, true)""",
    # Waits for the writers and keeps new ones out; takes no transaction id (ACCESS EXCLUSIVE may), and no second
    # re-base gets in. Writers that wait for it have no seq yet: that is taken after the lock.
    "lock": "LOCK TABLE {schema}.outbox_message IN SHARE ROW EXCLUSIVE MODE",
    # Before this transaction has an id: its own would not be among the running ones and would count as seen.
    "snapshot": "SELECT pg_current_snapshot()::text, pg_current_xact_id_if_assigned() IS NULL",
    # Now with an id, and locked: a leader of this very cluster ends its statement before, and finds its epoch gone
    # after. Asked again under the lock: another relay may have done it meanwhile.
    "leader": """\
SELECT p.system_id, c.system_identifier, p.prev::text, p.next::text, p.reconciled::text, p.last_seq, p.base_seq,
    p.high_seq, (SELECT s.last_value FROM {schema}.outbox_message_seq s), p.epoch,
    p.system_id <> c.system_identifier
        OR pg_snapshot_xmax(p.prev) > pg_snapshot_xmax(%(snapshot)s::pg_snapshot)
        OR pg_snapshot_xmax(p.next) > pg_snapshot_xmax(%(snapshot)s::pg_snapshot) IS TRUE
        OR p.high_seq > (SELECT s.last_value FROM {schema}.outbox_message_seq s)
FROM {schema}.outbox_leader p, pg_control_system() c FOR NO KEY UPDATE OF p""",
    # What was published and not swept yet is still owed a look at its receipt; ids of this cluster cannot say when,
    # so it becomes a plan now. Before the rows get new ids: the old ones say which they are.
    "follow_up": f"""\
INSERT INTO {{schema}}.outbox_due (message_id, due_at, publication, reason, seq)
SELECT m.id, clock_timestamp() + k.receipt_timeout, 1, 'redelivery', m.seq
FROM {{schema}}.outbox_message m JOIN {{schema}}.inbox_consumer k ON k.task = m.task
WHERE NOT m.held AND m.seq > %(base_seq)s AND ({_PUBLISHED})
    AND NOT pg_visible_in_snapshot(m.xid, %(reconciled)s::pg_snapshot)
    AND NOT EXISTS (SELECT FROM {{schema}}.inbox_receipt r WHERE r.message_id = m.id AND r.consumer = m.task)
ON CONFLICT (message_id) DO NOTHING""",
    # Above everything that was ever handed out, here or there.
    "base": """\
SELECT greatest(nextval(%(sequence)s), %(high_seq)s, %(last_seq)s, coalesce(max(m.seq), 0))
FROM {schema}.outbox_message m""",
    # Everything unpublished becomes one transaction of this cluster, in the order it had; rows of a sequence that
    # began anew are the younger ones.
    "renumber": f"""\
UPDATE {{schema}}.outbox_message o SET xid = pg_current_xact_id(), seq = %(base)s + u.number
FROM (SELECT m.id, row_number() OVER (ORDER BY m.seq <= %(behind)s, m.seq) AS number FROM {{schema}}.outbox_message m
    WHERE NOT m.held AND NOT ({_PUBLISHED})) u
WHERE o.id = u.id""",
    "sequence": "SELECT setval(%(sequence)s, %(base)s + %(waiting)s + 1)",
    # Notes speak of the old cluster's snapshots. The new one says from when on everything below base_seq was published.
    "windows": "DELETE FROM {schema}.outbox_window",
    "position": """\
UPDATE {schema}.outbox_leader p SET epoch = p.epoch + 1, holder = NULL, holds_lock = false, expires_at = '-infinity',
    window_no = p.window_no + 1, prev = %(snapshot)s::pg_snapshot, next = NULL, reconciled = %(snapshot)s::pg_snapshot,
    last_seq = %(base)s, base_seq = %(base)s, high_seq = %(base)s,
    system_id = (SELECT system_identifier FROM pg_control_system())""",
    "note": """\
INSERT INTO {schema}.outbox_window (window_no, from_snapshot, to_snapshot, last_seq, epoch, relay)
SELECT p.window_no, p.prev, p.prev, p.last_seq, p.epoch, %(relay)s FROM {schema}.outbox_leader p""",
    "audit": """\
INSERT INTO {schema}.outbox_audit (who, action, why, affected, detail)
VALUES (%(who)s, 'adopt', %(why)s, %(waiting)s, %(detail)s::json)""",
}


@dataclass(frozen=True, slots=True)
class RebaseQueries:
    """The steps of a re-base for one schema."""

    prepare: bytes
    lock: bytes
    snapshot: bytes
    leader: bytes
    follow_up: bytes
    base: bytes
    renumber: bytes
    sequence: bytes
    windows: bytes
    position: bytes
    note: bytes
    audit: bytes


def rebase_queries_for(schema: str) -> RebaseQueries:
    return RebaseQueries(**{field.name: rendered(REBASE[field.name], schema) for field in fields(RebaseQueries)})

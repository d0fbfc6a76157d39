"""Re-base: go on in a database that was dumped and restored, or upgraded into another cluster.

Why it is needed. The position is a pair of snapshots, and a snapshot is a statement about transaction ids of one
cluster. In another cluster those ids are free again or long used: read on, and committed messages are skipped
(50 of 131 in the experiment) or published once more.

How it is noticed, on every new connection (`identify`): another system identifier; or a position ahead of the
cluster's own transaction ids; or a log ahead of its own sequence. One is enough. A physical copy has the same
identifier and an older but consistent state: nothing inside it can tell. A relay that has seen a higher epoch can, and
warns (`HistoryLost`).

    connected ──identify: moved──▶ standing aside ──adopt=ask: said, looked at again each second──▶ …
                                        └── adopt=auto (--adopt) ── re-base, audited ──▶ candidate like any other

Failures. The re-base is one transaction: interrupted anywhere, nothing happened and the next relay begins anew. Two
relays meet on the table lock, and the second finds nothing to do. A leader of this cluster that does not know better
finds its epoch gone. While the lock is waited for, new writers wait too, so the wait is short and is tried again.
"""

import json
from dataclasses import dataclass

import psycopg

from outbox.statements import quoted_schema
from relay.database import Database, ForeignPosition, connect, identify
from relay.events import ClusterAdopted, ClusterMoved, DatabaseUnavailable, HistoryLost, Observer
from relay.queries import Queries
from relay.queries.rebase import RebaseQueries, rebase_queries_for
from relay.settings import RelaySettings

_LOCK_TIMEOUT = "2s"
_DEADLINE = 3600.0
"""A backlog of many millions is rewritten in one statement."""


@dataclass(frozen=True, slots=True)
class Adopted:
    """What a re-base found."""

    waiting: int
    """Not published yet: they are next."""
    followed_up: int
    """Published, and not yet looked for: they have a plan until their receipt is there."""


def rebase(connection: Database, queries: RebaseQueries, *, schema_sequence: str, who: str, why: str) -> Adopted | None:
    """Set the position anew; None when there was nothing to do (any more)."""
    with connection.transaction():
        connection.execute(queries.prepare, {"lock_timeout": _LOCK_TIMEOUT})
        connection.execute(queries.lock, {})
        snapshot, before_own_id = connection.execute(queries.snapshot, {}).fetchall()[0]
        if not before_own_id:
            raise AssertionError("the snapshot of a re-base must be older than its transaction id")
        (old_id, new_id, prev, following, reconciled, last_seq, base_seq, high_seq, counter, epoch, moved) = (
            connection.execute(queries.leader, {"snapshot": snapshot}).fetchall()[0]
        )
        if not moved:
            return None
        position = {
            "prev": prev, "next": following, "reconciled": reconciled, "last_seq": last_seq, "base_seq": base_seq,
            "high_seq": high_seq, "behind": counter if counter < high_seq else -1, "snapshot": snapshot,
            "sequence": schema_sequence,
        }  # fmt: skip
        followed_up = connection.execute(queries.follow_up, position).rowcount
        (base,) = connection.execute(queries.base, position).fetchall()[0]
        waiting = connection.execute(queries.renumber, position | {"base": base}).rowcount
        step = position | {"base": base, "waiting": waiting, "relay": who}
        connection.execute(queries.sequence, step)
        connection.execute(queries.windows, {})
        connection.execute(queries.position, step)
        connection.execute(queries.note, step)
        detail = {
            "waiting": waiting, "followed_up": followed_up, "base_seq": base, "epoch": epoch,
            "from_cluster": str(old_id), "to_cluster": str(new_id),
        }  # fmt: skip
        connection.execute(queries.audit, step | {"who": who, "why": why, "detail": json.dumps(detail)})
    return Adopted(waiting, followed_up)


def adopt(settings: RelaySettings, observer: Observer, why: str) -> None:
    """The re-base on a connection of its own; whoever called looks again afterwards."""
    with connect(settings.database_url, settings.lease_ttl, "adopt", deadline=_DEADLINE) as connection:
        done = rebase(
            connection,
            rebase_queries_for(settings.schema),
            schema_sequence=f"{quoted_schema(settings.schema)}.outbox_message_seq",
            who=settings.name,
            why=why,
        )
    if done is not None:
        observer(ClusterAdopted(done.waiting, done.followed_up))


class Admission:
    """May this process lead here? Asked on every new connection of the lease thread, before anything else."""

    def __init__(self, settings: RelaySettings, queries: Queries, observer: Observer) -> None:
        self._settings = settings
        self._queries = queries
        self._observer = observer
        self._epoch = 0
        self.why = ""
        """Why it was not let in, the last time."""

    def admit(self, connection: Database) -> bool:
        """False: stand aside and ask again in a second; it has been said why. Raises what no waiting will change."""
        try:
            epoch = identify(connection, self._queries)
        except ForeignPosition as error:
            return self._adopted(str(error))
        self.why = ""
        self._compare(epoch)
        return True

    def _adopted(self, why: str) -> bool:
        if self._settings.adopt != "auto":
            if self.why != why:
                self._observer(ClusterMoved(why))
                self.why = why
            return False
        try:
            adopt(self._settings, self._observer, why)
        except psycopg.errors.LockNotAvailable:
            self.why = "adopt: waiting for transactions that write messages to end"
            self._observer(DatabaseUnavailable(self.why))
            return False
        self.why, self._epoch = "", 0
        return True

    def _compare(self, epoch: int) -> None:
        """A database that has seen less than this process has lost commits; one that nobody watched tells nothing."""
        if epoch < self._epoch:
            self._observer(
                HistoryLost(
                    f"the database is at epoch {epoch} and was at {self._epoch}: it was restored from an older copy or"
                    " failed over without its last commits; messages and effects written since then are gone"
                )
            )
        self._epoch = epoch

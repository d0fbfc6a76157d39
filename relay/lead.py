"""Leadership: at most one relay moves the position, and a dead one is replaced.

Who is authoritative
    The row `outbox_leader`: holder, epoch, expires_at by the database clock. The epoch rises at every acquisition and
    is part of every write of the relay (queries.FENCE). A relay that is wrong about being the leader can therefore
    publish a message once more, but it cannot move the position, and consumers absorb the copy.

States of this module (one thread, one connection of its own, so that a hung broker never costs the lease)

    standby ──acquired──▶ leading ──renewed──▶ leading
       ▲                     │
       ├── zero rows: another relay took the lease (lost)
       ├── trust ran out: no renewal succeeded in time (lost)
       ├── end(): the work connection broke, so what we know of the position is void
       └── stop(): released, the next relay need not wait for the lease to expire

What happens on each failure
    killed, frozen, host gone     the lease expires after its TTL; a standby takes it with a higher epoch
    frozen, then resumed          trust has run out on the monotonic clock; the first fenced write touches no row
    this connection breaks        reconnect and renew; leadership is kept if that succeeds before trust runs out
    database away                 nobody leads and nothing is published until it is back; nothing is lost
    wall clocks                   never asked; an expiry further ahead than 2 x TTL means the database clock jumped back
"""

import threading
import time
from datetime import timedelta

import psycopg

from relay.database import Database, connect, first_line, identify
from relay.events import DatabaseUnavailable, LeadershipGained, LeadershipLost, LeadershipReleased, Observer
from relay.lease import Term, trusted_until
from relay.queries import Queries
from relay.registry import Registration
from relay.settings import RelaySettings


class Leadership:
    """The lease of one outbox, seen from one process."""

    def __init__(
        self, settings: RelaySettings, queries: Queries, registration: Registration, observer: Observer
    ) -> None:
        self._settings = settings
        self._queries = queries
        self._registration = registration
        self._observer = observer
        self._ttl = timedelta(seconds=settings.lease_ttl)
        self._changed = threading.Condition()
        self._term: Term | None = None
        self._stopping = False
        self._fatal: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="outbox-lease", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wait_for_term(self, timeout: float) -> Term | None:
        """The current term, or None when nothing was acquired in time. Raises what made leading impossible."""
        with self._changed:
            self._changed.wait_for(lambda: self._term or self._fatal or self._stopping, timeout)
            if self._fatal:
                raise self._fatal
            return self._term

    def holds(self, term: Term) -> bool:
        with self._changed:
            current = self._term
        return current is not None and current.epoch == term.epoch and current.trusted(time.monotonic())

    def end(self, term: Term, why: str) -> None:
        """Give up this term but stay a candidate; the next one has a higher epoch."""
        with self._changed:
            ours = self._term is not None and self._term.epoch == term.epoch
            if ours:
                self._term = None
                self._changed.notify_all()
        if ours:
            self._observer(LeadershipLost(term.epoch, why))

    def stop(self) -> None:
        """Release the lease if it is held, and end the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(timeout=2 * self._settings.lease_ttl)

    def _run(self) -> None:
        while not self._stopping:
            try:
                with connect(self._settings.database_url, self._settings.lease_ttl, "lease") as connection:
                    identify(connection, self._queries)
                    self._serve(connection)
            except (psycopg.Error, ConnectionError) as error:
                self._observer(DatabaseUnavailable(first_line(error)))
                self._drop_untrusted_term()
                self._pause(min(0.5, self._settings.lease_ttl / 6))
            except BaseException as error:
                # Nobody would renew the lease any more: the process must not go on looking healthy.
                with self._changed:
                    self._fatal = error
                    self._term = None
                    self._changed.notify_all()
                return

    def _serve(self, connection: Database) -> None:
        while not self._stopping:
            if self._term is None:
                self._acquire(connection)
            else:
                self._renew(connection, self._term)
            self._registration.refresh(connection)
            self._pause(self._settings.lease_ttl / (3 if self._term else 12))
        self._registration.remove(connection)
        self._release(connection)

    def _acquire(self, connection: Database) -> None:
        started = time.monotonic()
        row = connection.execute(self._queries.acquire, {"holder": self._settings.holder, "ttl": self._ttl}).fetchone()
        if row is None:
            return
        term = Term(row[0], self._settings.holder, trusted_until(started, self._settings.lease_ttl))
        self._observer(LeadershipGained(term.epoch))
        self._set(term)

    def _renew(self, connection: Database, term: Term) -> None:
        started = time.monotonic()
        parameters = {"holder": term.holder, "epoch": term.epoch, "ttl": self._ttl}
        if connection.execute(self._queries.renew, parameters).fetchone() is None:
            self._lose(term, "another relay has taken the lease")
        else:
            self._set(term.renewed(started, self._settings.lease_ttl), only_if=term)

    def _release(self, connection: Database) -> None:
        term = self._term
        if term is not None:
            connection.execute(self._queries.release, {"holder": term.holder, "epoch": term.epoch})
            self._set(None)
            self._observer(LeadershipReleased(term.epoch))

    def _drop_untrusted_term(self) -> None:
        term = self._term
        if term is not None and not term.trusted(time.monotonic()):
            self._lose(term, "the database could not be reached to renew the lease")

    def _lose(self, term: Term, why: str) -> None:
        self._set(None)
        self._observer(LeadershipLost(term.epoch, why))

    def _set(self, term: Term | None, only_if: Term | None = None) -> None:
        with self._changed:
            # end() may have dropped the term while the renewal was on its way: then it stays dropped.
            if only_if is None or self._term is only_if:
                self._term = term
            self._changed.notify_all()

    def _pause(self, seconds: float) -> None:
        before = self._term
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._term is not before, seconds)

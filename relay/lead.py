"""Leadership: at most one relay moves the position, and a dead one is replaced.

Who is authoritative
    The row `outbox_leader`: holder, epoch, expires_at by the database clock. The epoch rises at every acquisition and
    is part of every write of the relay (queries.FENCE). A relay that is wrong about being the leader can therefore
    publish a message once more, but it cannot move the position, and consumers absorb the copy. The advisory lock
    (accelerator.py) and the notification on release only make others look sooner; neither is believed.

States of this module (one thread, one connection of its own, so that a hung broker never costs the lease)

    standby ──the lock is free──▶ suspecting ──same expiry after the grace──┐
       │  ▲                            │ it moved: the leader lives         │
       │  └────────────────────────────┘                                    │
       └──free, ours or expired──────────────────────────────────▶ acquire ◀┘
                                                                      │
                  leading ◀──zero rows: someone was quicker, standby──┴──▶ leading ──renewed──▶ leading
       ▲                     │
       ├── zero rows: another relay took the lease (lost)
       ├── trust ran out: no renewal succeeded in time (lost)
       ├── resigned: no broker for a while, and another relay has one (released)
       ├── end(): the work connection broke, so what we know of the position is void
       └── stop(): released, the next relay need not wait for the lease to expire

    A term is taken only for a work thread that waits for one (`wait_for_term`). A relay whose work thread still hangs
    in an old term would hold the lease and publish nothing. A relay that cannot reach the broker leaves a free lease
    to one that can.

What happens on each failure
    killed                        its session ends and frees the lock; a standby waits the grace and takes the lease
    frozen, host or network gone  the lease expires after its TTL; a standby takes it with a higher epoch
    frozen, then resumed          trust has run out on the monotonic clock; the first fenced write touches no row
    this connection breaks        seen at once on its socket: reconnect, lock, renew; standbys see the expiry move
    answers are swallowed         every statement has a deadline (session.py); then as above
    the work connection breaks    end(): the same relay takes the lease again, with a new epoch and a fresh position
    the broker is away for all    the leader stays and waits
    the broker is away for it     after resign_seconds it releases, if outbox_relay shows a relay that reaches it
    database away                 nobody leads and nothing is published until it is back; nothing is lost
    database refuses us           at the start: the process ends and says why; later it is waited for like an outage
    wall clocks                   never asked; an expiry further ahead than 2 x TTL means the database clock jumped back
    behind a pooler               no session: no lock and no LISTEN, said once; a dead leader is replaced after its TTL
    this thread crashes           wait_for_term raises it: the process ends instead of looking healthy
"""

import contextlib
import random
import threading
import time
from datetime import timedelta

import psycopg
from tenacity import RetryCallState, RetryError, Retrying, retry_if_exception, wait_exponential_jitter

from relay.accelerator import Accelerator
from relay.bell import Bell
from relay.database import ReadOnlyStandby, RefusedByServer, UnsuitableRole, connect, first_line
from relay.events import (
    DatabaseConnected,
    LeadershipGained,
    LeadershipLost,
    LeadershipReleased,
    LeaseRenewed,
    Observer,
    PoolerFound,
)
from relay.lease import Look, Suspicion, Term, suspect, trusted_until
from relay.outage import Outage
from relay.queries import Queries
from relay.queries.leader import LISTEN
from relay.rebase import Admission
from relay.registry import Registration
from relay.session import Session
from relay.settings import RelaySettings

_POLL_SECONDS = 0.1
_ASIDE_SECONDS = 1.0
_GRACE_SECONDS = (0.15, 0.25)
# Waiting does not mend these; but a relay that was once let in rather waits than dies of a failover or a rotation.
_REFUSALS = (RefusedByServer, UnsuitableRole, ReadOnlyStandby, psycopg.errors.InsufficientPrivilege)


class Leadership:
    """The lease of one outbox, seen from one process."""

    def __init__(
        self, settings: RelaySettings, queries: Queries, registration: Registration, observer: Observer
    ) -> None:
        self._settings = settings
        self._queries = queries
        self._registration = registration
        self._observer = observer
        self._outage = Outage("lease", observer)
        self._admission = Admission(settings, queries, observer)
        self._ttl = timedelta(seconds=settings.lease_ttl)
        self._poll = min(_POLL_SECONDS, settings.lease_ttl / 12)
        self._bell = Bell()
        self._changed = threading.Condition()
        self._term: Term | None = None
        self._last: Term | None = None
        self._suspicion: Suspicion | None = None
        self._wanted = False
        self._welcomed = self._healthy = False
        self._stopping = False
        self._fatal: BaseException | None = None
        self.session_features = True
        """False behind a pooler: no lock, no LISTEN, no prepared statements. Known once the database has answered."""
        self._thread = threading.Thread(target=self._run, name="outbox-lease", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wait_for_term(self, timeout: float) -> Term | None:
        """The current term, or None when nothing was acquired in time. Raises what made leading impossible."""
        with self._changed:
            if not self._wanted:
                self._wanted = True
                self._bell.ring()
            self._changed.wait_for(lambda: self._term or self._fatal or self._stopping, timeout)
            if self._fatal:
                raise self._fatal
            self._wanted = self._term is None
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
            self._bell.ring()

    def stop(self) -> None:
        """Release the lease if it is held, and end the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._bell.ring()
        self._thread.join(timeout=2 * self._settings.lease_ttl)

    def _run(self) -> None:
        try:
            while not self._stopping:
                # A connection that served and broke is replaced at once; one that never served, ever more slowly.
                retrying = Retrying(
                    retry=retry_if_exception(self._worth_waiting),
                    wait=wait_exponential_jitter(multiplier=0.05, max=self._settings.lease_ttl / 3, jitter=0.1),
                    stop=lambda _: self._stopping or self._healthy,
                    sleep=self._sleep,
                    after=self._failed,
                )
                with contextlib.suppress(RetryError):
                    retrying(self._live)
        except BaseException as error:
            # Nobody would renew the lease any more: the process must not go on looking healthy.
            with self._changed:
                self._fatal = _explained(error)
                self._term = None
                self._changed.notify_all()

    def _worth_waiting(self, error: BaseException) -> bool:
        known = isinstance(error, psycopg.Error | ConnectionError)
        return known and (self._welcomed or not isinstance(error, _REFUSALS))

    def _failed(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if error is not None:
            self._outage.failed(first_line(error))
        term = self._term
        if term is not None and not term.trusted(time.monotonic()):
            self._lose(term, "the database could not be reached to renew the lease")

    def _sleep(self, seconds: float) -> None:
        self._bell.wait(seconds)

    def _live(self) -> None:
        """As long as one connection lasts."""
        self._healthy = False
        ttl = self._settings.lease_ttl
        # Half a TTL: after an answer that never comes there must be time to reconnect and renew before trust runs out.
        with connect(self._settings.database_url, ttl, "lease", deadline=ttl / 2) as connection:
            if not self._admission.admit(connection):
                self._stand_aside(connection)
                return
            self._begin(connection)
            accelerator = Accelerator(connection, self._queries)
            while not self._stopping:
                pause = self._step(connection, accelerator)
                self._registration.refresh(connection)
                self._served()
                if self._bell.wait(pause, connection.fileno()):
                    connection.notified()  # or the end of the connection, which it raises
            self._release(connection)
            self._registration.remove(connection)

    def _stand_aside(self, connection: Session) -> None:
        """This database is another cluster's: alive and seen, but not a candidate until it is adopted."""
        if self._term is not None:
            self._lose(self._term, "the database is not the one it was")
        self._registration.failed(self._admission.why)
        self._registration.refresh(connection)
        self._bell.wait(_ASIDE_SECONDS)
        if self._stopping:
            self._registration.remove(connection)

    def _served(self) -> None:
        if not self._healthy:
            self._healthy = self._welcomed = True
            self._outage.over()
            self._observer(DatabaseConnected("lease"))

    def _begin(self, connection: Session) -> None:
        self._suspicion = None
        if connection.own:
            connection.execute(LISTEN)
        elif self.session_features:
            self._observer(PoolerFound("the pooler shares sessions, so a dead leader is replaced after its lease only"))
        self.session_features = connection.own

    def _step(self, connection: Session, accelerator: Accelerator) -> float:
        """What there is to do now; returns how long there will be nothing."""
        term = self._term
        if term is not None:
            return self._renew(connection, accelerator, term)
        if not self._wanted:
            return self._poll
        look = self._look(connection)
        if look is None:
            return self._poll
        now = time.monotonic()
        self._suspicion = suspect(self._suspicion, look, now, random.uniform(*_GRACE_SECONDS))  # noqa: S311
        if self._suspicion is not None and not self._suspicion.confirmed(now):
            return self._suspicion.until - now
        if look.free or self._suspicion is not None:
            return self._acquire(connection, accelerator, look)
        return self._poll

    def _look(self, connection: Session) -> Look | None:
        parameters = {"holder": self._settings.holder, "ttl": self._ttl, "probe": connection.own}
        row = connection.execute(self._queries.look, parameters).fetchone()
        return None if row is None else Look(*row)

    def _acquire(self, connection: Session, accelerator: Accelerator, look: Look) -> float:
        if self._registration.broker_lost_for() and self._registration.better_peer(connection):
            return self._poll
        locked = accelerator.take(look.epoch + 1)
        dead = None if look.free else look.expires_at
        started = time.monotonic()
        parameters = {"holder": self._settings.holder, "ttl": self._ttl, "seen": look.epoch, "lock": locked}
        row = connection.execute(self._queries.acquire, parameters | {"dead": dead}).fetchone()
        self._suspicion = None
        if row is None:
            accelerator.drop()
            return self._poll
        term = Term(row[0], self._settings.holder, trusted_until(started, self._settings.lease_ttl))
        self._last = term
        self._observer(LeadershipGained(term.epoch))
        self._set(term)
        return self._settings.lease_ttl / 3

    def _renew(self, connection: Session, accelerator: Accelerator, term: Term) -> float:
        if self._registration.broker_lost_for() >= self._settings.resign_seconds and self._registration.better_peer(
            connection
        ):
            self._lose(term, "the broker cannot be reached from here, and another relay reaches it")
            connection.execute(self._queries.release, {"holder": term.holder, "epoch": term.epoch})
            accelerator.drop()
            return self._poll
        started = time.monotonic()
        parameters = {"holder": term.holder, "epoch": term.epoch, "ttl": self._ttl}
        locked = accelerator.take(term.epoch)
        if connection.execute(self._queries.renew, parameters | {"lock": locked}).fetchone() is None:
            accelerator.drop()
            self._lose(term, "another relay has taken the lease")
            return self._poll
        self._set(term.renewed(started, self._settings.lease_ttl), only_if=term)
        self._observer(LeaseRenewed(term.epoch, time.monotonic() - started))
        return self._settings.lease_ttl / 3

    def _release(self, connection: Session) -> None:
        """Also a term that was ended: the row still has our name. The fence keeps another's lease untouched."""
        last = self._last
        if last is not None:
            held = self._term is not None
            connection.execute(self._queries.release, {"holder": last.holder, "epoch": last.epoch})
            self._set(None)
            if held:
                self._observer(LeadershipReleased(last.epoch))

    def _lose(self, term: Term, why: str) -> None:
        self._set(None, only_if=term)
        self._observer(LeadershipLost(term.epoch, why))

    def _set(self, term: Term | None, only_if: Term | None = None) -> None:
        with self._changed:
            # end() may have dropped the term while the renewal was on its way: then it stays dropped.
            if only_if is None or self._term is only_if:
                self._term = term
            self._changed.notify_all()


def _explained(error: BaseException) -> BaseException:
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return UnsuitableRole(f"{first_line(error)}; give the relay's role its rights (deploy/roles.sql)")
    return error

"""The work of one term: the parts of a relay that need the lease, put together, and the loop over them.

log (new messages) ─┐
plans (due)         ├─▶ dispatch ─▶ publisher          parking: what is paused, closed or blocked, and its release
resumed window     ─┘                                  reconcile: what was published and has no receipt
"""

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from relay.bell import Bell
from relay.cycle import Cycle
from relay.database import Database, connect
from relay.dispatch import Dispatch
from relay.due import Due
from relay.events import Observer
from relay.lease import Term
from relay.parking import Parking
from relay.publish import Publisher
from relay.publishing import Publishing
from relay.queries import Queries
from relay.queues import Queues
from relay.read import Log
from relay.reconcile import Reconcile
from relay.session import Session
from relay.settings import RelaySettings
from relay.wakeup import BUSY_ROWS, Notified, Polling, Wakeup

_DUE_SECONDS = 0.2
_PAUSED_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What outlives a term."""

    settings: RelaySettings
    queries: Queries
    publisher: Publisher
    queue_for: Callable[[str, str | None], str]
    holds: Callable[[Term], bool]
    stop: threading.Event
    bell: Bell
    observer: Observer
    moved: Callable[[], None]
    """Told at every turn of the loop."""


class _EverythingPaused(Exception):
    """In the middle of a window. It stays open; afterwards it is read anew, since what was read is old by then."""


class Work:
    def __init__(self, around: Surroundings, term: Term, connection: Session) -> None:
        settings, queries = around.settings, around.queries
        self._around = around
        self._term = term
        self._connection = connection
        self._log = Log(connection, queries, term, settings.batch_size, ahead=self._second_connection)
        self._publishing = publishing = Publishing(
            around.publisher,
            term,
            relay=settings.name,
            holds=around.holds,
            stop=around.stop,
            observer=around.observer,
            default_queue=settings.default_queue,
            outage=self._outage,
        )
        queues = Queues()
        block = settings.ordering_on_dead == "block"
        dispatch = Dispatch(publishing, queues, around.queue_for, block_on_dead=block)
        self._parking = Parking(connection, queries, term, queues, around.observer)
        self._cycle = Cycle(self._log, dispatch, self._before_batch)
        self._due = Due(connection, queries, self._log, dispatch, self._parking, settings.batch_size)
        self._reconcile = Reconcile(connection, queries, self._log, term, around.observer, relay=settings.name)
        self._wakeup = self._make_wakeup()
        self._plans_at = 0.0

    def run(self, *, once: bool = False) -> None:
        """Until the process is told to stop; raises LeaseLost when the term is over. `once`: until nothing is left."""
        resumed = False
        while not self._around.stop.is_set():
            self._around.moved()
            self._parking.step()
            if self._parking.everything_paused:
                self._publishing.require_trust()
                if once:
                    return
                resumed = False
                self._around.bell.wait(_PAUSED_SECONDS)
                continue
            try:
                if not resumed:
                    self._cycle.resume()
                    resumed = True
                self._wakeup.before_look()
                rows = self._cycle.step()
            except _EverythingPaused:
                resumed = False
                continue
            planned = self._look_at_plans(at_once=once)
            if once and not rows + planned:
                return
            if not planned:
                self._wakeup.wait(rows, self._plans_at - time.monotonic())

    def _look_at_plans(self, *, at_once: bool = False) -> int:
        if not at_once and time.monotonic() < self._plans_at:
            return 0
        planned = self._due.step()
        self._reconcile.step()
        self._plans_at = time.monotonic() + (0.0 if planned else _DUE_SECONDS)
        return planned

    def _before_batch(self, rows: int) -> None:
        """A window may take minutes: pauses and plans do not wait for its end."""
        self._around.moved()
        if rows >= BUSY_ROWS:
            self._wakeup.occupied()
        self._parking.step()
        if self._parking.everything_paused:
            raise _EverythingPaused
        self._look_at_plans()

    def _outage(self, begins: bool) -> None:
        if begins:
            self._wakeup.occupied()
        else:
            self._log.appetite.restart()

    def _make_wakeup(self) -> Wakeup:
        settings, queries, bell = self._around.settings, self._around.queries, self._around.bell
        if settings.wakeup == "gate" and self._connection.own:
            return Notified(self._connection, queries, self._term, bell, self._around.observer)
        return Polling(self._connection, queries, self._term, bell, settings.poll_seconds)

    def _second_connection(self) -> AbstractContextManager[Database]:
        settings = self._around.settings
        return connect(settings.database_url, settings.lease_ttl, "read", wanted=lambda: self._around.holds(self._term))

"""Reconcile: what was published long enough ago and has no receipt is planned again, with the same id.

The log is swept once, in the order it was published, up to a position that is at least one receipt timeout old. The
positions of this term are remembered in memory, one a second: they are snapshots that the leader row held, so they are
as good as persisted ones, and like every snapshot in memory they die with the connection and the term.

This is the plain form: it asks the receipts only. It does not ask the broker whether the message is still waiting
there, so a long queue gets copies it did not need; consumers absorb them.
"""

import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from relay.database import Database
from relay.events import MissingPlanned, Observer
from relay.lease import LeaseLost, Term
from relay.queries import Queries
from relay.read import Log

_EVERY_SECONDS = 1.0


class Reconcile:
    """One term's sweep behind the position."""

    def __init__(
        self,
        connection: Database,
        queries: Queries,
        log: Log,
        term: Term,
        observer: Observer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = connection
        self._queries = queries
        self._log = log
        self._observer = observer
        self._fence: dict[str, Any] = {"epoch": term.epoch, "holder": term.holder}
        self._positions: deque[tuple[float, str]] = deque()
        self._clock = clock
        self._next = clock()

    def step(self) -> None:
        """At most once a second: remember where the log is, and sweep up to where it was a receipt timeout ago."""
        now = self._clock()
        if now < self._next:
            return
        self._next = now + _EVERY_SECONDS
        if not self._positions or self._positions[-1][1] != self._log.published:
            self._positions.append((now, self._log.published))
        timeout = self._connection.execute(self._queries.receipt_timeout, {}).fetchall()[0][0]
        if timeout is None:
            # No consumer is registered: nothing is owed a receipt, and the sweep waits for the first one.
            return
        self._sweep(now, timeout)

    def _sweep(self, now: float, timeout: float) -> None:
        ripe = None
        while self._positions and now - self._positions[0][0] >= timeout:
            ripe = self._positions.popleft()
        if ripe is None:
            return
        noted, snapshot = ripe
        parameters = self._fence | {"upto": snapshot, "age": timedelta(seconds=now - noted)}
        row = self._connection.execute(self._queries.sweep, parameters).fetchone()
        if row is None:
            raise LeaseLost
        if row[0]:
            self._observer(MissingPlanned(row[0]))

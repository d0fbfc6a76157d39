"""Reconcile: what was published long enough ago and has no receipt is planned again, with the same id.

Once a second of publishing the leader notes how far the log is with the broker (`outbox_window`). The log is swept
once, in that order, up to the newest note older than a receipt timeout. Notes are rows, not memory: leaders may come
and go faster than the timeout. They go with the messages they speak of (prune).

This is the plain form: it asks the receipts only. It does not ask the broker whether the message is still waiting
there, so a long queue gets copies it did not need; consumers absorb them.
"""

import time
from collections.abc import Callable
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
        *,
        relay: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = connection
        self._queries = queries
        self._log = log
        self._observer = observer
        self._fence: dict[str, Any] = {"epoch": term.epoch, "holder": term.holder}
        self._relay = relay
        self._clock = clock
        self._next = clock()
        self._noted = ""

    def step(self) -> None:
        """At most once a second: note where the log is, and sweep up to where it was a receipt timeout ago."""
        now = self._clock()
        if now < self._next:
            return
        self._next = now + _EVERY_SECONDS
        if self._noted != self._log.published:
            self._connection.execute(self._queries.note, self._fence | {"relay": self._relay})
            self._noted = self._log.published
        self._sweep()

    def _sweep(self) -> None:
        ripe = self._connection.execute(self._queries.ripe, {}).fetchone()
        if ripe is None:
            return
        _, snapshot, age = ripe
        parameters = self._fence | {"upto": snapshot, "age": age}
        row = self._connection.execute(self._queries.sweep, parameters).fetchone()
        if row is None:
            raise LeaseLost
        if row[0]:
            self._observer(MissingPlanned(row[0]))

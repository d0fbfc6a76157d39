"""Let parked messages go again: when a pause ends, a closed queue takes a probe, or a key is free.

Everything here is a look at the database about once a second; what is parked lies in `outbox_due` and costs nothing
while it waits, however much it is. A new leader learns from there which queues were closed.
"""

import time
from typing import Any

from relay.database import Database
from relay.events import MessagesReleased, Observer
from relay.lease import Term
from relay.outcome import EVERYTHING
from relay.queries import Queries
from relay.queues import Queues

_LOOK_SECONDS = 0.5
_ALL_KEYS_SECONDS = 30.0
_MOST = 5_000
_MOST_KEYS = 1_000


class Parking:
    """One term's parked messages."""

    def __init__(self, connection: Database, queries: Queries, term: Term, queues: Queues, observer: Observer) -> None:
        self._connection = connection
        self._queries = queries
        self._fence: dict[str, Any] = {"epoch": term.epoch, "holder": term.holder}
        self._queues = queues
        self._observer = observer
        self._next_look = 0.0
        self._next_keys = 0.0
        self._first_look = True

    @property
    def everything_paused(self) -> bool:
        return EVERYTHING in self._queues.paused

    def step(self) -> None:
        """At most twice a second: learn what is paused, and release what may go."""
        now = time.monotonic()
        if now < self._next_look and not self._queues.reopened:
            return
        self._next_look = now + _LOOK_SECONDS
        self._queues.reopened = False
        self._queues.paused = dict(self._connection.execute(self._queries.paused, {}).fetchall())
        if self.everything_paused:
            return
        blocked = self._connection.execute(self._queries.blocked, {}).fetchall()
        for by, queue, why in blocked:
            if by == "pause" and queue not in self._queues.paused:
                self._release(by, queue, _MOST)
            elif by == "queue" and self._first_look:
                self._queues.remember(queue, why or "closed by an earlier leader", now)
        self._first_look = False
        self._probe({queue for by, queue, _ in blocked if by == "queue"}, now)
        if any(by == "dead" for by, _, _ in blocked):
            self.release_keys([key for (key,) in self._connection.execute(self._queries.decided, self._fence)])
        if any(by == "key" for by, _, _ in blocked) and now >= self._next_keys:
            keys = [key for (key,) in self._connection.execute(self._queries.waiting_keys, {"most": _MOST_KEYS})]
            self._next_keys = now + (_ALL_KEYS_SECONDS if len(keys) < _MOST_KEYS else 0.0)
            self.release_keys(keys)

    def release_keys(self, keys: list[str]) -> None:
        """The first parked message of these keys has left: those behind it may follow."""
        if keys:
            # At least one of each, which brings the next of its key when it leaves.
            parameters = self._fence | {"keys": keys, "most": max(1, _MOST // len(keys))}
            self._connection.execute(self._queries.unpark_keys, parameters)

    def _probe(self, parked: set[str], now: float) -> None:
        for queue, count in self._queues.probes(now).items():
            if queue in parked:
                self._release("queue", queue, min(count, _MOST))
            else:
                self._queues.forget(queue)
        # Open again, and some are still parked.
        for queue in parked - self._queues.known:
            self._release("queue", queue, _MOST)

    def _release(self, by: str, queue: str, most: int) -> None:
        parameters = self._fence | {"by": by, "queue": queue, "most": most}
        row = self._connection.execute(self._queries.unpark, parameters).fetchone()
        if row and row[0]:
            self._observer(MessagesReleased(queue, row[0]))
            if row[0] == _MOST:
                self._next_look = 0.0

"""When to look at the log again: at once after a commit, without asking all the time.

The flag `outbox_wake` (a logged sequence) says whether the relay is asleep (2) or awake (1). A trigger on the log reads
it: asleep, the writer's transaction carries a NOTIFY; awake, it is silent, because NOTIFY at every commit makes the
commits of all writers queue up behind one lock.

    asleep ──8 rows in a window, or 8 windows in 40 ms──▶ awake: a look every 2 ms, writers silent
       ▲                                                      │
       └── flag := 2, snapshot S, one more look, watch S ◀────┘ less than 6 rows in 30 ms

Going to sleep must lose nobody who still read "awake":
    A writer has its transaction id before its trigger reads the flag. If it read "awake", it did so before our setval
    (a sequence ignores snapshots), so its id is lower than ours. The snapshot S taken after our setval committed
    therefore sees it as committed, and the next look finds its rows, or as running: then it is *watched*. Watched
    transactions are looked after every 2 to 20 ms until they have ended. A snapshot that shortens the list of watched
    ones must be taken *before* the look, never after it.
    If it read "asleep", it notifies, and a notification is delivered only after its commit is visible.

Failures
    listener gone, trigger missing, replication role    the fallback look once a second finds the rows
    somebody wrote the flag (a zombie, a restore)       the fallback writes it again
    no session of one's own (a pooler), wakeup = poll   the flag stays 1; adaptive polling, which is also the truth
                                                        behind everything above
"""

import re
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from relay.bell import Bell
from relay.database import Database
from relay.events import Observer, RelayWoken
from relay.lease import Term
from relay.queries import Queries

BUSY_ROWS = 8
_BUSY_LOOKS, _BUSY_SECONDS = 8, 0.04
_AWAKE_SECONDS = 0.002
_QUIET_ROWS, _QUIET_SECONDS = 6, 0.03
_WATCH_FIRST, _WATCH_GROWTH, _WATCH_LONGEST = 0.002, 1.3, 0.02
_FALLBACK_SECONDS = 1.0
# An idle log is looked at ever less often, up to the setting; the first message makes it quick again.
_POLL_GROWTH, _POLL_FIRST = 1.5, 0.01

_XIDS = re.compile(r"\d+")


class Wakeup(Protocol):
    def before_look(self) -> None: ...

    def occupied(self) -> None:
        """The next look is far off: a large batch comes before it, or the broker is away."""

    def wait(self, rows: int, most: float) -> None:
        """After a look that found so many rows: until the next one is worth while, at most so many seconds."""


class Polling:
    """Ask ever more seldom. The flag says awake, so that no writer notifies."""

    def __init__(self, connection: Database, queries: Queries, term: Term, bell: Bell, longest: float) -> None:
        self._bell = bell
        self._longest = longest
        self._pause = 0.0
        connection.execute(queries.awake, {"epoch": term.epoch, "holder": term.holder})

    def before_look(self) -> None:
        pass

    def occupied(self) -> None:
        pass

    def wait(self, rows: int, most: float) -> None:
        self._pause = 0.0 if rows else min(self._longest, self._pause * _POLL_GROWTH or self._longest * _POLL_FIRST)
        if self._pause:
            self._bell.wait(min(self._pause, most))


class Notified:
    """Sleep until a writer says so; see above."""

    def __init__(
        self,
        connection: Database,
        queries: Queries,
        term: Term,
        bell: Bell,
        observer: Observer,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = connection
        self._queries = queries
        self._fence: dict[str, Any] = {"epoch": term.epoch, "holder": term.holder}
        self._bell = bell
        self._observer = observer
        self._clock = clock
        self._awake = False
        self._watched: set[str] = set()
        self._pause = _WATCH_FIRST
        self._busy: deque[float] = deque(maxlen=_BUSY_LOOKS)
        self._quiet_since = 0.0
        self._quiet_rows = 0
        self._look_again = True
        self._told = False
        self._fallback_at = 0.0
        connection.add_notify_handler(lambda _: self._hear())
        connection.execute(queries.listen)
        self._fall_asleep()

    def before_look(self) -> None:
        self._told = False
        if self._watched:
            self._watched &= self._running()
            if not self._watched:
                self._pause = _WATCH_FIRST

    def occupied(self) -> None:
        # Notifications would be of no use, and in an outage of days they would fill PostgreSQL's queue of them, which
        # is when commits fail.
        if not self._awake:
            self._wake_up()

    def wait(self, rows: int, most: float) -> None:
        if self._awake:
            self._stay_awake(rows, most)
        elif self._is_busy(rows):
            self._wake_up()
        elif self._look_again:
            # The look that must follow the snapshot of falling asleep.
            self._look_again = False
            self._sleep(0.0 if rows else most)
        else:
            self._sleep(most)

    def _is_busy(self, rows: int) -> bool:
        now = self._clock()
        if rows:
            self._busy.append(now)
        return rows >= BUSY_ROWS or (len(self._busy) == _BUSY_LOOKS and now - self._busy[0] < _BUSY_SECONDS)

    def _wake_up(self) -> None:
        self._connection.execute(self._queries.awake, self._fence)
        self._awake = True
        self._quiet_since, self._quiet_rows = self._clock(), 0

    def _stay_awake(self, rows: int, most: float) -> None:
        now = self._clock()
        self._quiet_rows += rows
        if now - self._quiet_since < _QUIET_SECONDS:
            if rows < BUSY_ROWS:
                self._bell.wait(min(_AWAKE_SECONDS, most))
            return
        if self._quiet_rows >= _QUIET_ROWS:
            self._quiet_since, self._quiet_rows = now, 0
            return
        self._fall_asleep()

    def _fall_asleep(self) -> None:
        """Returns without waiting: the caller's next look comes after the snapshot."""
        self._connection.execute(self._queries.asleep, {})
        self._watched = self._running()
        self._awake = False
        self._look_again = True
        self._pause = _WATCH_FIRST
        self._busy.clear()
        self._fallback_at = self._clock() + _FALLBACK_SECONDS

    def _sleep(self, most: float) -> None:
        if self._told:
            return
        pause = min(most, _FALLBACK_SECONDS)
        if self._watched:
            pause = min(pause, self._pause)
            self._pause = min(self._pause * _WATCH_GROWTH, _WATCH_LONGEST)
        if pause > 0 and self._bell.wait(pause, self._connection.fileno()) and self._heard():
            self._observer(RelayWoken("notify"))
        elif self._clock() >= self._fallback_at:
            self._fallback_at = self._clock() + _FALLBACK_SECONDS
            self._connection.execute(self._queries.reassert, {})
            self._observer(RelayWoken("timer"))

    def _running(self) -> set[str]:
        row = self._connection.execute(self._queries.snapshot, {}).fetchone()
        return set(_XIDS.findall(str(row[0]).split(":")[2])) if row else set()

    def _hear(self) -> None:
        self._told = True

    def _heard(self) -> bool:
        """Also learns here that the server has closed the connection."""
        self._connection.pgconn.consume_input()
        while self._connection.pgconn.notifies() is not None:
            self._told = True
        return self._told

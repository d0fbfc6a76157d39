"""Tell of a database that is away: at once, then ever more rarely, and at once again when the reason changes."""

import time
from collections.abc import Callable

from relay.events import DatabaseUnavailable, Observer

_FIRST_SECONDS, _LONGEST_SECONDS = 1.0, 60.0


class Outage:
    """The failures of one of the relay's connections since it last served."""

    def __init__(self, role: str, observer: Observer, clock: Callable[[], float] = time.monotonic) -> None:
        self._role = role
        self._observer = observer
        self._clock = clock
        self._failures = 0
        self._next = 0.0
        self._gap = _FIRST_SECONDS
        self._error = ""

    def failed(self, error: str) -> None:
        now = self._clock()
        self._failures += 1
        if error != self._error:
            self._error, self._gap = error, _FIRST_SECONDS
        elif now < self._next:
            return
        else:
            self._gap = min(self._gap * 2, _LONGEST_SECONDS)
        self._next = now + self._gap
        self._observer(DatabaseUnavailable(error, self._role, self._failures))

    def over(self) -> None:
        self._failures, self._error = 0, ""

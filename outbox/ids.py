"""Message ids: UUIDv7, unique across threads and forks, ascending within one generator.

The time inside an id only keeps the index compact. No decision ever reads it: client clocks lie.
"""

import os
import threading
import time
from uuid import UUID

_VERSION_AND_VARIANT = (0x7 << 76) | (0b10 << 62)
_COUNTER_BITS = 74
_COUNTER_MASK = (1 << _COUNTER_BITS) - 1


class MessageIds:
    """Ascending UUIDv7s: 48 bits of milliseconds, then a random start that is stepped within one millisecond."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._millis = 0
        self._counter = 0
        # A fork copies the lock as it is: held by another thread at that moment, the child would wait for ever.
        os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        # The child would step through the parent's ids: start from fresh randomness.
        self._millis = 0

    def new(self) -> UUID:
        with self._lock:
            now = time.time_ns() // 1_000_000
            if now > self._millis:
                self._millis = now
                self._counter = self._random_start()
            else:
                # Same millisecond, or the clock went back: stay on the last one and step.
                self._counter += 1 + int.from_bytes(os.urandom(3))
            if self._counter > _COUNTER_MASK:
                self._millis += 1
                self._counter = self._random_start()
            return UUID(int=self._layout(self._millis, self._counter))

    @staticmethod
    def _random_start() -> int:
        # The top bit stays free, so that stepping practically never overflows.
        return int.from_bytes(os.urandom(10)) >> (80 - _COUNTER_BITS + 1)

    @staticmethod
    def _layout(millis: int, counter: int) -> int:
        high, low = counter >> 62, counter & ((1 << 62) - 1)
        return (millis & ((1 << 48) - 1)) << 80 | _VERSION_AND_VARIANT | high << 64 | low

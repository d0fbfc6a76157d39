"""Queues that take nothing now, as one term knows them: paused by an operator, or refusing what is sent to them.

A refusing queue is closed: its messages are parked without being tried. After a pause, growing and jittered, one
message is let out as a probe (half open); if the broker takes it, the queue is open and everything parked follows.

    open ──refused──▶ closed ──probe_at──▶ half open ──accepted──▶ open
                        ▲                      └──refused──▶ closed, for twice as long
"""

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_FIRST_SECONDS = 1.0
_LONGEST_SECONDS = 60.0


@dataclass(slots=True)
class _Closed:
    why: str
    pause: float
    probe_at: float
    probing: bool = False


class Queues:
    """Times are on the monotonic clock, given by the caller."""

    def __init__(self) -> None:
        self.paused: dict[str, str] = {}
        self._closed: dict[str, _Closed] = {}

    @property
    def troubled(self) -> bool:
        """Some queue is closed or half open: only then is it worth asking which queues took something."""
        return bool(self._closed)

    @property
    def known(self) -> set[str]:
        """Closed or half open."""
        return set(self._closed)

    @property
    def closed(self) -> Mapping[str, str]:
        """Those whose messages are parked untried; a half-open one lets its probe through."""
        return {queue: state.why for queue, state in self._closed.items() if not state.probing}

    def refuse(self, queue: str, why: str, now: float) -> bool:
        """The broker refused a message for this queue. True if it was open until now."""
        known = self._closed.get(queue)
        pause = min(_LONGEST_SECONDS, known.pause * 2) if known else _FIRST_SECONDS
        self._closed[queue] = _Closed(why, pause, now + pause * random.uniform(0.8, 1.2))  # noqa: S311 (jitter)
        return known is None

    def remember(self, queue: str, why: str, now: float) -> None:
        """Messages were parked for it by a leader before: closed until a probe, which is due at once."""
        self._closed.setdefault(queue, _Closed(why, _FIRST_SECONDS, now))

    def accepted(self, queues: Iterable[str]) -> list[str]:
        """The broker took messages for these; returns those that are open again."""
        opened = [queue for queue in queues if queue in self._closed] if self._closed else []
        for queue in opened:
            del self._closed[queue]
        return opened

    def probes(self, now: float) -> list[str]:
        """Closed queues whose time has come: they are half open from now on."""
        ready = [queue for queue, state in self._closed.items() if not state.probing and state.probe_at <= now]
        for queue in ready:
            self._closed[queue].probing = True
        return ready

    def forget(self, queue: str) -> None:
        """Nothing is parked for it any more, so there is nothing to probe it with: the next message will tell."""
        self._closed.pop(queue, None)

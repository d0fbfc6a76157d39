"""Queues that take nothing now, as one term knows them: paused by an operator, or refusing what is sent to them.

A refusing queue is closed: its messages are parked without being tried. After a pause, growing and jittered, one
message is let out as a probe (half open); if the broker takes it, the queue is open and everything parked follows.
A probe may come to nothing, because its message was cancelled or has expired: then the next time more are let out.

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
    probes: int = 0
    """How many messages were let out since it refused the last one."""


class Queues:
    """Times are on the monotonic clock, given by the caller."""

    def __init__(self) -> None:
        self.paused: dict[str, str] = {}
        self.reopened = False
        """Some queue is open again since this was last set to false: what is parked for it may follow at once."""
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
        return {queue: state.why for queue, state in self._closed.items() if not state.probes}

    def refuse(self, queue: str, why: str, now: float) -> bool:
        """The broker refused a message for this queue. True if it was open until now."""
        known = self._closed.get(queue)
        if known and not known.probes:
            return False  # tried before it was closed, in the same batch: one refusal, not two
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
        self.reopened = self.reopened or bool(opened)
        return opened

    def probes(self, now: float) -> dict[str, int]:
        """Closed queues whose time has come, half open from now on; and how many messages to let out for each."""
        ready = {queue: state for queue, state in self._closed.items() if state.probe_at <= now}
        for state in ready.values():
            state.probes = state.probes * 2 or 1
            state.probe_at = now + _FIRST_SECONDS
        return {queue: state.probes for queue, state in ready.items()}

    def forget(self, queue: str) -> None:
        """Nothing is parked for it any more, so there is nothing to probe it with: the next message will tell."""
        self._closed.pop(queue, None)

"""One contestant empties a backlog into a broker; we only look at the broker.

The clock runs from the first message that is seen there to the last, so the start of a Python process is not in it.
What happens before the first message, reading the plan of a large backlog above all, is kept apart as `first_after`.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.broker import Depth
from benchmarks.processes import cpu_seconds, peak_rss_mb, stop
from relay.embedded import Process

_LOOK = 0.005
_CLOSE_LOOK = 0.0005  # for backlogs that are gone within a few ordinary looks


class DidNotFinish(RuntimeError):
    """The contestant ended early, or was too slow to wait for."""


@dataclass(frozen=True, slots=True)
class Run:
    """What was seen: (seconds, messages at the broker), from the first message to the last."""

    looks: Sequence[tuple[float, int]]
    cpu: float
    first_after: float
    peak_rss_mb: float

    @property
    def rate(self) -> float:
        """Messages a second; a backlog that arrived between two looks has none."""
        if len(self.looks) < 2:
            raise DidNotFinish(f"all {self.looks[0][1]} messages came at once: too few to be timed")
        (began, first), (ended, last) = self.looks[0], self.looks[-1]
        return (last - first) / (ended - began)

    @property
    def cpu_per_message(self) -> float:
        return self.cpu / (self.looks[-1][1] - self.looks[0][1])

    def rate_between(self, low: int, high: int) -> float:
        """Messages a second while the broker's queue grew from `low` to `high`, counted from the first look."""
        first = self.looks[0][1]
        return (high - low) / (self._reached(first + high) - self._reached(first + low))

    def _reached(self, count: int) -> float:
        (before, had), *rest = self.looks
        for at, seen in rest:
            if seen >= count:
                return before + (at - before) * (count - had) / max(seen - had, 1)
            before, had = at, seen
        return before


def race(
    begin: Callable[[], Process],
    depth: Depth,
    total: int,
    servers: Sequence[int],
    *,
    close: bool = False,
    deadline: float = 180.0,
) -> Run:
    """Start it, wait until `total` messages are at the broker, stop it in an orderly way."""
    pause = _CLOSE_LOOK if close else _LOOK
    started = time.monotonic()
    process = begin()
    try:
        watched = (process.pid, *servers)
        looks: list[tuple[float, int]] = []
        cpu = 0.0
        while not looks or looks[-1][1] < total:
            time.sleep(pause)
            seen = depth.waiting()
            if not seen:
                _still_running(process, started, deadline)
                continue
            if not looks:
                cpu = -cpu_seconds(*watched)
                seen = depth.waiting()
            elif seen == looks[-1][1]:
                _still_running(process, started, deadline)
                continue
            looks.append((time.monotonic(), seen))
        cpu += cpu_seconds(*watched)
        return Run(looks, cpu, looks[0][0] - started, peak_rss_mb(process.pid))
    finally:
        if process.alive:
            stop(process)


def _still_running(process: Process, started: float, deadline: float) -> None:
    if not process.alive:
        raise DidNotFinish(f"{process.name} ended with code {process.code}.{process.tail()}")
    if time.monotonic() - started > deadline:
        raise DidNotFinish(f"{process.name} did not finish within {deadline:g} s.{process.tail()}")

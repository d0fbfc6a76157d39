"""What becomes of each message of a batch: published, parked, expired or dead. Pure.

One message that cannot go never holds up the others, except those of its own ordering key: they must not overtake it.
"""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from relay.publication import Copy
from relay.window import Row

EVERYTHING = "*"


@dataclass(frozen=True, slots=True)
class Parked:
    """A message that waits in the database until its queue or its key is free."""

    row: Row
    queue: str
    blocked_by: str
    """pause, queue (it takes nothing), key (an earlier message of the key waits) or dead (one of the key is dead)."""
    why: str


@dataclass(slots=True)
class Fates:
    """The messages of a batch that were not published. Written in one commit with the position or the plans."""

    parked: list[Parked] = field(default_factory=list)
    expired: list[Row] = field(default_factory=list)
    dead: list[tuple[Row, str]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.parked or self.expired or self.dead)

    def parameters(self) -> dict[str, Any]:
        """For the statements that contain relay.queries.fates.FATES."""
        return {
            "parked_ids": [one.row.id for one in self.parked],
            "parked_seqs": [one.row.seq for one in self.parked],
            "parked_queues": [one.queue for one in self.parked],
            "parked_keys": [one.row.ordering_key for one in self.parked],
            "parked_by": [one.blocked_by for one in self.parked],
            "parked_why": [one.why for one in self.parked],
            "expired": [row.id for row in self.expired],
            "dead": [row.id for row, _ in self.dead],
            "dead_why": [why for _, why in self.dead],
        }


@dataclass(frozen=True, slots=True)
class Gate:
    """What keeps messages from going now."""

    now: datetime
    paused: Mapping[str, str]
    """Paused queue → why."""
    closed: Mapping[str, str]
    """Queue that refuses messages → why."""
    behind: Container[str]
    """Ids of messages of whose ordering key an earlier one is parked."""
    queue_for: Callable[[str, str | None], str]

    def sort(self, copies: Sequence[Copy]) -> tuple[list[Copy], Fates]:
        """Those that go, in order, and the fates of the others."""
        going: list[Copy] = []
        fates = Fates()
        stopped: set[str] = set()
        some_closed = bool(self.paused or self.closed)
        for copy in copies:
            row = copy.row
            if row.ended:
                continue
            if row.expires_at is not None and row.expires_at <= self.now:
                fates.expired.append(row)
            elif (some_closed or row.ordering_key) and (parked := self._parked(copy, stopped)):
                fates.parked.append(parked)
                if row.ordering_key and copy.publication == 0:
                    stopped.add(row.ordering_key)
            else:
                going.append(copy)
        return going, fates

    def _parked(self, copy: Copy, stopped: Container[str]) -> Parked | None:
        row = copy.row
        queue = self.queue_for(row.task, row.queue)
        for blocked_by, reasons in (("pause", self.paused), ("queue", self.closed)):
            if queue in reasons:
                return Parked(row, queue, blocked_by, reasons[queue])
        # Redeliveries are exempt from the order of publication: their consumer knows the predecessor.
        key = row.ordering_key if copy.publication == 0 else None
        if key is not None and (row.id in self.behind or key in stopped):
            return behind(row, queue)
        return None


def behind(row: Row, queue: str) -> Parked:
    return Parked(row, queue, "key", "an earlier message of its ordering key is parked")


def runs(
    copies: Sequence[Copy], keeps_order: bool, queue_for: Callable[[str, str | None], str]
) -> Iterator[Sequence[Copy]]:
    """Cut the batch so that no message of a key is on its way while an earlier one may still be refused.

    A broker that takes the messages of one queue whole or not at all may have several of a key in a run, if they go to
    one queue; any other only one.
    """
    if not any(copy.row.ordering_key for copy in copies):
        if copies:
            yield copies
        return
    start = 0
    seen: dict[str, str] = {}
    for index, copy in enumerate(copies):
        key = copy.row.ordering_key
        if key is None:
            continue
        queue = queue_for(copy.row.task, copy.row.queue)
        if key in seen and not (keeps_order and seen[key] == queue):
            yield copies[start:index]
            start, seen = index, {}
        seen[key] = queue
    yield copies[start:]

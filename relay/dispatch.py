"""Send a batch: sort out what cannot go now, publish the rest in runs that keep the order, and say what became of each.

Used for pages of the log and for plans alike. Nothing here writes to the database: the caller writes the fates in one
commit with the position or the plans, after the broker has answered.
"""

import time
from collections import Counter
from collections.abc import Callable, Container, Sequence
from datetime import datetime

from relay.events import MessagesDead, MessagesExpired, MessagesParked, QueueClosed, QueueOpened
from relay.outcome import Fates, Gate, Parked, behind, runs
from relay.publication import Copy, Refusal, Refused
from relay.publishing import Publishing
from relay.queues import Queues
from relay.routing import Undeliverable


class Dispatch:
    """What one term needs to send messages."""

    def __init__(
        self,
        publishing: Publishing,
        queues: Queues,
        queue_for: Callable[[str, str | None], str],
        *,
        block_on_dead: bool = True,
    ) -> None:
        self.publishing = publishing
        self.queues = queues
        self._route = queue_for
        self._block_on_dead = block_on_dead
        self._known: dict[tuple[str, str | None], str] = {}

    def send(
        self,
        copies: Sequence[Copy],
        window: int,
        read_at: datetime,
        now: datetime,
        waiting: Container[str] = (),
        *,
        planned: bool = False,
    ) -> Fates:
        """Everything not named in the answer is with the broker, or has ended before.

        `waiting` are the ids of those of whose ordering key an earlier message is parked; `planned` messages come from
        plans, not from the log.
        """
        gate = Gate(now, self.queues.paused, self.queues.closed, waiting, self._queue_for)
        going, fates = gate.sort(copies)
        stopped: set[str] = set()
        until = None if planned else now
        for run in runs(going, self.publishing.keeps_order, self._queue_for):
            left = run
            while left:
                free = [copy for copy in left if not self._overtakes(copy, stopped, fates)] if stopped else left
                refused = self.publishing.publish(free, window, read_at, until) if free else ()
                self._judge(free, refused, fates, stopped)
                left = [free[one.index] for one in refused if one.refusal is Refusal.BEHIND]
        return fates

    def _overtakes(self, copy: Copy, stopped: Container[str], fates: Fates) -> bool:
        if copy.publication or copy.row.ordering_key not in stopped:
            return False
        fates.parked.append(behind(copy.row, self._queue_for(copy.row.task, copy.row.queue)))
        return True

    def _judge(self, copies: Sequence[Copy], refused: Sequence[Refused], fates: Fates, stopped: set[str]) -> None:
        for one in refused:
            if one.refusal is Refusal.BEHIND:
                continue
            copy = copies[one.index]
            row, queue = copy.row, self._queue_for(copy.row.task, copy.row.queue)
            ordered = row.ordering_key is not None and copy.publication == 0
            if one.refusal is Refusal.QUEUE:
                fates.parked.append(Parked(row, queue, "queue", one.why))
            else:
                fates.dead.append((row, one.why))
                if ordered and self._block_on_dead:
                    fates.parked.append(Parked(row, queue, "dead", one.why))
            if row.ordering_key is not None and ordered and (one.refusal is Refusal.QUEUE or self._block_on_dead):
                stopped.add(row.ordering_key)
        self._note_queues(copies, refused)

    def _note_queues(self, copies: Sequence[Copy], refused: Sequence[Refused]) -> None:
        closing = {
            self._queue_for(copies[one.index].row.task, copies[one.index].row.queue): one.why
            for one in refused
            if one.refusal is Refusal.QUEUE
        }
        if self.queues.troubled:
            sent = {self._queue_for(copy.row.task, copy.row.queue) for copy in copies}
            for queue in self.queues.accepted(sent - closing.keys()):
                self.publishing.observer(QueueOpened(queue))
        for queue, why in closing.items():
            if self.queues.refuse(queue, why, time.monotonic()):
                self.publishing.observer(QueueClosed(queue, why))

    def _queue_for(self, task: str, queue: str | None) -> str:
        known = self._known.get((task, queue))
        if known is None:
            try:
                known = self._route(task, queue)
            except Undeliverable:
                known = queue or ""  # the publisher will say so; here it only needs a name
            if len(self._known) > 10_000:
                self._known.clear()
            self._known[task, queue] = known
        return known

    def tell(self, fates: Fates) -> None:
        """To be called when they are written."""
        for (queue, by), count in Counter((one.queue, one.blocked_by) for one in fates.parked).items():
            self.publishing.observer(MessagesParked(queue, by, count))
        if fates.expired:
            self.publishing.observer(MessagesExpired(len(fates.expired)))
        for why, count in Counter(why for _, why in fates.dead).items():
            self.publishing.observer(MessagesDead(count, why))

"""Which messages of a batch the broker has answered for. Pure.

RabbitMQ numbers what is published on a channel from 1, and answers by these numbers: one at a time or all up to one,
in any order, positive or negative. An unroutable message is returned first and then acknowledged like any other. So an
acknowledgement alone proves nothing: it counts for the message that was sent under its number on this very channel,
and only if that message has not come back. A number that is not open means that the two sides no longer agree; then
nothing on this channel can be trusted any more.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile


class Disagreement(Exception):
    """The broker answered for something that was not asked."""


@dataclass(slots=True)
class Confirms:
    """The state of one batch on one channel; `ids[i]` is the message id of its i-th message."""

    ids: Sequence[str]
    first_tag: int = 1
    """The number of the first message that will be sent."""
    sent: int = 0
    """How many have been sent, always from the front."""
    returned: set[int] = field(default_factory=set)
    rejected: set[int] = field(default_factory=set)
    accepted: int = 0
    _open: dict[int, None] = field(default_factory=dict)

    def send(self, count: int) -> None:
        self._open.update(dict.fromkeys(range(self.sent, self.sent + count)))
        self.sent += count

    @property
    def waiting(self) -> int:
        return len(self._open)

    @property
    def oldest(self) -> int:
        """The first message without an answer; all before it have one."""
        return next(iter(self._open), self.sent)

    def unanswered(self) -> list[int]:
        """Those whose fate is unknown: sent or not, they have to be sent again."""
        return [*self._open, *range(self.sent, len(self.ids))]

    def ack(self, tag: int, multiple: bool) -> None:
        self.accepted += len(self._close(tag, multiple) - self.returned)

    def nack(self, tag: int, multiple: bool) -> None:
        self.rejected |= self._close(tag, multiple) - self.returned

    def came_back(self, message_id: str) -> None:
        """Two copies of one message go the same way, so both are meant."""
        found = [index for index in self._open if self.ids[index] == message_id]
        if not found:
            raise Disagreement("a message came back that was not on its way")
        self.returned.update(found)

    def _close(self, tag: int, multiple: bool) -> set[int]:
        # With `multiple`, 0 means "all so far".
        index = self.sent - 1 if multiple and tag == 0 else tag - self.first_tag
        if not 0 <= index < self.sent or not (multiple or index in self._open):
            raise Disagreement(f"the broker answered for number {tag}, which is not open")
        closed = set(takewhile(index.__ge__, self._open)) if multiple else {index}
        for each in closed:
            del self._open[each]
        return closed

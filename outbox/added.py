"""What `add` and `add_many` say they did. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload
from uuid import UUID

from outbox.state import State


@dataclass(frozen=True, slots=True)
class Existing:
    """The live message that holds a unique key."""

    id: UUID
    state: State


@dataclass(frozen=True, slots=True)
class Added:
    """What `Outbox.add` did. The id is also the Celery task id."""

    id: UUID
    """Of the message that now stands for this request: the new one, or the one that was there before."""
    duplicate: bool = False
    """True: nothing was written, because a dedup key or unique key stands for an earlier message."""
    existing: Existing | None = None
    """With a unique key that is taken: who has it, and how far that is. Enough for a 409."""


@dataclass(frozen=True, slots=True)
class AddedBatch(Sequence[Added]):
    """What `Outbox.add_many` did, message by message, in the order of the call."""

    id: UUID
    """The batch id: `outbox.batch_progress(session, batch.id)`"""
    added: tuple[Added, ...]

    @overload
    def __getitem__(self, index: int) -> Added: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Added, ...]: ...
    def __getitem__(self, index: int | slice) -> Added | tuple[Added, ...]:
        return self.added[index]

    def __len__(self) -> int:
        return len(self.added)

    def __iter__(self) -> Iterator[Added]:
        return iter(self.added)

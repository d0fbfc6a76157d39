"""Where a message is, and what an attempt to cancel it did. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID


class State(StrEnum):
    """Where a message is now. The last five are final."""

    SCHEDULED = "scheduled"
    """Waits in the database for its time."""
    QUEUED = "queued"
    """Committed, not with the broker yet."""
    PUBLISHED = "published"
    """With the broker. For a task without a consumer nothing more can be known."""
    RUNNING = "running"
    """A consumer is at it at this moment."""
    RETRYING = "retrying"
    """A run failed, the next one is planned."""
    APPLIED = "applied"
    DEAD = "dead"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    DISCARDED = "discarded"
    UNKNOWN = "unknown"
    """Never committed here, or pruned long ago."""

    @property
    def final(self) -> bool:
        return self in _FINAL


_FINAL = frozenset((State.APPLIED, State.DEAD, State.CANCELLED, State.EXPIRED, State.DISCARDED))


class CancelOutcome(StrEnum):
    CANCELLED = "cancelled"
    """It will not take effect, once your transaction commits."""
    RUNNING = "running"
    """A consumer is at it: ask again, or let it finish."""
    FINISHED = "finished"
    """It had ended before."""
    TOO_LATE = "too_late"
    """The task has no consumer, and a copy is on its way that nothing can stop."""
    UNKNOWN = "unknown"
    """There is no such message here."""


@dataclass(frozen=True, slots=True)
class Cancellation:
    """What `cancel` did, and where the message is now."""

    id: UUID
    outcome: CancelOutcome
    state: State


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """How far the messages of one batch are."""

    id: UUID
    states: Mapping[State, int]

    @property
    def total(self) -> int:
        return sum(self.states.values())

    @property
    def ended(self) -> int:
        return sum(count for state, count in self.states.items() if state.final)

    @property
    def finished(self) -> bool:
        """Every message has ended, one way or another; False for a batch that does not exist."""
        return 0 < self.total == self.ended


@dataclass(frozen=True, slots=True)
class Rejected:
    """Duplicates that a unique key refused, while this message was live."""

    unique_key: str
    live_id: UUID
    count: int
    first_at: datetime
    last_at: datetime

"""What a relay tells the outside. Logs, metrics and fault tests attach here; nothing else reaches in.

Events fire after the write they speak of has landed. An observer must not block: it runs on the relay's own threads.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class RelayStarted:
    database: str
    broker: str
    broker_answers: bool


@dataclass(frozen=True, slots=True)
class LeadershipGained:
    epoch: int


@dataclass(frozen=True, slots=True)
class LeadershipLost:
    epoch: int
    why: str


@dataclass(frozen=True, slots=True)
class LeadershipReleased:
    epoch: int


@dataclass(frozen=True, slots=True)
class WindowOpened:
    number: int
    resumed: bool


@dataclass(frozen=True, slots=True)
class PageRead:
    messages: int


@dataclass(frozen=True, slots=True)
class PagePublished:
    """The broker accepted these; the position has not moved yet."""

    messages: int
    seconds: float


@dataclass(frozen=True, slots=True)
class PositionAdvanced:
    window: int
    last_seq: int


@dataclass(frozen=True, slots=True)
class MissingPlanned:
    """Published a receipt timeout ago, but no receipt: they will be published again."""

    messages: int


@dataclass(frozen=True, slots=True)
class BrokerUnavailable:
    error: str
    attempt: int


@dataclass(frozen=True, slots=True)
class BrokerRecovered:
    attempts: int


@dataclass(frozen=True, slots=True)
class DatabaseUnavailable:
    error: str


Event: TypeAlias = (
    RelayStarted
    | LeadershipGained
    | LeadershipLost
    | LeadershipReleased
    | WindowOpened
    | PageRead
    | PagePublished
    | PositionAdvanced
    | MissingPlanned
    | BrokerUnavailable
    | BrokerRecovered
    | DatabaseUnavailable
)
Observer: TypeAlias = Callable[[Event], None]


def ignore(_: Event) -> None:
    """The observer of those who do not care."""

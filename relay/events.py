"""What a relay tells the outside. Logs, metrics and fault tests attach here; nothing else reaches in.

Events fire after the write they speak of has landed. An observer must not block: it runs on the relay's own threads.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from relay.tally import Tally

NOT_LOGGED = {"logged": False}
"""Metadata of a field that is for counting only: too long for a line of the log."""


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
class LeaseRenewed:
    epoch: int
    seconds: float
    """How long the renewal took."""


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
    tally: Tally | None = field(default=None, metadata=NOT_LOGGED)
    """How many went to which queue, and how long they had waited."""


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
    role: str = ""
    """Which of the relay's connections: work or lease."""


@dataclass(frozen=True, slots=True)
class DatabaseConnected:
    role: str


@dataclass(frozen=True, slots=True)
class RetriesPlanned:
    """Consumers asked for these again, after a failure or because they came too early."""

    messages: int


@dataclass(frozen=True, slots=True)
class EndpointOpened:
    """/metrics, /livez and /readyz are served here."""

    address: str


@dataclass(frozen=True, slots=True)
class EndpointUnavailable:
    """The address nobody asked for is taken: the relay does without."""

    address: str
    error: str


Event: TypeAlias = (
    RelayStarted
    | LeadershipGained
    | LeadershipLost
    | LeadershipReleased
    | LeaseRenewed
    | WindowOpened
    | PageRead
    | PagePublished
    | PositionAdvanced
    | MissingPlanned
    | BrokerUnavailable
    | BrokerRecovered
    | DatabaseUnavailable
    | DatabaseConnected
    | RetriesPlanned
    | EndpointOpened
    | EndpointUnavailable
)
Observer: TypeAlias = Callable[[Event], None]


def ignore(_: Event) -> None:
    """The observer of those who do not care."""


def observers(*many: Observer) -> Observer:
    """One observer that tells many, in this order."""

    def tell(event: Event) -> None:
        for observer in many:
            observer(event)

    return tell

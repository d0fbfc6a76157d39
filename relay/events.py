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
class MessagesParked:
    """They wait in the database until their queue or key is free: blocked by pause, queue, key or dead."""

    queue: str
    blocked_by: str
    messages: int


@dataclass(frozen=True, slots=True)
class MessagesReleased:
    """Parked messages may go now."""

    queue: str
    messages: int


@dataclass(frozen=True, slots=True)
class MessagesExpired:
    messages: int


@dataclass(frozen=True, slots=True)
class MessagesDead:
    """The broker can never take these: dead letters."""

    messages: int
    why: str


@dataclass(frozen=True, slots=True)
class QueueClosed:
    """The broker refuses messages for this queue; they are parked and it is probed."""

    queue: str
    why: str


@dataclass(frozen=True, slots=True)
class QueueOpened:
    queue: str


@dataclass(frozen=True, slots=True)
class RelayWoken:
    """By notify, or by timer."""

    source: str


@dataclass(frozen=True, slots=True)
class RowsPruned:
    """Retention has forgotten these."""

    table: str
    rows: int


@dataclass(frozen=True, slots=True)
class ClusterMoved:
    """This database came from another cluster: nothing is published until somebody adopts it."""

    why: str


@dataclass(frozen=True, slots=True)
class ClusterAdopted:
    """The position was set anew: these messages are still to be published, those were and are followed up."""

    waiting: int
    followed_up: int


@dataclass(frozen=True, slots=True)
class HistoryLost:
    """The database is older than what this relay has seen of it: commits are gone, by a restore or a failover."""

    why: str


@dataclass(frozen=True, slots=True)
class BrokerUnavailable:
    error: str
    attempt: int


@dataclass(frozen=True, slots=True)
class BrokerRecovered:
    attempts: int


@dataclass(frozen=True, slots=True)
class DatabaseUnavailable:
    """Told at once, then ever more rarely while the same error goes on."""

    error: str
    role: str = ""
    """Which of the relay's connections: work or lease."""
    failures: int = 1


@dataclass(frozen=True, slots=True)
class PoolerFound:
    """Sessions are shared here: no lock, no LISTEN, no prepared statements. A dead leader is replaced after its TTL."""

    why: str


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


@dataclass(frozen=True, slots=True)
class ConfigurationNoticed:
    """Allowed, and yet seldom meant."""

    text: str


@dataclass(frozen=True, slots=True)
class OutboxFailed:
    """One of several outboxes is not served; the others are."""

    error: str
    again_in: float


Event: TypeAlias = (
    RelayStarted
    | ConfigurationNoticed
    | OutboxFailed
    | LeadershipGained
    | LeadershipLost
    | LeadershipReleased
    | LeaseRenewed
    | WindowOpened
    | PageRead
    | PagePublished
    | PositionAdvanced
    | MissingPlanned
    | MessagesParked
    | MessagesReleased
    | MessagesExpired
    | MessagesDead
    | QueueClosed
    | QueueOpened
    | RelayWoken
    | RowsPruned
    | ClusterMoved
    | ClusterAdopted
    | HistoryLost
    | BrokerUnavailable
    | BrokerRecovered
    | DatabaseUnavailable
    | PoolerFound
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

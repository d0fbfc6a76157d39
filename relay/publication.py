"""One publication of a message, what is stamped on it, and how a broker may refuse it. Pure."""

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import NamedTuple

from relay.window import Row


class Copy(NamedTuple):
    """One publication of a message: which copy it is, and how many runs have failed before."""

    row: Row
    publication: int = 0
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Stamp:
    """What all messages of one batch share: when, by whom and in which window they were published."""

    published_at: datetime
    epoch: int
    window: int
    relay: str


class Refusal(Enum):
    """Why one message did not go while the broker itself is well."""

    QUEUE = "queue"
    """Its queue takes nothing now (unroutable, rejected, wrong type, no right): parked until the queue does."""
    MESSAGE = "message"
    """This message can never go (too large, task not allowed): a dead letter."""
    BEHIND = "behind"
    """Not tried, because an earlier one of its ordering key in the same batch was refused."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A message of a batch that the broker did not take; all others of the batch were accepted."""

    index: int
    """Its place in the batch."""
    refusal: Refusal
    why: str
    """One line for an operator; never a part of the payload."""

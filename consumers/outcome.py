"""How a delivery ended. A closed union: every place that looks at one handles all of them."""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Applied:
    """The handler's effect and the receipt were committed together, now."""

    result: object


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A receipt exists already; nothing was run."""

    status: str


@dataclass(frozen=True, slots=True)
class InProgress:
    """Another worker is running this very message at this moment."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """The arguments are not those that were written: damaged on the way, or forged. The real copy still counts."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The handler raised; its effect was rolled back and another try is scheduled."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The database did not answer. Perhaps the commit landed and perhaps not: the next delivery finds out."""

    error: Exception


Outcome: TypeAlias = Applied | Duplicate | InProgress | Conflict | Failed | Unavailable

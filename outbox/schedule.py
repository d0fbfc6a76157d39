"""The times of a message: due, expiry, and how long a dedup key is remembered. Pure.

A moment is an aware datetime; a length is a timedelta or a number of seconds, counted by the database clock from the
moment of writing. Nothing here looks at the clock of this machine: client clocks lie.
"""

import math
from datetime import UTC, datetime, timedelta
from typing import Protocol

from outbox.codec import shown
from outbox.errors import InvalidMessage

# PostgreSQL and Python agree on this range; what lies beyond is a slip of the pen.
LONGEST = timedelta(days=36_500)


class Times(Protocol):
    """The part of a message that is about time."""

    @property
    def due_at(self) -> datetime | None: ...
    @property
    def delay(self) -> timedelta | float | None: ...
    @property
    def expires_at(self) -> datetime | None: ...
    @property
    def expires_in(self) -> timedelta | float | None: ...
    @property
    def dedup_window(self) -> timedelta | float | None: ...


def check_times(message: Times) -> None:
    """Refuse what has no one meaning. A due time in the past is fine: it means now."""
    due_at, delay, expires_at, expires_in = message.due_at, message.delay, message.expires_at, message.expires_in
    if message.dedup_window is not None and seconds("dedup_window", message.dedup_window) <= 0:
        raise InvalidMessage(
            "dedup_window must be longer than nothing; leave it out to remember the key with the message"
        )
    if due_at is None and delay is None and expires_at is None and expires_in is None:
        return
    _one_of("due_at", due_at, "delay", delay)
    _one_of("expires_at", expires_at, "expires_in", expires_in)
    if expires_in is not None and seconds("expires_in", expires_in) <= 0:
        raise InvalidMessage("expires_in must be longer than nothing: the message would never run")
    if delay is not None:
        seconds("delay", delay)
    if due_at is not None and expires_at is not None and moment("due_at", due_at) >= moment("expires_at", expires_at):
        raise InvalidMessage("expires_at is not after due_at: the message would never run; expire it later")
    if delay is not None and expires_in is not None and seconds("delay", delay) >= seconds("expires_in", expires_in):
        raise InvalidMessage("expires_in is not longer than delay: the message would never run; expire it later")


def moment(name: str, value: object) -> datetime:
    """In UTC; raises InvalidMessage for a naive datetime."""
    if not isinstance(value, datetime):
        raise InvalidMessage(f"{name} must be a datetime with a time zone, not {type(value).__name__}")
    if value.utcoffset() is None:
        raise InvalidMessage(
            f"{name} has no time zone: which moment is it? Use datetime.now(UTC) or replace(tzinfo=...)"
        )
    try:
        return value.astimezone(UTC)
    except OverflowError:  # within a day of year 1 or 10000
        return value.replace(tzinfo=UTC)


def seconds(name: str, value: object) -> float:
    """A length of time in seconds, within a century."""
    if isinstance(value, timedelta):
        length = value.total_seconds()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        length = float(value) if abs(value) < 1e300 else math.inf
    else:
        raise InvalidMessage(f"{name} must be a timedelta or a number of seconds, not {type(value).__name__}")
    if not abs(length) <= LONGEST.total_seconds():  # also NaN
        raise InvalidMessage(f"{name} {shown(value)} is longer than a century; is the unit wrong?")
    return length


def _one_of(first: str, value: object, second: str, other: object) -> None:
    if value is not None and other is not None:
        raise InvalidMessage(f"give {first} or {second}, not both: they say the same in two ways")
    if value is not None:
        moment(first, value)

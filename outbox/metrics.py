"""A seam for counting what is written: give `Outbox(observer=...)` anything that has these two methods.

`relay.writer_metrics` makes one of them for Prometheus. Without an observer nothing is measured, and nothing is paid.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol, TypeVar

from sqlalchemy.exc import DBAPIError

from outbox.added import Added
from outbox.envelope import Envelope
from outbox.errors import DedupConflict, InvalidMessage, NotInTransaction, NotSupported, SchemaMismatch

T = TypeVar("T", Added, list[Added])

REASONS = ("not_in_transaction", "invalid", "dedup_conflict", "not_supported", "schema", "db", "other")


class Written(NamedTuple):
    """One message of a statement that the database answered. The caller's transaction may still roll it back."""

    task: str
    queue: str | None
    payload_bytes: int
    duplicate: bool
    """Nothing was inserted: a key stands for an earlier message."""


class WriterObserver(Protocol):
    """Called in the caller's thread, inside its transaction: it must be quick and must not raise."""

    def written(self, messages: Sequence[Written], seconds: float) -> None:
        """One statement of add or add_many, and how long the database took."""

    def failed(self, reason: str) -> None:
        """add or add_many raised; the reason is one of REASONS."""


class Statement:
    """One statement on its way."""

    def __init__(self, observer: WriterObserver, contents: Sequence[Envelope]) -> None:
        self._observer = observer
        self._contents = contents
        self._started = time.perf_counter()

    def answered(self, answer: T) -> T:
        seconds = time.perf_counter() - self._started
        added = [answer] if isinstance(answer, Added) else answer
        pairs = zip(self._contents, added, strict=True)
        self._observer.written([_written(envelope, each) for envelope, each in pairs], seconds)
        return answer


@contextmanager
def watching(observer: WriterObserver) -> Iterator[None]:
    """Names the failure of a call, and lets it pass."""
    try:
        yield
    except Exception as error:
        observer.failed(reason(error))
        raise


def reason(error: Exception) -> str:
    match error:
        case NotInTransaction():
            return "not_in_transaction"
        case InvalidMessage():
            return "invalid"
        case DedupConflict():
            return "dedup_conflict"
        case NotSupported():
            return "not_supported"
        case SchemaMismatch():
            return "schema"
        case DBAPIError():
            return "db"
    # psycopg's own errors, when the caller has given its connection; it is not imported for their sake.
    return "db" if getattr(error, "sqlstate", None) or type(error).__module__.startswith("psycopg") else "other"


def _written(envelope: Envelope, added: Added) -> Written:
    message = envelope.message
    # The JSON is ASCII only, so characters are bytes.
    return Written(message.task, message.queue, len(envelope.args) + len(envelope.kwargs), added.duplicate)

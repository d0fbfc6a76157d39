"""`Outbox`: write a message through the caller's own transaction. `AsyncOutbox` is the same, awaited."""

from collections.abc import Collection, Iterable
from contextlib import nullcontext
from typing import Any, TypeVar, Unpack, cast
from uuid import UUID

from sqlalchemy.exc import DBAPIError

from outbox.added import Added, AddedBatch
from outbox.codec import Encoders
from outbox.envelope import DEFAULT_MAX_PAYLOAD, Rules
from outbox.message import Addable, Options
from outbox.metrics import Statement, WriterObserver, watching
from outbox.request import Request, Requests, as_text
from outbox.state import BatchProgress, Cancellation, Rejected, State
from outbox.statements import DEFAULT_SCHEMA
from outbox.trace import trace_headers
from outbox.transaction import (
    NO_STREAM,
    Carrier,
    Writable,
    driver_error,
    is_lost,
    plain_cursor,
    psycopg_carrier,
    readable,
    sync_carrier,
    unclear,
)

T = TypeVar("T")


class Outbox:
    """Holds no connection; make one per program, use it from any thread."""

    def __init__(
        self,
        schema: str = DEFAULT_SCHEMA,
        *,
        max_payload: int = DEFAULT_MAX_PAYLOAD,
        encoders: Encoders | None = None,
        tasks: Collection[str] | None = None,
        queues: Collection[str] | None = None,
        observer: WriterObserver | None = None,
    ) -> None:
        """`encoders` turn types that JSON lacks into ones it has: `{Decimal: str}`. `tasks` and `queues`, if given, are
        the only names accepted (`"billing.*"` matches all that begin so); `max_payload` is in bytes of JSON.
        `observer` counts what is written (outbox/metrics.py)."""
        self._observer = observer
        self._requests = Requests(schema, Rules(encoders or {}, max_payload, tasks, queues))

    def add(self, session: Writable, message: Addable, **options: Unpack[Options]) -> Added:
        """Insert the message in the open transaction of `session`; it exists if and only if that commits."""
        if self._observer is None:
            return run(session, self._requests.add(message, cast("dict[str, object]", options), trace_headers()))
        with watching(self._observer):
            request = self._requests.add(message, cast("dict[str, object]", options), trace_headers())
            return Statement(self._observer, request.contents).answered(run(session, request))

    def add_many(
        self,
        session: Writable,
        messages: Iterable[Addable],
        *,
        chunk_size: int = 500,
        batch_id: UUID | None = None,
    ) -> AddedBatch:
        """Many messages with one batch id, one round trip a chunk. All are checked before the first is written."""
        with nullcontext() if self._observer is None else watching(self._observer):
            batch = self._requests.add_many(messages, chunk_size, batch_id, trace_headers())
            sync_carrier(session)  # refused also when there is nothing to write
            return batch.answer([self._run(session, request) for _, request in batch.chunks])

    def _run(self, session: Writable, request: Request[list[Added]]) -> list[Added]:
        if self._observer is None:
            return run(session, request)
        return Statement(self._observer, request.contents).answered(run(session, request))

    def cancel(self, session: Writable, message_id: UUID | str) -> Cancellation:
        """End the message as *cancelled*, unless it runs or has ended. Decided when your transaction commits."""
        return run(session, self._requests.cancel(message_id))

    def state(self, session: Writable, message_id: UUID | str) -> State:
        """Where this message is now."""
        return run(session, self._requests.state(message_id))

    def batch_progress(self, session: Writable, batch_id: UUID | str) -> BatchProgress:
        """How many messages of the batch are in which state."""
        return run(session, self._requests.batch_progress(batch_id))

    def rejected(self, session: Writable, unique_key: str | None = None, *, limit: int = 100) -> list[Rejected]:
        """Duplicates that unique keys refused, the latest first; of one key, or of all."""
        return run(session, self._requests.rejected(unique_key, limit))


def run(session: object, request: Request[T]) -> T:
    """Carry one request to the database, in the caller's transaction.

    It goes to the driver itself: SQLAlchemy's own way costs as much again as the round trip."""
    carrier = sync_carrier(session)
    if unclear(carrier):
        with carrier.driver.pipeline():  # waits for the pending answers
            psycopg_carrier(carrier.driver)
    try:
        return request.answer(as_text(_execute(carrier, request)))
    except (DBAPIError, driver_error()) as error:
        if is_lost(error, carrier) and carrier.connection is not None:
            # As SQLAlchemy does itself: where one connection was lost, the pool's others are not trusted either.
            carrier.connection.invalidate(error)
            carrier.connection.engine.dispose()
        told = readable(error, carrier)
        if told is error:
            raise
        raise told from None


def _execute(carrier: Carrier, request: Request[T]) -> list[tuple[Any, ...]]:
    # An async driver beneath a Session: we are inside AsyncSession.run_sync(), and only SQLAlchemy can await there.
    if carrier.connection is not None and (carrier.watched or carrier.connection.dialect.is_async):
        result = carrier.connection.exec_driver_sql(
            request.statement, tuple(request.parameters), execution_options=NO_STREAM
        )
        return [tuple(row) for row in result] if request.has_rows else []
    # Not closed: in a pipeline that would wait for the answer.
    cursor = plain_cursor(carrier).execute(request.statement, request.parameters)
    rows: list[tuple[Any, ...]] = cursor.fetchall() if request.has_rows else []
    return rows

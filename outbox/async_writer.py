"""`AsyncOutbox`: the methods of `Outbox`, awaited. Their documentation stands there; the body of both is request.py."""

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
    AsyncWritable,
    Carrier,
    carrier_of,
    driver_error,
    is_async_sqlalchemy,
    is_lost,
    is_psycopg,
    plain_cursor,
    psycopg_carrier,
    readable,
    refuse_sync,
    session_errors,
    unclear,
)

T = TypeVar("T")


class AsyncOutbox:
    """The methods of `Outbox`, awaited, on AsyncSession, AsyncConnection or psycopg's AsyncConnection."""

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
        self._observer = observer
        self._requests = Requests(schema, Rules(encoders or {}, max_payload, tasks, queues))

    async def add(self, session: AsyncWritable, message: Addable, **options: Unpack[Options]) -> Added:
        if self._observer is None:
            return await _run(session, self._requests.add(message, cast("dict[str, object]", options), trace_headers()))
        with watching(self._observer):
            request = self._requests.add(message, cast("dict[str, object]", options), trace_headers())
            return Statement(self._observer, request.contents).answered(await _run(session, request))

    async def add_many(
        self,
        session: AsyncWritable,
        messages: Iterable[Addable],
        *,
        chunk_size: int = 500,
        batch_id: UUID | None = None,
    ) -> AddedBatch:
        with nullcontext() if self._observer is None else watching(self._observer):
            batch = self._requests.add_many(messages, chunk_size, batch_id, trace_headers())
            await _carrier(session)
            return batch.answer([await self._run(session, request) for _, request in batch.chunks])

    async def _run(self, session: AsyncWritable, request: Request[list[Added]]) -> list[Added]:
        if self._observer is None:
            return await _run(session, request)
        return Statement(self._observer, request.contents).answered(await _run(session, request))

    async def cancel(self, session: AsyncWritable, message_id: UUID | str) -> Cancellation:
        return await _run(session, self._requests.cancel(message_id))

    async def state(self, session: AsyncWritable, message_id: UUID | str) -> State:
        return await _run(session, self._requests.state(message_id))

    async def batch_progress(self, session: AsyncWritable, batch_id: UUID | str) -> BatchProgress:
        return await _run(session, self._requests.batch_progress(batch_id))

    async def rejected(
        self, session: AsyncWritable, unique_key: str | None = None, *, limit: int = 100
    ) -> list[Rejected]:
        return await _run(session, self._requests.rejected(unique_key, limit))


async def _run(session: object, request: Request[T]) -> T:
    carrier, wrapper = await _carrier(session)
    if unclear(carrier):
        async with carrier.driver.pipeline():  # waits for the pending answers
            psycopg_carrier(carrier.driver)
    try:
        return request.answer(as_text(await _execute(carrier, wrapper, request)))
    except (DBAPIError, driver_error()) as error:
        if is_lost(error, carrier):
            await wrapper.invalidate(error)
            await wrapper.engine.dispose()
        told = readable(error, carrier)
        if told is error:
            raise
        raise told from None


async def _carrier(given: Any) -> tuple[Carrier, Any]:
    """With SQLAlchemy's AsyncConnection, if there is one: only that may be awaited."""
    if is_async_sqlalchemy(given, "async_scoped_session"):
        given = given()
    if is_async_sqlalchemy(given):
        with session_errors(given):
            wrapper = await given.connection() if is_async_sqlalchemy(given, "AsyncSession") else given
            return carrier_of(wrapper.sync_connection), wrapper
    if not is_psycopg(given, "AsyncConnection"):
        refuse_sync(given)
    return psycopg_carrier(given), None


async def _execute(carrier: Carrier, wrapper: Any, request: Request[T]) -> list[tuple[Any, ...]]:
    if carrier.watched:
        result = await wrapper.exec_driver_sql(
            request.statement, tuple(request.parameters), execution_options=NO_STREAM
        )
        return [tuple(row) for row in result] if request.has_rows else []
    cursor = await plain_cursor(carrier, "AsyncCursor").execute(request.statement, request.parameters)
    rows: list[tuple[Any, ...]] = await cursor.fetchall() if request.has_rows else []
    return rows

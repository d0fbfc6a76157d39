"""A request: one statement, its parameters, and how its answer is read. Pure.

This is the one body of `Outbox` and `AsyncOutbox`: they differ only in how they carry a request to the database.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import UUID

from outbox import keys, schedule
from outbox.added import Added, AddedBatch, Existing
from outbox.codec import shown
from outbox.envelope import Envelope, Rules, seal
from outbox.errors import DedupConflict, InvalidMessage, NotSupported, SchemaMismatch
from outbox.fingerprint import dedup_hash
from outbox.ids import MessageIds
from outbox.message import check_key
from outbox.signature import read_message
from outbox.state import BatchProgress, Cancellation, CancelOutcome, Rejected, State
from outbox.statements import Statements, statements_for

T = TypeVar("T")
Rows = Sequence[tuple[Any, ...]]

_MOMENTS = ("due_at", "expires_at")
_LENGTHS = ("delay", "expires_in", "dedup_window")
_COPIED = ("queue", "priority", "dedup_key", "unique_key", "ordering_key")


class Request(NamedTuple, Generic[T]):
    statement: str
    parameters: Sequence[object]
    answer: Callable[[Rows], T]
    has_rows: bool = True
    """False: nothing to wait for, so inside a psycopg pipeline the statement travels with the next ones."""
    contents: Sequence[Envelope] = ()
    """The messages it writes, for an observer."""


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """The requests of one batch, each with the places of its messages."""

    batch_id: UUID
    chunks: list[tuple[list[int], Request[list[Added]]]]

    def answer(self, answers: Iterable[list[Added]]) -> AddedBatch:
        by_place: dict[int, Added] = {}
        for (places, _), added in zip(self.chunks, answers, strict=True):
            by_place.update(zip(places, added, strict=True))
        return AddedBatch(self.batch_id, tuple(by_place[place] for place in sorted(by_place)))


class Requests:
    """Makes the requests for one schema."""

    def __init__(self, schema: str, rules: Rules) -> None:
        self._statements: Statements = statements_for(schema)
        self._rules = rules
        self._ids = MessageIds()
        self._inserts: dict[tuple[str, ...], str] = {}

    def add(self, given: object, options: Mapping[str, object], trace: Mapping[str, str]) -> Request[Added]:
        envelope = seal(read_message(given, options), self._ids.new(), self._rules, trace)
        if keys.needs_write(envelope.message):
            told = [_as_json([envelope], None)]
            return Request(self._statements.write, told, lambda rows: _added(rows)[0], contents=(envelope,))
        columns, values = _columns(envelope)
        statement = self._inserts.get(columns)
        if statement is None:
            statement = self._inserts[columns] = self._statements.add(columns)
        added = Added(envelope.id)
        return Request(statement, values, lambda _: added, has_rows=False, contents=(envelope,))

    def add_many(
        self, given: Iterable[object], chunk_size: int, batch_id: UUID | None, trace: Mapping[str, str]
    ) -> BatchRequest:
        """All messages are checked before the first chunk is written."""
        if isinstance(chunk_size, bool) or not isinstance(chunk_size, int) or not 1 <= chunk_size <= 10_000:
            raise InvalidMessage(f"chunk_size {shown(chunk_size)} is not a number from 1 to 10000")
        batch = self._ids.new() if batch_id is None else _uuid("batch_id", batch_id)
        envelopes = self._sealed(given, trace)
        calls = keys.calls([envelope.message for envelope in envelopes], chunk_size)
        return BatchRequest(batch, [(places, self._call(places, envelopes, batch)) for places in calls])

    def cancel(self, message_id: object) -> Request[Cancellation]:
        wanted = _uuid("id", message_id)

        def answer(rows: Rows) -> Cancellation:
            ((outcome, state),) = rows
            if outcome == "elsewhere":
                raise NotSupported(
                    "cancel() cannot reach this message: its task is consumed in another database, where this"
                    " transaction decides nothing; cancel it there"
                )
            return Cancellation(wanted, CancelOutcome(outcome), State(state))

        return Request(self._statements.cancel, [wanted], answer)

    def state(self, message_id: object) -> Request[State]:
        return Request(self._statements.state, [_uuid("id", message_id)], lambda rows: State(rows[0][0]))

    def batch_progress(self, batch_id: object) -> Request[BatchProgress]:
        wanted = _uuid("batch_id", batch_id)
        return Request(
            self._statements.batch,
            [wanted],
            lambda rows: BatchProgress(wanted, {State(state): count for state, count in sorted(rows)}),
        )

    def rejected(self, unique_key: str | None, limit: int) -> Request[list[Rejected]]:
        check_key("unique_key", unique_key)
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= 10_000:
            raise InvalidMessage(f"limit {shown(limit)} is not a number from 1 to 10000")
        return Request(self._statements.rejected, [unique_key, limit], lambda rows: [Rejected(*row) for row in rows])

    def _sealed(self, given: Iterable[object], trace: Mapping[str, str]) -> list[Envelope]:
        if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
            raise InvalidMessage(f"add_many() takes a list of messages, not {type(given).__name__}")
        sealed: list[Envelope] = []
        for index, each in enumerate(given):
            try:
                sealed.append(seal(read_message(each, {}), self._ids.new(), self._rules, trace))
            except InvalidMessage as error:
                raise InvalidMessage(f"message {index} of the batch: {error}; nothing was written") from error
        return sealed

    def _call(self, places: list[int], envelopes: list[Envelope], batch: UUID) -> Request[list[Added]]:
        chunk = [envelopes[place] for place in places]
        if any(keys.needs_write(envelope.message) for envelope in chunk):
            told = [_as_json(chunk, batch)]
            return Request(self._statements.write, told, lambda rows: _added(rows, places), contents=chunk)
        columns, arrays = _arrays([_columns(envelope) for envelope in chunk])
        added = [Added(envelope.id) for envelope in chunk]
        statement = self._statements.add_many(columns)
        return Request(statement, [batch, *arrays], lambda _: added, has_rows=False, contents=chunk)


_ALWAYS: tuple[str, ...] = ("id", "task", "kwargs", "body_hash")


def _columns(envelope: Envelope) -> tuple[tuple[str, ...], list[object]]:
    """Only what differs from the table's defaults: fewer parameters, less work on both sides."""
    message = envelope.message
    columns, values = _ALWAYS, [envelope.id, message.task, envelope.kwargs, envelope.body_hash]
    if message.args:
        columns, values = (*columns, "args"), [*values, envelope.args]
    if envelope.headers != "{}":
        columns, values = (*columns, "headers"), [*values, envelope.headers]
    if message.queue is not None:
        columns, values = (*columns, "queue"), [*values, message.queue]
    if message.priority is not None:
        columns, values = (*columns, "priority"), [*values, message.priority]
    if message.expires_at is not None:
        columns, values = (*columns, "expires_at"), [*values, schedule.moment("expires_at", message.expires_at)]
    return columns, values


_DEFAULTS: Mapping[str, object] = {"args": "[]", "headers": "{}"}


def _arrays(rows: list[tuple[tuple[str, ...], list[object]]]) -> tuple[list[str], list[list[object]]]:
    """Rows to columns; a column that any row has is written for all of them."""
    first = rows[0][0]
    if all(columns == first for columns, _ in rows):
        return list(first), [list(values) for values in zip(*(values for _, values in rows), strict=True)]
    names = list(dict.fromkeys(name for columns, _ in rows for name in columns))
    whole = [dict(zip(columns, values, strict=True)) for columns, values in rows]
    return names, [[row.get(name, _DEFAULTS.get(name)) for row in whole] for name in names]


def _as_json(envelopes: Sequence[Envelope], batch: UUID | None) -> str:
    """The parameter of outbox_write(); args, kwargs and headers go in as the very text that was checked."""
    return "[" + ",".join(_object(envelope, batch) for envelope in envelopes) + "]"


def _object(envelope: Envelope, batch: UUID | None) -> str:
    message = envelope.message
    fields: dict[str, object] = {"id": str(envelope.id), "task": message.task, "body_hash": envelope.body_hash.hex()}
    if message.dedup_key is not None:
        fields["dedup_hash"] = f"\\x{dedup_hash(message.dedup_key, message.task, envelope.args, envelope.kwargs)}"
    if batch is not None:
        fields["batch_id"] = str(batch)
    for name in (*_COPIED, *_MOMENTS, *_LENGTHS):
        value = getattr(message, name)
        if value is not None:
            fields[name] = _said(name, value)
    payload = f'"args": {envelope.args}, "kwargs": {envelope.kwargs}, "headers": {envelope.headers}'
    return f"{json.dumps(fields)[:-1]}, {payload}}}"


def _said(name: str, value: datetime | timedelta | float | str) -> object:
    if name in _MOMENTS:
        return schedule.moment(name, value).isoformat()
    return f"{schedule.seconds(name, value):.6f} seconds" if name in _LENGTHS else value


def _added(rows: Rows, places: Sequence[int] | None = None) -> list[Added]:
    added: list[Added] = []
    for number, told, outcome, state in rows:
        message_id = _uuid("id", told)
        where = "" if places is None else f"message {places[number - 1]} of the batch: "
        match outcome:
            case "added":
                added.append(Added(message_id))
            case "duplicate":
                added.append(Added(message_id, duplicate=True))
            case "live":
                added.append(Added(message_id, duplicate=True, existing=Existing(message_id, State(state))))
            case "conflict":
                raise DedupConflict(
                    f"{where}this dedup_key stands for another body, that of message {message_id}; use a key that is"
                    " different for different work (fingerprint(task, payload) makes one)",
                    message_id,
                )
            case "elsewhere":
                raise NotSupported(
                    f"{where}unique_key needs the receipts of the task, and this task is consumed in another"
                    " database; use dedup_key"
                )
            case "never":
                raise InvalidMessage(f"{where}it would expire before it is due; expire it later")
            case _:  # not a refusal: something may have been written
                raise SchemaMismatch(
                    f"outbox_write() answered {shown(outcome)}; is this library older than the tables?"
                )
    return added


def as_text(rows: Iterable[Sequence[Any]]) -> Rows:
    """With client_encoding SQL_ASCII psycopg gives text as bytes, and a connection may read UUIDs as text."""
    return [tuple(each.decode() if isinstance(each, bytes) else each for each in row) for row in rows]


def _uuid(name: str, value: object) -> UUID:
    if isinstance(value, UUID):
        return value
    try:
        return UUID(value if isinstance(value, str) else "")
    except ValueError:
        raise InvalidMessage(f"{name} {shown(value)} is not a message id: pass the UUID that add() returned") from None

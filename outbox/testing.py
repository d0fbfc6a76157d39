"""Assertions for the tests of an application: did this code add that message?

def test_place(session):
    place(session, Order(id=42))
    assert_added(session, task="billing.charge", kwargs={"order_id": 42})

They look at what the session's own transaction sees, its uncommitted messages included, so a test can roll back at its
end. Values are compared with ==, so `unittest.mock.ANY` stands for anything. With an AsyncSession:
`await session.run_sync(lambda session: assert_added(session, ...))`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypedDict, Unpack
from uuid import UUID

from outbox.request import Request, Rows
from outbox.statements import DEFAULT_SCHEMA, statements_for
from outbox.transaction import Writable
from outbox.writer import run

# A test that looks at more messages than this has not cleaned up after the others.
MOST_MESSAGES: Final = 10_000
_SHOWN: Final = 5


class Wanted(TypedDict, total=False):
    """What a message may be asked for; everything left out may be anything."""

    task: Any
    args: Any
    kwargs: Any
    queue: Any
    priority: Any
    headers: Any
    dedup_key: Any
    unique_key: Any
    ordering_key: Any
    due_at: Any
    expires_at: Any


@dataclass(frozen=True, slots=True)
class Written:
    """A message as it stands in the table."""

    id: UUID
    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    queue: str | None
    priority: int | None
    headers: dict[str, str]
    unique_key: str | None
    ordering_key: str | None
    dedup_key: str | None
    due_at: datetime | None
    expires_at: datetime | None


def assert_added(
    session: Writable, *, count: int | None = None, schema: str = DEFAULT_SCHEMA, **wanted: Unpack[Wanted]
) -> list[Written]:
    """At least one such message (or exactly `count`); returns them. On failure the nearest miss is shown."""
    _check_names(wanted)
    messages = added(session, schema=schema)
    found = [message for message in messages if not _differences(message, wanted)]
    if len(found) == count or (count is None and found):
        return found
    expected = "a message" if count is None else f"{count} messages"
    raise AssertionError(
        f"{expected} with {_said(wanted)}: found {len(found)} of {len(messages)}{_nearest(messages, wanted)}"
    )


def refute_added(session: Writable, *, schema: str = DEFAULT_SCHEMA, **wanted: Unpack[Wanted]) -> None:
    """No such message; without further words: no message at all."""
    _check_names(wanted)
    found = [message for message in added(session, schema=schema) if not _differences(message, wanted)]
    if found:
        listed = "".join(f"\n  {_summary(message)}" for message in found[:_SHOWN])
        raise AssertionError(f"no message with {_said(wanted)} was expected, but there are {len(found)}:{listed}")


def added(session: Writable, *, schema: str = DEFAULT_SCHEMA) -> list[Written]:
    """All messages that the session's transaction sees, in the order in which they were added."""
    return run(session, Request(statements_for(schema).written, [MOST_MESSAGES], _written))


def _written(rows: Rows) -> list[Written]:
    return [
        Written(row[0], row[1], json.loads(row[2]), json.loads(row[3]), row[4], row[5], json.loads(row[6]), *row[7:])
        for row in reversed(rows)
    ]


def _differences(message: Written, wanted: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    pairs = {name: (value, getattr(message, name)) for name, value in wanted.items()}
    return {name: pair for name, pair in pairs.items() if not _equal(*pair)}


def _equal(wanted: Any, found: Any) -> bool:
    return bool(wanted == found or (isinstance(wanted, tuple) and list(wanted) == found))


def _check_names(wanted: Mapping[str, Any]) -> None:
    for name in wanted:
        if name not in Wanted.__annotations__:
            raise TypeError(f"a message cannot be asked for {name!r}; possible are {', '.join(Wanted.__annotations__)}")


def _nearest(messages: list[Written], wanted: Mapping[str, Any]) -> str:
    """The message that differs least; among equals the latest, which the test most likely meant."""
    if not messages:
        return "; no message was added at all"
    nearest = min(reversed(messages), key=lambda message: len(_differences(message, wanted)))
    lines = [f"\n  {name}: wanted {want!r}, is {is_!r}" for name, (want, is_) in _differences(nearest, wanted).items()]
    return f"; the nearest is {_summary(nearest)}" + "".join(lines)


def _said(wanted: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in wanted.items()) or "anything"


def _summary(message: Written) -> str:
    return f"{message.task}(args={message.args!r}, kwargs={message.kwargs!r}) {message.id}"

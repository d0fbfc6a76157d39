"""What an observer of the writer is told: each statement once, each failure by its reason, sync and async alike."""

import asyncio
from collections.abc import Sequence

import psycopg
import pytest

from outbox import AsyncOutbox, InvalidMessage, Message, NotInTransaction, Outbox
from outbox.metrics import Written


class Heard:
    def __init__(self) -> None:
        self.statements: list[list[Written]] = []
        self.reasons: list[str] = []

    def written(self, messages: Sequence[Written], seconds: float) -> None:
        assert seconds > 0
        self.statements.append(list(messages))

    def failed(self, reason: str) -> None:
        self.reasons.append(reason)


def told(heard: Heard) -> list[list[tuple[str, str | None, bool]]]:
    return [[(each.task, each.queue, each.duplicate) for each in one] for one in heard.statements]


def test_the_writer_tells_what_it_wrote_and_what_it_refused(database: str) -> None:
    heard = Heard()
    outbox = Outbox(observer=heard)
    with psycopg.connect(database) as connection:
        outbox.add(connection, Message("a.b", kwargs={"n": 1}, queue="mail"))
        for _ in range(2):
            outbox.add(connection, Message("a.b"), dedup_key="k")
        outbox.add_many(connection, [Message("a.b")] * 3, chunk_size=2)
        with pytest.raises(InvalidMessage):
            outbox.add(connection, Message("a.b", args=(object(),)))
        with pytest.raises(InvalidMessage):
            outbox.add_many(connection, [Message("a.b", args=(object(),))])
    with pytest.raises(NotInTransaction):
        outbox.add(connection, Message("a.b"))
    one = ("a.b", None, False)
    assert told(heard) == [[("a.b", "mail", False)], [one], [("a.b", None, True)], [one, one], [one]]
    assert heard.reasons == ["invalid", "invalid", "not_in_transaction"]
    assert 2 < heard.statements[0][0].payload_bytes < 20


def test_a_failure_of_the_database_is_one(empty_database: str) -> None:
    heard = Heard()
    with psycopg.connect(empty_database) as connection, pytest.raises(Exception, match="tables"):
        Outbox(observer=heard).add(connection, Message("a.b"))
    assert heard.reasons == ["schema"]


def test_the_async_writer_tells_the_same(database: str) -> None:
    heard = Heard()

    async def write() -> None:
        outbox = AsyncOutbox(observer=heard)
        async with await psycopg.AsyncConnection.connect(database) as connection:
            await outbox.add(connection, Message("a.b", queue="mail"))
            await outbox.add_many(connection, [Message("a.b")] * 2)
            with pytest.raises(InvalidMessage):
                await outbox.add(connection, Message("a.b", args=(object(),)))

    asyncio.run(write())
    assert told(heard) == [[("a.b", "mail", False)], [("a.b", None, False)] * 2]
    assert heard.reasons == ["invalid"]

"""add_many(): one statement a chunk, in the order of the call, all or nothing, and never a deadlock."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from outbox import Added, InvalidMessage, Message, Outbox
from relay.embedded import wait_until
from tests.integration.outbox.storage import (
    CHARGE,
    Order,
    Postgres,
    ask,
    blocked,
    committed,
    engine_of,
    keys,
    messages,
    watched,
)

OUTBOX = Outbox()
Opened = Callable[[], Postgres]


@pytest.mark.parametrize(
    ("count", "chunk_size", "options", "statements"),
    [
        (7, 500, {}, 1),
        (7, 3, {}, 3),
        (7, 1, {}, 7),
        (7, 3, {"delay": 60}, 1),  # what the database may refuse is one call
        (500, 500, {"priority": 3, "expires_in": 60}, 1),
        (0, 500, {}, 0),
    ],
)
def test_one_statement_a_chunk(
    engine: sa.Engine, database: str, count: int, chunk_size: int, options: dict[str, Any], statements: int
) -> None:
    given = [Message(CHARGE, kwargs={"n": n}, **options) for n in range(count)]
    with Session(engine) as session, session.begin():
        session.connection()
        with watched(engine) as seen:
            batch = OUTBOX.add_many(session, iter(given), chunk_size=chunk_size)
        assert len(seen.statements) == statements
        assert seen.transactions == []
    assert len(batch) == count
    assert messages(database) == [each.id for each in batch], "seq is the order of the call"
    assert {each.id.version for each in batch} <= {7}
    found = ask(database, "SELECT (kwargs->>'n')::int FROM outbox_message ORDER BY seq")
    assert [n for (n,) in found] == list(range(count))


def test_every_message_keeps_its_own_options(opened: Opened, database: str) -> None:
    """A column that one message has is written for all: the others get the table's default."""
    later = datetime(2099, 1, 1, tzinfo=UTC)
    given = [
        Message(CHARGE),
        Message(CHARGE, [1], {"a": 1}, queue="mail", priority=9, headers={"x": "y"}, expires_at=later),
        Message("other.task", kwargs={"b": 2}, priority=0),
    ]
    connection = opened()
    OUTBOX.add_many(connection, given)
    connection.commit()
    columns = (
        "task, queue, priority, args::text, kwargs::text, headers::text, expires_at, held, octet_length(body_hash)"
    )
    assert ask(database, f"SELECT {columns} FROM outbox_message ORDER BY seq") == [  # noqa: S608
        (CHARGE, None, None, "[]", "{}", "{}", None, False, 32),
        (CHARGE, "mail", 9, "[1]", '{"a":1}', '{"x":"y"}', later, False, 32),
        ("other.task", None, 0, "[]", '{"b":2}', "{}", None, False, 32),
    ]


@pytest.mark.parametrize("options", [{}, {"unique_key": "u"}], ids=["plain", "keyed"])
def test_the_batch_id(opened: Opened, database: str, options: dict[str, Any]) -> None:
    connection, given = opened(), uuid4()
    batch = OUTBOX.add_many(connection, [Message(CHARGE, **options), Message(CHARGE)], batch_id=given)
    own = OUTBOX.add_many(connection, [Message(CHARGE)])
    OUTBOX.add(connection, Message(CHARGE))
    connection.commit()
    assert batch.id == given
    found = ask(database, "SELECT batch_id, count(*) FROM outbox_message GROUP BY 1 ORDER BY 2 DESC, 1")
    assert found == [(given, 2), (own.id, 1), (None, 1)] or found == [(given, 2), (None, 1), (own.id, 1)]


@pytest.mark.parametrize("bad", [Message(CHARGE, kwargs={"n": object()}), 7, None])
def test_a_bad_message_is_named_and_nothing_is_written(engine: sa.Engine, database: str, bad: object) -> None:
    given: list[Any] = [Message(CHARGE, dedup_key=f"k{n}") for n in range(5)]
    given.insert(3, bad)
    with Session(engine) as session, session.begin():
        session.add(Order(id=7))
        with watched(engine) as seen, pytest.raises(InvalidMessage, match=r"^message 3 of the batch: .*nothing was"):
            OUTBOX.add_many(session, given, chunk_size=1)
        assert seen.statements == []
        good = OUTBOX.add(session, Message(CHARGE))
    assert committed(database) == ([str(good.id)], [7])


def test_answers_are_in_the_order_of_the_call(opened: Opened, database: str) -> None:
    """Chunks are cut from the sorted keys; the caller does not notice."""
    connection = opened()
    taken = OUTBOX.add(connection, Message(CHARGE, kwargs={"n": 2}, dedup_key="k2")).id
    given = [Message(CHARGE, kwargs={"n": n}, dedup_key=f"k{n}" if n % 2 == 0 else None) for n in (5, 4, 3, 2, 1, 0)]
    batch = OUTBOX.add_many(connection, given, chunk_size=2)
    connection.commit()
    found = dict(ask(database, "SELECT id, (kwargs->>'n')::int FROM outbox_message"))
    assert [found[each.id] for each in batch] == [5, 4, 3, 2, 1, 0]
    assert batch[3] == Added(taken, duplicate=True)


def test_twenty_thousand_keys_in_one_transaction(opened: Opened, database: str) -> None:
    """Row locks, not advisory ones: those live in shared memory, which holds some thousands."""
    connection = opened()
    given = [Message(CHARGE, ordering_key=f"account:{n}") for n in range(20_000)]
    OUTBOX.add_many(connection, given, chunk_size=5000)
    locks = ask(database, "SELECT count(*) FROM pg_locks WHERE pid = %s", connection.info.backend_pid)
    connection.commit()
    assert ask(database, "SELECT count(*) FROM outbox_message") == [(20_000,)]
    assert locks[0][0] < 100


class Writer:
    """add_many() in a thread, stopping before its second statement until the other one waits or stops there too."""

    def __init__(self, database: str, connection: Postgres) -> None:
        self.database = database
        self.connection = connection
        self.began = False
        self.stopped = False
        self.done = False
        self.other: Writer | None = None
        # Exactly this connection: which session it is matters here.
        self.engine = engine_of(database, creator=lambda: connection, poolclass=sa.pool.StaticPool)
        sa.event.listen(self.engine, "before_cursor_execute", self._before)

    def _before(self, *_: object) -> None:
        if not self.began:
            self.began = True
            return
        self.stopped = True
        other = self.other
        assert other is not None
        wait_until(
            lambda: other.stopped or other.done or blocked(self.database, other.connection),
            15,
            "the other writer to come to its point",
        )

    def add_many(self, given: Sequence[Message], chunk_size: int) -> list[UUID]:
        try:
            with Session(self.engine) as session, session.begin():
                return [each.id for each in OUTBOX.add_many(session, given, chunk_size=chunk_size)]
        finally:
            self.done = True


@contextmanager
def writers(database: str, one: Postgres, two: Postgres) -> Iterator[tuple[Writer, Writer]]:
    first, second = Writer(database, one), Writer(database, two)
    first.other, second.other = second, first
    yield first, second


def unique(key: str) -> Message:
    return Message(CHARGE, unique_key=key)


OPPOSITE = {
    "dedup": [Message(CHARGE, dedup_key=key) for key in "abcdef"],
    "unique": [unique(key) for key in "abcdef"],
    "ordering": [Message(CHARGE, ordering_key=key) for key in "abcdef"],
    "mixed": [
        Message(CHARGE, dedup_key="a"),
        unique("b"),
        Message(CHARGE, ordering_key="c"),
        Message(CHARGE, dedup_key="f", unique_key="d"),
        Message(CHARGE),
        Message(CHARGE, unique_key="g", ordering_key="e"),
    ],
}


@pytest.mark.parametrize("chunk_size", [2, 100])
@pytest.mark.parametrize("kind", OPPOSITE)
def test_opposite_orders_do_not_deadlock(
    opened: Opened, database: str, pool: ThreadPoolExecutor, kind: str, chunk_size: int
) -> None:
    """With one chunk a deadlock takes some luck, with several the writers meet for certain."""
    given = OPPOSITE[kind]
    with writers(database, opened(), opened()) as (first, second):
        one = pool.submit(first.add_many, given, chunk_size)
        two = pool.submit(second.add_many, list(reversed(given)), chunk_size)
        ids = {*one.result(60), *two.result(60)}
    assert set(messages(database)) == ids


@pytest.mark.parametrize("chunk_size", [1, 100])
def test_one_kind_after_the_other_does_not_deadlock(
    opened: Opened, database: str, pool: ThreadPoolExecutor, chunk_size: int
) -> None:
    """In calls of their own, the first writer would hold z and want b, the second hold b and want z."""
    with writers(database, opened(), opened()) as (first, second):
        one = pool.submit(
            first.add_many,
            [Message(CHARGE, dedup_key="a", unique_key="z"), Message(CHARGE, dedup_key="b")],
            chunk_size,
        )
        wait_until(lambda: first.stopped or first.done, 15, "the first chunk")
        two = pool.submit(second.add_many, [Message(CHARGE, dedup_key="b", unique_key="z")], chunk_size)
        one.result(60)
        two.result(60)
    assert set(keys(database, "dedup")) == {"a", "b"}


def test_within_one_call_keys_are_taken_in_order(opened: Opened, database: str, pool: ThreadPoolExecutor) -> None:
    """Each kind: a writer that waits for its lowest key holds none of the others."""
    holder, waiter, third = opened(), opened(), opened()
    for kind in ("dedup_key", "unique_key", "ordering_key"):
        low, high = (Message(CHARGE, **{kind: f"{kind}:{key}"}) for key in "ab")  # type: ignore[arg-type]
        OUTBOX.add(holder, low)
        waiting = pool.submit(OUTBOX.add_many, waiter, [high, low])
        wait_until(lambda: blocked(database, waiter), 15, "the second writer to wait")
        third.execute("SET lock_timeout = '2s'")
        assert not OUTBOX.add(third, high).duplicate, "the higher key is still free"
        third.rollback()
        holder.rollback()
        waiting.result(15)
        waiter.rollback()


def test_counters_of_rejections_do_not_deadlock(opened: Opened, database: str, pool: ThreadPoolExecutor) -> None:
    one = opened()
    with psycopg.connect(database) as connection:
        OUTBOX.add(connection, unique("a"))

    two = psycopg.connect(database)
    while (two.info.backend_pid - one.info.backend_pid) % 64:
        two.close()
        two = psycopg.connect(database)
    with two, writers(database, one, two) as (first, second):
        waiting = pool.submit(first.add_many, [unique("a"), unique("n")], 1)
        wait_until(lambda: first.stopped or first.done, 15, "the first chunk")
        answer = pool.submit(second.add_many, [unique("a"), unique("n")], 100)
        waiting.result(60)
        answer.result(60)


def test_threads_share_one_outbox(engine: sa.Engine, database: str) -> None:
    start = threading.Barrier(4)

    def write(number: int) -> list[UUID]:
        with Session(engine) as session, session.begin():
            start.wait()
            given = [Message(CHARGE, unique_key=f"{number}:{n}") for n in range(20)]
            return [each.id for each in OUTBOX.add_many(session, given, chunk_size=7)]

    with ThreadPoolExecutor(4) as pool:
        ids = [each for added in pool.map(write, range(4)) for each in added]
    assert set(messages(database)) == set(ids)
    assert len(ids) == 80

"""Every operation through every kind of session and connection: the same answers, in the caller's own transaction."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from outbox import (
    Added,
    BatchProgress,
    Cancellation,
    CancelOutcome,
    DedupConflict,
    Existing,
    InvalidMessage,
    Message,
    Outbox,
    State,
)
from outbox.codec import body_hash
from tests.integration.outbox import styles
from tests.integration.outbox.storage import CHARGE, committed
from tests.integration.outbox.styles import Handle, Style, async_engine_of, awaited, each_style

shared_styles_database = styles.shared_styles_database
styles_database = styles.styles_database

MESSAGE = Message(CHARGE, kwargs={"order_id": 7})
OTHER = Message(CHARGE, kwargs={"order_id": 8})
MISSING = UUID(int=7)

Play = Callable[[Handle], Awaitable[list[UUID]]]


async def plain(handle: Handle) -> list[UUID]:
    """Positional form, keyword form, and every column of its own."""
    first = await handle.do("add", MESSAGE)
    second = await handle.do("add", CHARGE, args=[1], queue="mail", priority=9, headers={"tenant": "ä"})
    assert first == Added(first.id)
    assert second == Added(second.id)
    assert isinstance(first.id, UUID)
    return [first.id, second.id]


async def dedup_key(handle: Handle) -> list[UUID]:
    first = await handle.do("add", MESSAGE, dedup_key="order-7")
    assert first == Added(first.id)
    assert await handle.do("add", MESSAGE, dedup_key="order-7") == Added(first.id, duplicate=True)
    with pytest.raises(DedupConflict) as conflict:
        await handle.do("add", OTHER, dedup_key="order-7")
    assert conflict.value.existing == first.id
    return [first.id]


async def unique_key(handle: Handle) -> list[UUID]:
    first = await handle.do("add", MESSAGE, unique_key="project-1")
    assert first == Added(first.id)
    again = await handle.do("add", OTHER, unique_key="project-1")
    assert again == Added(first.id, duplicate=True, existing=Existing(first.id, State.QUEUED))
    return [first.id]


async def ordering_key(handle: Handle) -> list[UUID]:
    ids = [(await handle.do("add", MESSAGE, ordering_key="customer-1")).id for _ in range(3)]
    chained = f"SELECT key_prev FROM outbox_message WHERE id = '{ids[2]}'"  # noqa: S608
    assert await handle.sql(chained) == ids[1]
    return ids


async def add_many(handle: Handle) -> list[UUID]:
    """Plain and keyed messages, over several chunks, answered in the order of the call."""
    batch_id = uuid4()
    messages = [MESSAGE, Message(CHARGE, queue="mail"), MESSAGE]
    plain = await handle.do("add_many", messages, chunk_size=2, batch_id=batch_id)
    assert plain.id == batch_id
    assert [added.duplicate for added in plain] == [False] * 3
    keyed = [Message(CHARGE, args=[number], dedup_key=f"row-{number}") for number in (3, 1, 2)]
    first = await handle.do("add_many", keyed, chunk_size=2, batch_id=batch_id)
    again = await handle.do("add_many", iter(keyed), chunk_size=1)
    assert again.added == tuple(Added(added.id, duplicate=True) for added in first)
    with pytest.raises(InvalidMessage, match=r"^message 1 of the batch: .*; nothing was written$"):
        await handle.do("add_many", [MESSAGE, Message(CHARGE, kwargs={"bad": object()})])
    progress = await handle.do("batch_progress", batch_id)
    assert progress == BatchProgress(batch_id, {State.QUEUED: 6})
    return [added.id for added in (*plain, *first)]


async def cancel(handle: Handle) -> list[UUID]:
    later = await handle.do("add", MESSAGE, delay=3600, unique_key="project-1")
    now = await handle.do("add", MESSAGE)
    assert await handle.do("cancel", later.id) == Cancellation(later.id, CancelOutcome.CANCELLED, State.CANCELLED)
    assert await handle.do("cancel", str(later.id)) == Cancellation(later.id, CancelOutcome.FINISHED, State.CANCELLED)
    assert await handle.do("cancel", now.id) == Cancellation(now.id, CancelOutcome.TOO_LATE, State.QUEUED)
    assert await handle.do("cancel", MISSING) == Cancellation(MISSING, CancelOutcome.UNKNOWN, State.UNKNOWN)
    following = await handle.do("add", MESSAGE, unique_key="project-1")
    assert not following.duplicate
    return [later.id, now.id, following.id]


async def state(handle: Handle) -> list[UUID]:
    later = await handle.do("add", MESSAGE, delay=3600)
    now = await handle.do("add", MESSAGE)
    assert await handle.do("state", later.id) is State.SCHEDULED
    assert await handle.do("state", str(now.id)) is State.QUEUED
    assert await handle.do("state", MISSING) is State.UNKNOWN
    return [later.id, now.id]


async def batch_progress(handle: Handle) -> list[UUID]:
    batch = await handle.do("add_many", [Message(CHARGE, delay=3600), Message(CHARGE, delay=3600), MESSAGE])
    await handle.do("cancel", batch[0].id)
    progress = await handle.do("batch_progress", str(batch.id))
    assert progress.states == {State.CANCELLED: 1, State.QUEUED: 1, State.SCHEDULED: 1}
    assert (progress.total, progress.ended, progress.finished) == (3, 1, False)
    missing = await handle.do("batch_progress", MISSING)
    assert (missing.total, missing.finished) == (0, False)
    return [added.id for added in batch]


async def rejected(handle: Handle) -> list[UUID]:
    one = await handle.do("add", MESSAGE, unique_key="project-1")
    two = await handle.do("add", MESSAGE, unique_key="project-2")
    for key in ("project-1", "project-2", "project-2"):
        await handle.do("add", MESSAGE, unique_key=key)
    every = await handle.do("rejected")
    assert [(row.unique_key, row.live_id, row.count) for row in every] == [
        ("project-2", two.id, 2),
        ("project-1", one.id, 1),
    ]
    assert all(row.first_at.tzinfo and row.first_at <= row.last_at for row in every)
    assert await handle.do("rejected", "project-1") == every[1:]
    assert await handle.do("rejected", limit=1) == every[:1]
    assert await handle.do("rejected", "project-3") == []
    return [one.id, two.id]


PLAYS: tuple[Play, ...] = (
    plain,
    dedup_key,
    unique_key,
    ordering_key,
    add_many,
    cancel,
    state,
    batch_progress,
    rejected,
)
each_play = pytest.mark.parametrize("play", PLAYS, ids=lambda play: play.__name__)


@dataclass(frozen=True)
class Afterwards:
    """What another session sees."""

    messages: list[str]
    orders: list[int]
    keys: int
    rejected: int
    receipts: int


def afterwards(url: str) -> Afterwards:
    messages, orders = committed(url)
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "SELECT (SELECT count(*) FROM outbox_key), (SELECT count(*) FROM outbox_rejected),"
            " (SELECT count(*) FROM inbox_receipt)"
        ).fetchone()
    assert row is not None
    return Afterwards(messages, orders, *row)


async def played(style: Style, url: str, play: Play, end: str) -> list[UUID]:
    """A business row, the operation, a business row; and the proof that all of it is one transaction: the caller's."""
    async with style.opened(url) as handle:
        await handle.begin()
        await handle.sql("INSERT INTO shop_order VALUES (1)")
        before = await handle.sql("SELECT pg_current_xact_id()::text")
        ids = await play(handle)
        assert handle.in_transaction()
        assert await handle.sql("SELECT pg_current_xact_id()::text") == before
        # Rows of a subtransaction would carry its own id.
        foreign = f"SELECT count(*) FROM outbox_message WHERE xmin::text <> '{before}'"  # noqa: S608
        assert await handle.sql(foreign) == 0
        await handle.sql("INSERT INTO shop_order VALUES (2)")
        assert afterwards(url) == Afterwards([], [], 0, 0, 0)
        await getattr(handle, end)()
        assert not handle.in_transaction()
    return ids


@each_style
@each_play
def test_the_same_answers_and_committed_with_the_business_rows(styles_database: str, style: Style, play: Play) -> None:
    ids = awaited(played(style, styles_database, play, "commit"))
    seen = afterwards(styles_database)
    assert (seen.messages, seen.orders) == ([str(each) for each in ids], [1, 2])


@each_style
@each_play
def test_nothing_is_left_of_a_rolled_back_transaction(styles_database: str, style: Style, play: Play) -> None:
    awaited(played(style, styles_database, play, "rollback"))
    assert afterwards(styles_database) == Afterwards([], [], 0, 0, 0)


@each_style
def test_all_styles_write_the_same_row(styles_database: str, style: Style) -> None:
    """Not only the same answers: whatever a driver converts on its way, the same bytes stand in the table."""

    async def write() -> None:
        async with style.opened(styles_database) as handle:
            await handle.begin()
            await handle.do(
                "add", CHARGE, args=[1, "ä"], kwargs={"n": 2**70}, queue="q", priority=0, headers={"a": "ü"}
            )
            await handle.commit()

    awaited(write())
    with psycopg.connect(styles_database) as connection:
        rows = connection.execute(
            "SELECT args::text, kwargs::text, headers::text, queue, priority, held, encode(body_hash, 'hex')"
            " FROM outbox_message"
        ).fetchall()
    assert rows == [
        (
            '[1,"\\u00e4"]',
            '{"n":1180591620717411303424}',
            '{"a":"\\u00fc"}',
            "q",
            0,
            False,
            body_hash(CHARGE, [1, "ä"], {"n": 2**70}).hex(),
        )
    ]


def test_the_sync_outbox_inside_run_sync(styles_database: str) -> None:
    """Code shared with synchronous programs, event hooks of an AsyncSession: a Session above an async driver."""

    async def write(end: str) -> tuple[Any, ...]:
        engine = async_engine_of(styles_database)

        def inside(session: Session) -> tuple[Any, ...]:
            session.execute(sa.text("INSERT INTO shop_order VALUES (1)"))
            outbox = Outbox()
            first = outbox.add(session, MESSAGE)
            second = outbox.add(session, MESSAGE, unique_key="project-1")
            return first, second, outbox.add(session, MESSAGE, unique_key="project-1"), outbox.state(session, first.id)

        async with AsyncSession(engine) as session:
            await session.begin()
            answers = await session.run_sync(inside)
            await getattr(session, end)()
        await engine.dispose()
        return answers

    awaited(write("rollback"))
    assert committed(styles_database) == ([], [])
    first, second, again, state = awaited(write("commit"))
    assert again == Added(second.id, duplicate=True, existing=Existing(second.id, State.QUEUED))
    assert state is State.QUEUED
    assert committed(styles_database) == ([str(first.id), str(second.id)], [1])

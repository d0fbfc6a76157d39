"""psycopg by itself: pipelines, autocommit inside them, and whatever cursors and rows the connection was set to."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import psycopg
import pytest
from psycopg import rows
from psycopg.pq import TransactionStatus

from outbox import Added, AsyncOutbox, DedupConflict, Existing, Message, NotInTransaction, Outbox, State
from tests.integration.outbox import styles
from tests.integration.outbox.storage import CHARGE, committed
from tests.integration.outbox.styles import Handle, awaited, settled

shared_styles_database = styles.shared_styles_database
styles_database = styles.styles_database

MESSAGE = Message(CHARGE, kwargs={"order_id": 7})

both = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


@asynccontextmanager
async def connected(url: str, asynchronous: bool, **options: Any) -> AsyncIterator[Handle]:
    driver: Any = psycopg.AsyncConnection if asynchronous else psycopg.Connection
    connection = await settled(driver.connect(url, **options))
    try:
        # A statement that waits for a lock in vain ends here, not with the patience of the test run.
        await settled(connection.execute("SET statement_timeout = '3s'"))
        if not connection.autocommit:
            await settled(connection.commit())
        yield Handle(connection, AsyncOutbox() if asynchronous else Outbox(), raw=True)
    finally:
        await settled(connection.close())


@asynccontextmanager
async def entered(manager: Any) -> AsyncIterator[Any]:
    """A context manager of psycopg, of either kind."""
    async with AsyncExitStack() as stack:
        if hasattr(manager, "__aenter__"):
            yield await stack.enter_async_context(manager)
        else:
            yield stack.enter_context(manager)


@both
def test_a_plain_message_travels_with_the_others(styles_database: str, asynchronous: bool) -> None:
    """Nobody waits for an answer: the table is locked while the messages are added, and still the calls return."""

    async def play() -> list[str]:
        async with connected(styles_database, asynchronous) as handle:
            with psycopg.connect(styles_database) as other:
                other.execute("LOCK TABLE outbox_message IN ACCESS EXCLUSIVE MODE")
                async with entered(handle.target.pipeline()):
                    await settled(handle.target.execute("INSERT INTO shop_order VALUES (1)"))
                    first = await handle.do("add", MESSAGE)
                    many = await handle.do("add_many", [MESSAGE, MESSAGE, MESSAGE], chunk_size=2)
                    last = await handle.do("add", CHARGE, queue="mail", priority=3)
                    await settled(handle.target.execute("INSERT INTO shop_order VALUES (2)"))
                    other.rollback()
            assert committed(styles_database) == ([], [])
            await handle.commit()
            return [str(added.id) for added in (first, *many, last)]

    assert (awaited(play()), [1, 2]) == committed(styles_database)


async def fail(handle: Handle) -> None:
    async with entered(handle.target.pipeline()):
        await handle.do("add", MESSAGE)
        await settled(handle.target.execute("SELECT 1 / 0"))
        await handle.do("add", MESSAGE)


@both
def test_a_failure_in_the_pipeline_takes_the_message_away(styles_database: str, asynchronous: bool) -> None:
    async def play() -> None:
        async with connected(styles_database, asynchronous) as handle:
            with pytest.raises(psycopg.errors.DivisionByZero):
                await fail(handle)
            with pytest.raises(NotInTransaction, match="already failed"):
                await handle.do("add", MESSAGE)
            await handle.rollback()

    awaited(play())
    assert committed(styles_database) == ([], [])


@both
def test_keys_are_answered_inside_a_pipeline(styles_database: str, asynchronous: bool) -> None:
    async def play() -> str:
        async with connected(styles_database, asynchronous) as handle:
            async with entered(handle.target.pipeline()):
                first = await handle.do("add", MESSAGE, unique_key="project-1", dedup_key="a")
                again = await handle.do("add", MESSAGE, unique_key="project-1")
                assert again == Added(first.id, duplicate=True, existing=Existing(first.id, State.QUEUED))
                with pytest.raises(DedupConflict):
                    await handle.do("add", CHARGE, dedup_key="a")
                assert await handle.do("state", first.id) is State.QUEUED
            await handle.commit()
            return str(first.id)

    assert ([awaited(play())], []) == committed(styles_database)


async def _nothing_pending(handle: Handle) -> None:
    """The pipeline has just begun."""


async def _pending(handle: Handle) -> None:
    await settled(handle.target.execute("SELECT 1"))
    assert handle.target.info.transaction_status == TransactionStatus.ACTIVE  # what it will be is not known yet


async def _over(handle: Handle) -> None:
    """A transaction that has been there, and is over before its COMMIT was answered."""
    await settled(handle.target.execute("BEGIN"))
    await settled(handle.target.execute("COMMIT"))


@both
@pytest.mark.parametrize("before", [_nothing_pending, _pending, _over])
def test_a_pipeline_in_autocommit_is_no_transaction(
    styles_database: str, asynchronous: bool, before: Callable[[Handle], Any]
) -> None:
    """PostgreSQL commits a pipeline at each of its ends: the message would come apart from what follows."""

    async def play() -> None:
        async with connected(styles_database, asynchronous, autocommit=True) as handle:
            for options in ({}, {"unique_key": "project-1"}):
                async with entered(handle.target.pipeline()):
                    await before(handle)
                    with pytest.raises(NotInTransaction, match="autocommit connection outside a transaction"):
                        await handle.do("add", MESSAGE, **options)
            assert await handle.sql("SELECT 1") == 1

    awaited(play())
    assert committed(styles_database) == ([], [])


@both
@pytest.mark.parametrize("autocommit", [False, True], ids=["begins by itself", "autocommit"])
@pytest.mark.parametrize("outer", ["pipeline", "transaction"])
def test_a_transaction_and_a_pipeline(styles_database: str, asynchronous: bool, autocommit: bool, outer: str) -> None:
    async def play(fail: bool) -> list[str]:
        async with connected(styles_database, asynchronous, autocommit=autocommit) as handle:
            inner = {"pipeline": "transaction", "transaction": "pipeline"}[outer]
            async with entered(getattr(handle.target, outer)()), entered(getattr(handle.target, inner)()):
                await settled(handle.target.execute("INSERT INTO shop_order VALUES (1)"))
                first = await handle.do("add", MESSAGE)
                second = await handle.do("add", MESSAGE, dedup_key="a")
                if fail:
                    raise ZeroDivisionError
            return [str(first.id), str(second.id)]

    with pytest.raises(ZeroDivisionError):
        awaited(play(True))
    assert committed(styles_database) == ([], [])
    assert (awaited(play(False)), [1]) == committed(styles_database)


@both
def test_a_transaction_begun_by_hand_in_an_autocommit_pipeline(styles_database: str, asynchronous: bool) -> None:
    """BEGIN is on its way and not answered yet: the answer is waited for, then the message is welcome."""

    async def play() -> str:
        async with connected(styles_database, asynchronous, autocommit=True) as handle:
            async with entered(handle.target.pipeline()):
                await settled(handle.target.execute("BEGIN"))
                await settled(handle.target.execute("INSERT INTO shop_order VALUES (1)"))
                added = await handle.do("add", MESSAGE)
            assert committed(styles_database) == ([], [])
            await settled(handle.target.execute("COMMIT"))
            return str(added.id)

    assert ([awaited(play())], [1]) == committed(styles_database)


SYNC_CURSORS: dict[str, Any] = {
    "plain": psycopg.Cursor,
    "client": psycopg.ClientCursor,
    "raw": psycopg.RawCursor,
}
ASYNC_CURSORS: dict[str, Any] = {
    "plain": psycopg.AsyncCursor,
    "client": psycopg.AsyncClientCursor,
    "raw": psycopg.AsyncRawCursor,
}


@both
@pytest.mark.parametrize("cursor", ["plain", "client", "raw"])
@pytest.mark.parametrize("row", [rows.dict_row, rows.namedtuple_row, rows.scalar_row, rows.tuple_row])
def test_the_cursors_and_rows_of_the_connection_do_not_matter(
    styles_database: str, asynchronous: bool, cursor: str, row: Any
) -> None:
    async def play() -> list[str]:
        factory = (ASYNC_CURSORS if asynchronous else SYNC_CURSORS)[cursor]
        async with connected(styles_database, asynchronous, row_factory=row, cursor_factory=factory) as handle:
            plain = await handle.do("add", MESSAGE)
            batch = await handle.do("add_many", [MESSAGE, Message(CHARGE, priority=1)])
            keyed = await handle.do("add", MESSAGE, unique_key="project-1", delay=3600)
            again = await handle.do("add", MESSAGE, unique_key="project-1")
            assert again == Added(keyed.id, duplicate=True, existing=Existing(keyed.id, State.SCHEDULED))
            assert await handle.do("state", plain.id) is State.QUEUED
            assert (await handle.do("batch_progress", batch.id)).states == {State.QUEUED: 2}
            assert [each.count for each in await handle.do("rejected", "project-1")] == [1]
            assert (await handle.do("cancel", keyed.id)).state is State.CANCELLED
            # Nor do we change what the caller set.
            assert (handle.target.row_factory, handle.target.cursor_factory) == (row, factory)
            await handle.commit()
            return [str(added.id) for added in (plain, *batch, keyed)]

    assert (awaited(play()), []) == committed(styles_database)

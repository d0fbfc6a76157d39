"""Where no transaction of the caller would carry the message it is refused, in every style, and nothing is written.

What breaks later, in the database, is told in the caller's own words (SQLAlchemy's errors) and never with the payload.
"""

import traceback
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from outbox import (
    AsyncOutbox,
    Message,
    NotInTransaction,
    Outbox,
)
from tests.integration.outbox import styles
from tests.integration.outbox.storage import CHARGE, Order, committed, engine_of
from tests.integration.outbox.styles import (
    Handle,
    Style,
    async_engine_of,
    awaited,
    each_sqlalchemy_style,
    each_style,
    settled,
)

shared_styles_database = styles.shared_styles_database
styles_database = styles.styles_database
styles_engine = styles.styles_engine

SECRET = "hunter2-4711"
MESSAGE = Message(CHARGE, kwargs={"card": SECRET})
OPERATIONS: dict[str, Callable[[Handle], Any]] = {
    "add": lambda handle: handle.do("add", MESSAGE),
    "add-with-key": lambda handle: handle.do("add", MESSAGE, unique_key="project-1"),
    "add_many": lambda handle: handle.do("add_many", [MESSAGE, MESSAGE]),
    "cancel": lambda handle: handle.do("cancel", "0190aaaa-0000-7000-8000-000000000000"),
}


async def refused(handle: Handle, kind: type[Exception] | tuple[type[Exception], ...], words: str) -> None:
    """Every operation, one after the other: none of them may slip through."""
    for operation in OPERATIONS.values():
        with pytest.raises(kind, match=words) as error:
            await operation(handle)
        assert SECRET not in shown(error.value)


def shown(error: BaseException) -> str:
    """All that a log or an error page would show of it."""
    return f"{error!s}\n{error!r}\n{''.join(traceback.format_exception(error))}"


# ---- no transaction


@each_sqlalchemy_style
def test_outside_a_transaction(styles_database: str, style: Style) -> None:
    async def play() -> None:
        async with style.opened(styles_database) as handle:
            await refused(handle, NotInTransaction, r"^the outbox was called outside a transaction")
            assert not handle.in_transaction()
            await handle.begin()
            await handle.sql("INSERT INTO shop_order VALUES (1)")
            await handle.commit()
            await refused(handle, NotInTransaction, r"outside a transaction.*before the commit")

    awaited(play())
    assert committed(styles_database) == ([], [1])


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_psycopg_in_autocommit(styles_database: str, asynchronous: bool) -> None:
    """Refused outside `transaction()`, welcome inside; also when somebody wrote BEGIN by hand."""

    async def play() -> None:
        driver: Any = psycopg.AsyncConnection if asynchronous else psycopg.Connection
        connection = await settled(driver.connect(styles_database, autocommit=True))
        handle = Handle(connection, AsyncOutbox() if asynchronous else Outbox(), raw=True)
        try:
            await refused(handle, NotInTransaction, r"autocommit connection outside a transaction")
            await handle.sql("BEGIN")
            for operation in OPERATIONS.values():
                await operation(handle)
            await handle.sql("ROLLBACK")
            await refused(handle, NotInTransaction, r"with connection\.transaction\(\)")
        finally:
            await settled(connection.close())

    awaited(play())
    assert committed(styles_database) == ([], [])


@each_sqlalchemy_style
@pytest.mark.parametrize("how", ["engine", "execution option", "driver"])
def test_autocommit_beneath_sqlalchemy(styles_database: str, style: Style, how: str) -> None:
    """`in_transaction()` says yes there; the driver knows better."""

    async def play() -> None:
        options = {"isolation_level": "AUTOCOMMIT"} if how == "engine" else {}
        asynchronous: Any = async_engine_of(styles_database, **options)
        engine: Any = asynchronous if style.asynchronous else engine_of(styles_database, **options)
        chosen = engine.execution_options(isolation_level="AUTOCOMMIT") if how == "execution option" else engine
        made: dict[str, Callable[[], Any]] = {
            "Session": lambda: Session(chosen),
            "scoped_session": lambda: scoped_session(sessionmaker(chosen)),
            "Connection": lambda: chosen.connect(),
            "AsyncSession": lambda: AsyncSession(chosen),
            "async_scoped_session": lambda: async_scoped_session(async_sessionmaker(chosen), lambda: 1),
            "AsyncConnection": lambda: chosen.connect(),
        }
        target = made[style.name]()
        if style.name == "AsyncConnection":
            target = await target
        handle = Handle(target, AsyncOutbox() if style.asynchronous else Outbox(), raw=False)
        await handle.begin()
        if how == "driver":
            await _set_autocommit(target)
        await refused(handle, NotInTransaction, r"^the outbox was called on an AUTOCOMMIT connection")
        await settled(target.close())
        await settled(engine.dispose())
        await asynchronous.dispose()

    awaited(play())
    assert committed(styles_database) == ([], [])


async def _set_autocommit(target: Any) -> None:
    connection = target if "Connection" in type(target).__name__ else await settled(target.connection())
    beneath = getattr(connection, "sync_connection", connection).connection.driver_connection
    await settled(beneath.set_autocommit(True))


# ---- a transaction that is over, failed or lost


@each_style
def test_after_a_failed_statement(styles_database: str, style: Style) -> None:
    """Whoever swallowed the error gets no message into a transaction that cannot commit."""

    async def play() -> None:
        async with style.opened(styles_database) as handle:
            await handle.begin()
            await handle.sql("INSERT INTO shop_order VALUES (1)")
            with pytest.raises((psycopg.Error, sa.exc.DBAPIError)):
                await handle.sql("SELECT 1 / 0")
            kind = (NotInTransaction,) if style.raw else (NotInTransaction, sa.exc.InternalError)
            await refused(handle, kind, r"already failed|current transaction is aborted")
            await handle.rollback()
            await handle.begin()
            await handle.do("add", MESSAGE)
            await handle.rollback()

    awaited(play())
    assert committed(styles_database) == ([], [])


@pytest.mark.parametrize("asynchronous", [False, True], ids=["Session", "AsyncSession"])
def test_after_a_failed_flush(styles_database: str, asynchronous: bool) -> None:
    async def play() -> None:
        engine: Any = async_engine_of(styles_database) if asynchronous else engine_of(styles_database)
        session: Any = AsyncSession(engine) if asynchronous else Session(engine)
        handle = Handle(session, AsyncOutbox() if asynchronous else Outbox(), raw=False)
        await handle.begin()
        session.add_all([Order(id=7)])
        await settled(session.flush())
        await handle.sql("INSERT INTO shop_order VALUES (8)")
        session.add(Order(id=8))
        with pytest.raises(sa.exc.IntegrityError):
            await settled(session.flush())
        with pytest.raises(NotInTransaction, match=r"already failed or ended; roll it back and begin again") as error:
            await handle.do("add", MESSAGE)
        assert isinstance(error.value.__cause__, sa.exc.PendingRollbackError)
        await handle.rollback()
        await handle.begin()
        await handle.do("add", MESSAGE)
        await handle.rollback()
        await settled(session.close())
        await settled(engine.dispose())

    awaited(play())
    assert committed(styles_database) == ([], [])


@each_sqlalchemy_style
def test_after_a_commit_inside_the_block(styles_database: str, style: Style) -> None:
    async def play() -> None:
        async with style.opened(styles_database) as handle:
            await handle.begin()
            first = await handle.do("add", MESSAGE)
            await handle.commit()
            await refused(handle, NotInTransaction, "outside a transaction")
            assert committed(styles_database) == ([str(first.id)], [])

    awaited(play())


def test_after_a_commit_inside_a_with_block(styles_engine: sa.Engine) -> None:
    with Session(styles_engine) as session, session.begin():
        session.commit()
        with pytest.raises(NotInTransaction, match="outside a transaction"):
            Outbox().add(session, MESSAGE)
    with styles_engine.connect() as connection, connection.begin() as transaction:
        transaction.commit()
        with pytest.raises(NotInTransaction, match="outside a transaction"):
            Outbox().add(connection, MESSAGE)


@each_style
def test_closed(styles_database: str, style: Style) -> None:
    async def play() -> None:
        async with style.opened(styles_database) as handle:
            await handle.begin()
            await handle.sql("SELECT 1")
            await settled(handle.target.close())
            await refused(handle, NotInTransaction, r"outside a transaction|on a connection that is closed")

    awaited(play())
    assert committed(styles_database) == ([], [])


@each_style
@pytest.mark.parametrize("operation", [OPERATIONS["add"], OPERATIONS["add-with-key"]], ids=["add", "add-with-key"])
@pytest.mark.parametrize("listening", [False, True], ids=["quick", "listening"])
def test_a_lost_connection(
    styles_database: str, style: Style, operation: Callable[[Handle], Any], listening: bool
) -> None:
    """SQLAlchemy is told, so that its pool throws the connection away and the next transaction gets a new one."""

    async def play() -> None:
        async with style.opened(styles_database) as handle:
            if listening and not style.raw:
                sa.event.listen(await _engine_beneath(handle.target), "before_cursor_execute", lambda *_: None)
            await handle.begin()
            await handle.sql("INSERT INTO shop_order VALUES (1)")
            _terminate(styles_database, await handle.sql("SELECT pg_backend_pid()"))
            expected = psycopg.OperationalError if style.raw else sa.exc.OperationalError
            with pytest.raises(expected) as error:
                await operation(handle)
            assert SECRET not in shown(error.value)
            if style.raw:
                await refused(handle, NotInTransaction, "closed")
                return
            assert getattr(error.value, "connection_invalidated", None) is True
            await refused(handle, NotInTransaction, "on a connection that is closed or lost; open one and begin again")
            await handle.rollback()
            await handle.begin()
            await handle.sql("INSERT INTO shop_order VALUES (2)")
            await handle.do("add", MESSAGE)
            await handle.commit()

    awaited(play())
    messages, orders = committed(styles_database)
    assert (len(messages), orders) == ((0, []) if style.raw else (1, [2]))


async def _engine_beneath(target: Any) -> sa.Engine:
    engine = target.engine if "Connection" in type(target).__name__ else target.bind
    found: sa.Engine = getattr(engine, "sync_engine", engine)
    return found


def _terminate(url: str, pid: int) -> None:
    with psycopg.connect(url, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])

"""What is no session of ours is refused by name; a database without our tables too. No error shows the payload."""

import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql.asyncpg import PGDialect_asyncpg
from sqlalchemy.dialects.postgresql.psycopg2 import PGDialect_psycopg2
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from outbox import AsyncOutbox, ConfigurationError, InvalidMessage, Message, Outbox, SchemaMismatch
from tests.integration.outbox import styles
from tests.integration.outbox.storage import CHARGE, Base, committed, engine_of
from tests.integration.outbox.styles import Handle, Style, async_engine_of, awaited, each_style, settled

shared_styles_database = styles.shared_styles_database
styles_database = styles.styles_database
styles_engine = styles.styles_engine

SECRET = "hunter2-4711"
MESSAGE = Message(CHARGE, kwargs={"card": SECRET})


def test_async_objects_given_to_outbox(styles_database: str) -> None:
    async def play() -> None:
        engine = async_engine_of(styles_database)
        driver = await psycopg.AsyncConnection.connect(styles_database)
        async with driver, engine.connect() as connection:
            given: list[Any] = [AsyncSession(engine), connection, async_scoped_session(async_sessionmaker(engine), int)]
            for each in [*given, driver]:
                name = type(each).__name__
                with pytest.raises(
                    InvalidMessage, match=f"^Outbox is for synchronous code; with {name} use AsyncOutbox"
                ):
                    Outbox().add(each, MESSAGE)
        await engine.dispose()

    awaited(play())
    assert committed(styles_database) == ([], [])


def test_sync_objects_given_to_async_outbox(styles_database: str, styles_engine: sa.Engine) -> None:
    async def play() -> None:
        with psycopg.connect(styles_database) as driver, styles_engine.connect() as connection:
            given: list[Any] = [Session(styles_engine), connection, scoped_session(sessionmaker(styles_engine)), driver]
            for each in given:
                name = type(each).__name__
                with pytest.raises(InvalidMessage, match=f"^AsyncOutbox is for async code; with {name} use Outbox, "):
                    await AsyncOutbox().add(each, MESSAGE)

    awaited(play())
    assert committed(styles_database) == ([], [])


def test_what_carries_no_transaction(styles_database: str, styles_engine: sa.Engine) -> None:
    asynchronous = async_engine_of(styles_database)
    hints: dict[Any, str] = {
        styles_engine: r"not Engine; an engine has no transaction, use `with engine\.begin\(\) as connection:`$",
        asynchronous: r"not AsyncEngine; an engine has no transaction",
        sessionmaker(styles_engine): r"not sessionmaker$",
        async_sessionmaker(asynchronous): r"not async_sessionmaker$",
        None: r"not NoneType$",
        styles_database: r"not str$",
        Session: r"not type$",
        MESSAGE.task: r"not str$",
    }
    for given, words in hints.items():
        with pytest.raises(InvalidMessage, match=words):
            Outbox().add(given, MESSAGE)
        with pytest.raises(InvalidMessage, match=words):
            awaited(AsyncOutbox().add(given, MESSAGE))
    awaited(asynchronous.dispose())


@pytest.mark.parametrize(
    ("home", "words"),
    [
        ("psycopg2.extensions", "the outbox writes through psycopg 3$"),
        ("asyncpg.connection", "the outbox writes through psycopg 3$"),
        ("pg8000.dbapi", "the outbox writes through psycopg 3$"),
        ("django.db", r"django\.db\.connection\.connection$"),
        ("somewhere", "not connection$"),
    ],
)
def test_connections_of_other_drivers(home: str, words: str) -> None:
    other = type("connection", (), {"__module__": home})()
    with pytest.raises(InvalidMessage, match=words):
        Outbox().add(other, MESSAGE)
    with pytest.raises(InvalidMessage, match=words):
        awaited(AsyncOutbox().add(other, MESSAGE))


def test_an_engine_of_another_database() -> None:
    engine = sa.create_engine("sqlite://")
    for opened in (Session(engine), engine.connect()):
        with opened, opened.begin(), pytest.raises(ConfigurationError, match=r"not sqlite\+pysqlite; make the engine"):
            Outbox().add(opened, MESSAGE)
    engine.dispose()


@pytest.mark.parametrize(
    ("dialect", "name"), [(PGDialect_psycopg2, "postgresql+psycopg2"), (PGDialect_asyncpg, "postgresql+asyncpg")]
)
def test_another_driver_for_postgresql(
    styles_engine: sa.Engine, monkeypatch: pytest.MonkeyPatch, dialect: type[sa.Dialect], name: str
) -> None:
    """Their packages are not needed to see what we say: only the name of the dialect is looked at."""
    with styles_engine.connect() as connection, connection.begin():
        monkeypatch.setattr(connection, "dialect", dialect())
        with pytest.raises(ConfigurationError) as error:
            Outbox().add(connection, MESSAGE)
    assert str(error.value) == (
        f"the outbox writes through psycopg 3, not {name}; make the engine with postgresql+psycopg://"
    )


class Other(DeclarativeBase):
    """Tables that lie in another database."""


class Invoice(Other):
    __tablename__ = "invoice"
    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["Session", "AsyncSession"])
def test_a_session_with_several_engines(styles_database: str, asynchronous: bool) -> None:
    """Which of them holds the outbox? Not ours to guess."""

    async def play() -> str:
        make: Callable[[str], Any] = async_engine_of if asynchronous else engine_of
        ours, theirs = make(styles_database), make(styles_database)
        binds: Any = {Base: ours, Other: theirs}
        session: Any = AsyncSession(binds=binds) if asynchronous else Session(binds=binds)
        outbox: Any = AsyncOutbox() if asynchronous else Outbox()
        await settled(session.begin())
        with pytest.raises(ConfigurationError, match=r"has several engines; pass the connection of the one"):
            await settled(outbox.add(session, MESSAGE))
        connection = await settled(session.connection(bind_arguments={"mapper": sa.inspect(Invoice)}))
        added = await settled(outbox.add(connection, MESSAGE))
        await settled(session.commit())
        await settled(session.close())
        for engine in (ours, theirs):
            await settled(engine.dispose())
        return str(added.id)

    assert awaited(play()) in committed(styles_database)[0]


# ---- errors of the database


@asynccontextmanager
async def writing(style: Style, url: str, listening: bool) -> AsyncIterator[Handle]:
    """In a transaction that gives up on a lock at once; with a listener, the statement goes SQLAlchemy's way."""
    async with style.opened(url) as handle:
        if listening and not style.raw:
            bind = handle.target.engine if "Connection" in style.name else handle.target.bind
            sa.event.listen(getattr(bind, "sync_engine", bind), "before_cursor_execute", lambda *_: None)
        await handle.begin()
        await handle.sql("SET LOCAL lock_timeout = '1ms'")
        yield handle
        await handle.rollback()


each_way = pytest.mark.parametrize("listening", [False, True], ids=["quick", "listening"])


@each_style
@each_way
def test_an_error_of_the_database_shows_no_payload(styles_database: str, style: Style, listening: bool) -> None:
    """As SQLAlchemy's own error, because that is what callers catch and retry; psycopg's for those who use psycopg."""
    operations: dict[str, Callable[[Handle], Any]] = {
        "add": lambda handle: handle.do("add", MESSAGE),
        "add with key": lambda handle: handle.do("add", MESSAGE, dedup_key=SECRET),
        "add_many": lambda handle: handle.do("add_many", [MESSAGE, MESSAGE]),
        "add_many with keys": lambda handle: handle.do("add_many", [Message(CHARGE, [SECRET], dedup_key=SECRET)]),
    }

    async def play() -> None:
        for operation in operations.values():
            with psycopg.connect(styles_database) as other:
                other.execute("LOCK TABLE outbox_message, outbox_key IN ACCESS EXCLUSIVE MODE")
                async with writing(style, styles_database, listening) as handle:
                    expected = psycopg.errors.LockNotAvailable if style.raw else sa.exc.OperationalError
                    with pytest.raises(expected) as caught:
                        await operation(handle)
            assert SECRET not in shown(caught.value)
            if not style.raw:
                error = caught.value
                assert isinstance(error, sa.exc.DBAPIError)
                assert isinstance(error.orig, psycopg.errors.LockNotAvailable)
                assert error.hide_parameters
                assert not error.connection_invalidated
                assert SECRET not in shown(error.orig)

    awaited(play())
    assert committed(styles_database) == ([], [])


def shown(error: BaseException) -> str:
    """All that a log or an error page would show of it, hidden causes included."""
    told = f"{error!s}\n{error!r}\n{''.join(traceback.format_exception(error))}"
    return told + "".join(shown(each) for each in (error.__cause__, error.__context__) if each is not None)


@each_style
@each_way
def test_a_database_that_was_not_migrated(empty_database: str, style: Style, listening: bool) -> None:
    operations: list[Callable[[Handle], Any]] = [
        lambda handle: handle.do("add", MESSAGE),
        lambda handle: handle.do("add", MESSAGE, unique_key="a"),
        lambda handle: handle.do("add_many", [MESSAGE]),
        lambda handle: handle.do("cancel", "0190aaaa-0000-7000-8000-000000000000"),
        lambda handle: handle.do("state", "0190aaaa-0000-7000-8000-000000000000"),
        lambda handle: handle.do("batch_progress", "0190aaaa-0000-7000-8000-000000000000"),
        lambda handle: handle.do("rejected"),
    ]

    async def play() -> None:
        for operation in operations:
            async with writing(style, empty_database, listening) as handle:
                with pytest.raises(SchemaMismatch, match=r"run `outbox migrate` \(for another schema") as error:
                    await operation(handle)
                assert SECRET not in "".join(traceback.format_exception(error.value))

    awaited(play())


def test_a_schema_that_does_not_exist(styles_engine: sa.Engine) -> None:
    with Session(styles_engine) as session, session.begin():
        with pytest.raises(SchemaMismatch, match="outbox migrate"):
            Outbox("nowhere").add(session, MESSAGE)
        with pytest.raises(sa.exc.InternalError, match="aborted"):
            session.execute(sa.text("SELECT 1"))

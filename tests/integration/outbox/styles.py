"""The eight kinds of session and connection behind one face, so that one table of tests covers them all.

Test modules take over the fixtures they want: `styles_database = styles.styles_database`.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg
import pytest
import sqlalchemy as sa
from psycopg.pq import TransactionStatus
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from outbox import AsyncOutbox, Outbox
from tests.integration.outbox.storage import Base, engine_of
from tests.support.postgres import Cluster

T = TypeVar("T")

_EVERYTHING = b"""
SET lock_timeout = '10s'; -- a transaction that a test left open is named at once
TRUNCATE outbox_message, outbox_key, outbox_due, outbox_rejected, inbox_receipt, inbox_retry, inbox_consumer, shop_order
RESTART IDENTITY"""


@dataclass(frozen=True)
class Handle:
    """One session or connection, with the outbox that fits it; sync or async makes no difference here."""

    target: Any
    outbox: Any
    raw: bool
    """psycopg itself, without SQLAlchemy."""

    async def do(self, operation: str, *arguments: Any, **options: Any) -> Any:
        """`outbox.<operation>(session, ...)`"""
        return await settled(getattr(self.outbox, operation)(self.target, *arguments, **options))

    async def begin(self) -> None:
        if not self.raw:  # psycopg begins by itself
            await settled(self.target.begin())

    async def commit(self) -> None:
        await settled(self.target.commit())

    async def rollback(self) -> None:
        await settled(self.target.rollback())

    async def sql(self, statement: str) -> Any:
        """The first column of the first row, if there are rows."""
        result = await settled(self.target.execute(statement if self.raw else sa.text(statement)))
        if not self.raw:
            return result.scalar() if result.returns_rows else None
        row = await settled(result.fetchone()) if result.description else None
        return row[0] if row else None

    def in_transaction(self) -> bool:
        if self.raw:
            return bool(self.target.info.transaction_status == TransactionStatus.INTRANS)
        scoped = isinstance(self.target, scoped_session | async_scoped_session)
        return bool((self.target() if scoped else self.target).in_transaction())


async def settled(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def awaited(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(coroutine)


def async_engine_of(url: str, **options: Any) -> AsyncEngine:
    return create_async_engine(sa.make_url(url).set(drivername="postgresql+psycopg"), **options)


@asynccontextmanager
async def _session(url: str) -> AsyncIterator[Any]:
    engine = engine_of(url)
    try:
        with Session(engine) as session:
            yield session
    finally:
        engine.dispose()


@asynccontextmanager
async def _thread_session(url: str) -> AsyncIterator[Any]:
    engine = engine_of(url)
    registry = scoped_session(sessionmaker(engine))
    try:
        yield registry
    finally:
        registry.remove()
        engine.dispose()


@asynccontextmanager
async def _connection(url: str) -> AsyncIterator[Any]:
    engine = engine_of(url)
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


@asynccontextmanager
async def _async_session(url: str) -> AsyncIterator[Any]:
    engine = async_engine_of(url)
    try:
        async with AsyncSession(engine) as session:
            yield session
    finally:
        await engine.dispose()


@asynccontextmanager
async def _async_scoped_session(url: str) -> AsyncIterator[Any]:
    engine = async_engine_of(url)
    registry = async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)
    try:
        yield registry
    finally:
        await registry.remove()
        await engine.dispose()


@asynccontextmanager
async def _async_connection(url: str) -> AsyncIterator[AsyncConnection]:
    engine = async_engine_of(url)
    try:
        async with engine.connect() as connection:
            yield connection
    finally:
        await engine.dispose()


@asynccontextmanager
async def _psycopg(url: str) -> AsyncIterator[Any]:
    with psycopg.connect(url) as connection:
        yield connection


@asynccontextmanager
async def _psycopg_async(url: str) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield connection


@dataclass(frozen=True)
class Style:
    """One of the eight ways in which people write."""

    name: str
    make: Callable[[str], AbstractAsyncContextManager[Any]]
    asynchronous: bool = False
    raw: bool = False

    @asynccontextmanager
    async def opened(self, url: str) -> AsyncIterator[Handle]:
        """Not yet in a transaction."""
        async with self.make(url) as target:
            yield Handle(target, AsyncOutbox() if self.asynchronous else Outbox(), self.raw)


STYLES = (
    Style("Session", _session),
    Style("scoped_session", _thread_session),
    Style("Connection", _connection),
    Style("AsyncSession", _async_session, asynchronous=True),
    Style("async_scoped_session", _async_scoped_session, asynchronous=True),
    Style("AsyncConnection", _async_connection, asynchronous=True),
    Style("psycopg", _psycopg, raw=True),
    Style("psycopg-async", _psycopg_async, asynchronous=True, raw=True),
)

each_style = pytest.mark.parametrize("style", STYLES, ids=lambda style: style.name)
each_sqlalchemy_style = pytest.mark.parametrize(
    "style", [style for style in STYLES if not style.raw], ids=lambda style: style.name
)


@pytest.fixture(scope="module")
def shared_styles_database(cluster: Cluster, template: str) -> Iterator[str]:
    """A migrated database with one business table, for all tests of a file."""
    with cluster.database("styles", template) as url:
        engine = engine_of(url, poolclass=sa.NullPool)
        Base.metadata.create_all(engine)
        engine.dispose()
        yield url


@pytest.fixture
def styles_database(shared_styles_database: str) -> str:
    """The same without a row in it: messages, keys, receipts, consumers, orders."""
    with psycopg.connect(shared_styles_database) as connection:
        connection.execute(_EVERYTHING)
    return shared_styles_database


@pytest.fixture
def styles_engine(styles_database: str) -> Iterator[sa.Engine]:
    made = engine_of(styles_database)
    yield made
    made.dispose()

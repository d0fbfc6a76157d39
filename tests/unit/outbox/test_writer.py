"""What `add` refuses before it touches a database; what it writes is tested against PostgreSQL."""

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from outbox import AsyncOutbox, ConfigurationError, InvalidMessage, Message, NotInTransaction, Outbox

MESSAGE = Message("billing.charge")


@pytest.fixture
def engine() -> Iterator[Engine]:
    """Any database will do: nothing is ever sent to it."""
    engine = create_engine("sqlite://")
    yield engine
    engine.dispose()


@pytest.mark.parametrize(
    "message",
    [
        None,
        7,
        b"billing.charge",
        {"task": "a"},
        ["billing.charge"],
        Message,
    ],
)
def test_only_a_message_a_name_or_a_signature_can_be_added(engine: Engine, message: Any) -> None:
    with Session(engine) as session, session.begin(), pytest.raises(InvalidMessage) as refused:
        Outbox().add(session, message)
    assert str(refused.value) == (
        f"add() takes a Message, a task name or a signature, not {type(message).__name__}: write"
        ' Message("task.name", kwargs={...})'
    )


@pytest.mark.parametrize("session", [None, "postgresql://host/name", object()])
def test_only_a_session_or_connection_can_carry_it(session: Any) -> None:
    with pytest.raises(InvalidMessage) as refused:
        Outbox().add(session, MESSAGE)
    assert str(refused.value) == (
        "the first argument must be your SQLAlchemy Session or Connection, or a psycopg Connection, not "
        + type(session).__name__
    )


@pytest.mark.parametrize("session", [None, "postgresql://host/name", object()])
def test_only_an_async_session_or_connection_can_carry_it_awaited(session: Any) -> None:
    with pytest.raises(InvalidMessage) as refused:
        asyncio.run(AsyncOutbox().add(session, MESSAGE))
    assert str(refused.value) == (
        "the first argument must be your SQLAlchemy AsyncSession or AsyncConnection, or a psycopg AsyncConnection, not "
        + type(session).__name__
    )


@pytest.mark.parametrize(
    ("module", "hint"),
    [
        ("psycopg2.extensions", "; the outbox writes through psycopg 3"),
        ("asyncpg.connection", "; the outbox writes through psycopg 3"),
        ("pg8000.legacy", "; the outbox writes through psycopg 3"),
        (
            "django.db.backends.x",
            "; with Django pass the psycopg connection beneath it: django.db.connection.connection",
        ),
        ("somewhere.else", ""),
    ],
)
def test_the_connection_of_another_library_is_named(module: str, hint: str) -> None:
    stranger = type("Strange", (), {"__module__": module})()
    with pytest.raises(InvalidMessage) as refused:
        Outbox().add(stranger, MESSAGE)
    assert str(refused.value) == (
        f"the first argument must be your SQLAlchemy Session or Connection, or a psycopg Connection, not Strange{hint}"
    )


def test_code_that_waits_and_code_that_does_not_are_told_apart(engine: Engine) -> None:
    """Neither is in a transaction: the kind is looked at first."""
    waiting = create_async_engine("postgresql+psycopg://127.0.0.1:1/none")
    for given in (AsyncSession(waiting), waiting.connect(), async_scoped_session(async_sessionmaker(waiting), object)):
        with pytest.raises(InvalidMessage) as refused:
            Outbox().add(given, MESSAGE)  # type: ignore[arg-type]
        kind = type(given).__name__
        assert str(refused.value) == f"Outbox is for synchronous code; with {kind} use AsyncOutbox and await"
    for plain in (Session(engine), engine.connect(), scoped_session(sessionmaker(engine))):
        with pytest.raises(InvalidMessage) as refused:
            asyncio.run(AsyncOutbox().add(plain, MESSAGE))  # type: ignore[arg-type]
        kind = type(plain).__name__
        assert str(refused.value) == f"AsyncOutbox is for async code; with {kind} use Outbox, without await"
        plain.close()


def test_only_psycopg_3_can_carry_it(engine: Engine) -> None:
    with Session(engine) as session, session.begin(), pytest.raises(ConfigurationError) as refused:
        Outbox().add(session, MESSAGE)
    assert str(refused.value) == (
        "the outbox writes through psycopg 3, not sqlite+pysqlite; make the engine with postgresql+psycopg://"
    )


def test_a_session_with_several_engines_needs_to_be_told_which(engine: Engine) -> None:
    with Session() as session, session.begin(), pytest.raises(ConfigurationError) as refused:
        Outbox().add(session, MESSAGE)
    assert str(refused.value) == (
        "this Session has several engines; pass the connection of the one that holds the outbox:"
        " add(session.connection(bind_arguments={...}), ...)"
    )


def test_an_engine_is_not_a_transaction(engine: Engine) -> None:
    hint = "not Engine; an engine has no transaction, use `with engine.begin() as connection:`"
    with pytest.raises(InvalidMessage, match=re.escape(hint)):
        Outbox().add(engine, MESSAGE)  # type: ignore[arg-type]


def test_a_session_outside_a_transaction_is_refused(engine: Engine) -> None:
    with Session(engine) as session, pytest.raises(NotInTransaction, match=r"inside `with session.begin\(\):`"):
        Outbox().add(session, MESSAGE)


def test_a_scoped_session_outside_a_transaction_is_refused(engine: Engine) -> None:
    sessions = scoped_session(sessionmaker(engine))
    with pytest.raises(NotInTransaction):
        Outbox().add(sessions, MESSAGE)
    sessions.remove()


def test_a_connection_outside_a_transaction_is_refused(engine: Engine) -> None:
    with engine.connect() as connection, pytest.raises(NotInTransaction):
        Outbox().add(connection, MESSAGE)


def test_a_bad_payload_is_refused_before_a_connection_is_taken() -> None:
    """So the caller's transaction stays usable."""
    with pytest.raises(InvalidMessage, match=r"kwargs\.when: set is not JSON"):
        Outbox().add(None, Message("a", kwargs={"when": {1}}))  # type: ignore[arg-type]
    with pytest.raises(InvalidMessage, match=r"message 1 of the batch: kwargs\.when: set is not JSON.*; nothing was"):
        Outbox().add_many(None, ["a", Message("a", kwargs={"when": {1}})])  # type: ignore[arg-type]


@pytest.mark.parametrize("schema", ["", "pg_catalog", "x" * 64])
def test_a_wrong_schema_is_refused_when_the_outbox_is_made(schema: str) -> None:
    with pytest.raises(ConfigurationError):
        Outbox(schema)

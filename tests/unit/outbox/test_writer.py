"""What `add` refuses before it touches a database; what it writes is tested against PostgreSQL."""

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from outbox import ConfigurationError, InvalidMessage, Message, NotInTransaction, Outbox

MESSAGE = Message("billing.charge")


@pytest.fixture
def engine() -> Iterator[Engine]:
    """Any database will do: nothing is ever sent to it."""
    engine = create_engine("sqlite://")
    yield engine
    engine.dispose()


@pytest.mark.parametrize("message", ["billing.charge", None, {"task": "a"}, Message])
def test_only_a_message_can_be_added(engine: Engine, message: Any) -> None:
    with Session(engine) as session, session.begin(), pytest.raises(InvalidMessage) as refused:
        Outbox().add(session, message)
    assert str(refused.value) == (
        f'add() takes a Message, not {type(message).__name__}: write Message("task.name", kwargs={{...}})'
    )


@pytest.mark.parametrize("session", [None, "postgresql://host/name", object()])
def test_only_a_session_or_connection_can_carry_it(session: Any) -> None:
    with pytest.raises(InvalidMessage) as refused:
        Outbox().add(session, MESSAGE)
    assert str(refused.value) == (
        "add() needs your SQLAlchemy Session or Connection as first argument, not " + type(session).__name__
    )


def test_an_engine_is_not_a_transaction(engine: Engine) -> None:
    with pytest.raises(InvalidMessage, match="not Engine"):
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


@pytest.mark.parametrize("schema", ["", "pg_catalog", "x" * 64])
def test_a_wrong_schema_is_refused_when_the_outbox_is_made(schema: str) -> None:
    with pytest.raises(ConfigurationError):
        Outbox(schema)

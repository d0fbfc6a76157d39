"""`outbox.testing`: what an application's tests may ask, and what they read when it is not so."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from unittest.mock import ANY
from uuid import UUID

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from outbox import AsyncOutbox, Message, Outbox
from outbox.testing import added, assert_added, refute_added
from tests.integration.outbox.storage import CHARGE

LATER = datetime(2033, 1, 1, tzinfo=UTC)


@pytest.fixture
def session(engine: sa.Engine) -> Iterator[Session]:
    """Rolled back at the end, as in an application's own tests."""
    with Session(engine) as session:
        session.connection()
        yield session
        session.rollback()


def test_an_uncommitted_message_is_found(session: Session) -> None:
    outbox = Outbox()
    first = outbox.add(session, Message(CHARGE, (1, "a"), {"order_id": 7}, queue="mail", priority=3))
    found = assert_added(session, task=CHARGE, args=(1, "a"), kwargs={"order_id": 7}, queue="mail", priority=3)
    assert [message.id for message in found] == [first.id]
    assert_added(session, kwargs={"order_id": ANY})
    assert_added(session)


def test_keys_and_times_can_be_asked_for(session: Session) -> None:
    outbox = Outbox()
    outbox.add(session, CHARGE, dedup_key="d", unique_key="u", due_at=LATER, headers={"who": "me"})
    outbox.add(session, CHARGE, ordering_key="o", expires_at=LATER)
    assert_added(
        session, dedup_key="d", unique_key="u", due_at=LATER, ordering_key=None, headers={"who": "me"}, count=1
    )
    assert_added(session, ordering_key="o", expires_at=LATER, due_at=None, count=1)


def test_the_order_is_that_of_the_calls(session: Session) -> None:
    ids = [Outbox().add(session, CHARGE, args=[number]).id for number in range(5)]
    assert [message.id for message in added(session)] == ids


def test_the_nearest_miss_is_shown(session: Session) -> None:
    outbox = Outbox()
    outbox.add(session, "mail.send", kwargs={"order_id": 7})
    near = outbox.add(session, CHARGE, kwargs={"order_id": 8}, queue="mail")
    with pytest.raises(AssertionError) as failed:
        assert_added(session, task=CHARGE, kwargs={"order_id": 7}, queue="mail")
    assert str(failed.value) == (
        "a message with task='billing.charge', kwargs={'order_id': 7}, queue='mail': found 0 of 2;"
        f" the nearest is billing.charge(args=[], kwargs={{'order_id': 8}}) {near.id}\n"
        "  kwargs: wanted {'order_id': 7}, is {'order_id': 8}"
    )


def test_nothing_added_says_so(session: Session) -> None:
    with pytest.raises(AssertionError, match="no message was added at all"):
        assert_added(session, task=CHARGE)
    refute_added(session)


def test_a_wrong_count_fails_both_ways(session: Session) -> None:
    for _ in range(2):
        Outbox().add(session, CHARGE)
    assert_added(session, task=CHARGE, count=2)
    for count in (0, 1, 3):
        with pytest.raises(AssertionError, match=rf"^{count} messages with task='billing.charge': found 2 of 2"):
            assert_added(session, task=CHARGE, count=count)


def test_refute_lists_what_there_is(session: Session) -> None:
    one = Outbox().add(session, CHARGE, kwargs={"order_id": 7})
    refute_added(session, task="mail.send")
    with pytest.raises(AssertionError) as failed:
        refute_added(session, task=CHARGE)
    assert str(failed.value) == (
        "no message with task='billing.charge' was expected, but there are 1:\n"
        f"  billing.charge(args=[], kwargs={{'order_id': 7}}) {one.id}"
    )


def test_a_misspelt_question_is_no_pass(session: Session) -> None:
    Outbox().add(session, CHARGE)
    with pytest.raises(TypeError, match="cannot be asked for 'kwarg'"):
        refute_added(session, kwarg={"order_id": 7})  # type: ignore[call-arg]


def test_on_a_psycopg_connection(database: str) -> None:
    with psycopg.connect(database) as connection:
        Outbox().add(connection, CHARGE)
        assert_added(connection, task=CHARGE)
        connection.rollback()
        refute_added(connection)


async def _in_async_code(url: str) -> list[UUID]:
    engine = create_async_engine(sa.make_url(url).set(drivername="postgresql+psycopg"))
    async with AsyncSession(engine) as session, session.begin():
        await AsyncOutbox().add(session, CHARGE)
        found = await session.run_sync(lambda inner: assert_added(inner, task=CHARGE))
    await engine.dispose()
    return [message.id for message in found]


def test_in_async_code(database: str) -> None:

    assert len(asyncio.run(_in_async_code(database))) == 1

"""Atomic: a message exists if and only if the application's transaction committed."""

from collections.abc import Callable

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from outbox import Message, Outbox
from tests.integration.outbox.storage import CHARGE, Order, committed

OUTBOX = Outbox()
MESSAGE = Message(CHARGE, kwargs={"order_id": 7})
ORDER = sa.insert(Order).values(id=7)

Opened = Callable[[sa.Engine], Session | scoped_session[Session] | sa.Connection]


def plain_session(engine: sa.Engine) -> Session:
    return Session(engine)


def thread_session(engine: sa.Engine) -> scoped_session[Session]:
    return scoped_session(sessionmaker(engine))


def connection(engine: sa.Engine) -> sa.Connection:
    return engine.connect()


each_kind = pytest.mark.parametrize("opened", [plain_session, thread_session, connection])


@each_kind
def test_committed_together(engine: sa.Engine, database: str, opened: Opened) -> None:
    session = opened(engine)
    with session.begin():
        session.execute(ORDER)
        added = OUTBOX.add(session, MESSAGE)
        assert committed(database) == ([], [])
    session.close()
    assert committed(database) == ([str(added.id)], [7])
    assert not added.duplicate


@each_kind
def test_rolled_back_together(engine: sa.Engine, database: str, opened: Opened) -> None:
    session = opened(engine)
    session.begin()
    session.execute(ORDER)
    OUTBOX.add(session, MESSAGE)
    session.rollback()
    session.close()
    assert committed(database) == ([], [])


@each_kind
def test_an_exception_takes_both_away(engine: sa.Engine, database: str, opened: Opened) -> None:
    session = opened(engine)

    def fail_after_adding() -> None:
        with session.begin():
            session.execute(ORDER)
            OUTBOX.add(session, MESSAGE)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_after_adding()
    session.close()
    assert committed(database) == ([], [])


@each_kind
def test_a_session_closed_without_commit_leaves_nothing(engine: sa.Engine, database: str, opened: Opened) -> None:
    session = opened(engine)
    session.begin()
    OUTBOX.add(session, MESSAGE)
    session.close()
    assert committed(database) == ([], [])


@each_kind
def test_a_savepoint_rolled_back_takes_its_message_away(engine: sa.Engine, database: str, opened: Opened) -> None:
    session = opened(engine)
    with session.begin():
        before = OUTBOX.add(session, MESSAGE)
        savepoint = session.begin_nested()
        session.execute(ORDER)
        OUTBOX.add(session, MESSAGE)
        savepoint.rollback()
        after = OUTBOX.add(session, MESSAGE)
    session.close()
    assert committed(database) == ([str(before.id), str(after.id)], [])


@each_kind
def test_a_savepoint_released_keeps_its_message(engine: sa.Engine, database: str, opened: Opened) -> None:
    session = opened(engine)
    with session.begin():
        with session.begin_nested():
            session.execute(ORDER)
            added = OUTBOX.add(session, MESSAGE)
        assert committed(database) == ([], [])
    session.close()
    assert committed(database) == ([str(added.id)], [7])


def test_a_failed_statement_in_a_savepoint_spares_the_rest(engine: sa.Engine, database: str) -> None:
    with Session(engine) as session, session.begin():
        added = OUTBOX.add(session, MESSAGE)
        savepoint = session.begin_nested()
        OUTBOX.add(session, MESSAGE)
        with pytest.raises(sa.exc.DBAPIError):
            session.execute(sa.text("SELECT 1 / 0"))
        savepoint.rollback()
    assert committed(database) == ([str(added.id)], [])


def test_adding_a_business_row_first_is_enough(engine: sa.Engine, database: str) -> None:
    """The ordinary pattern of web frameworks: a session from outside, no `begin()`, one `commit()` at the end."""
    with Session(engine) as session:
        session.add(Order(id=7))
        added = OUTBOX.add(session, MESSAGE)
        assert session.new, "add() must not flush"
        session.commit()
    assert committed(database) == ([str(added.id)], [7])


def test_a_query_first_is_enough(engine: sa.Engine, database: str) -> None:
    with Session(engine) as session:
        assert session.get(Order, 7) is None
        added = OUTBOX.add(session, MESSAGE)
        session.commit()
    assert committed(database) == ([str(added.id)], [])


def test_a_failed_flush_takes_the_message_away(engine: sa.Engine, database: str) -> None:
    with Session(engine) as session, session.begin():
        session.add(Order(id=7))
    with Session(engine) as session:
        session.add(Order(id=7))
        OUTBOX.add(session, MESSAGE)
        with pytest.raises(sa.exc.IntegrityError):
            session.commit()
    assert committed(database) == ([], [7])


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_every_isolation_level(engine: sa.Engine, database: str, level: str) -> None:
    with Session(engine.execution_options(isolation_level=level)) as session:
        with session.begin():
            assert session.execute(sa.text("SHOW transaction_isolation")).scalar_one() == level.lower()
            kept = OUTBOX.add(session, MESSAGE)
            session.execute(ORDER)
        session.begin()
        OUTBOX.add(session, MESSAGE)
        session.rollback()
    assert committed(database) == ([str(kept.id)], [7])


def test_a_prepared_transaction_counts_from_its_second_commit(engine: sa.Engine, database: str) -> None:
    with engine.connect() as connection:
        two_phase = connection.begin_twophase()
        added = OUTBOX.add(connection, MESSAGE)
        two_phase.prepare()
        assert committed(database) == ([], [])
        two_phase.commit()
    assert committed(database) == ([str(added.id)], [])

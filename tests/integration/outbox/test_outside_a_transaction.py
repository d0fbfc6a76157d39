"""Where no transaction would carry the message, add() refuses, and nothing is written."""

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from outbox import Message, NotInTransaction, Outbox
from tests.integration.outbox.storage import CHARGE, Order, committed, engine_of, watched

OUTBOX = Outbox()
MESSAGE = Message(CHARGE, kwargs={"order_id": 7})
OUTSIDE = (
    "the outbox was called outside a transaction: the message would commit apart from your changes, or never."
    " Call it inside `with session.begin():`, before the commit"
)
AUTOCOMMIT = (
    "the outbox was called on an AUTOCOMMIT connection: the message would commit apart from your changes."
    " Use a connection with a real transaction (isolation_level other than AUTOCOMMIT)"
)


def refuse(engine: sa.Engine, database: str, session: Any, why: str) -> None:
    """The very message, not a statement sent, nothing written."""
    with watched(engine) as seen, pytest.raises(NotInTransaction) as refused:
        OUTBOX.add(session, MESSAGE)
    assert str(refused.value) == why
    assert seen.statements == []
    assert committed(database) == ([], [])


def test_a_fresh_session(engine: sa.Engine, database: str) -> None:
    with Session(engine) as session:
        refuse(engine, database, session, OUTSIDE)


def test_a_fresh_scoped_session(engine: sa.Engine, database: str) -> None:
    session = scoped_session(sessionmaker(engine))
    refuse(engine, database, session, OUTSIDE)
    session.remove()


def test_a_fresh_connection(engine: sa.Engine, database: str) -> None:
    with engine.connect() as connection:
        refuse(engine, database, connection, OUTSIDE)


@pytest.mark.parametrize("end", ["commit", "rollback", "close"])
def test_a_session_whose_transaction_is_over(engine: sa.Engine, database: str, end: str) -> None:
    with Session(engine) as session:
        session.execute(sa.text("SELECT 1"))
        getattr(session, end)()
        refuse(engine, database, session, OUTSIDE)


def test_a_connection_whose_transaction_is_over(engine: sa.Engine, database: str) -> None:
    with engine.connect() as connection:
        with connection.begin():
            pass
        refuse(engine, database, connection, OUTSIDE)


def test_a_closed_connection(engine: sa.Engine, database: str) -> None:
    with engine.connect() as connection:
        pass
    refuse(engine, database, connection, OUTSIDE)


def test_a_session_that_may_not_be_used_after_close(engine: sa.Engine, database: str) -> None:
    session = Session(engine, close_resets_only=False)
    session.close()
    refuse(engine, database, session, OUTSIDE)


def test_a_session_after_a_failed_flush_says_so(engine: sa.Engine, database: str) -> None:
    with Session(engine) as session, session.begin():
        session.add(Order(id=7))
    with Session(engine) as session:
        session.add(Order(id=7))
        with pytest.raises(sa.exc.IntegrityError):
            session.flush()
        with pytest.raises(NotInTransaction, match="already failed or ended; roll it back and begin again"):
            OUTBOX.add(session, MESSAGE)
    assert committed(database) == ([], [7])


def test_a_session_of_an_autocommit_engine(engine: sa.Engine, database: str) -> None:
    autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
    with Session(autocommit) as session, session.begin():
        refuse(engine, database, session, AUTOCOMMIT)


def test_an_engine_that_was_made_with_autocommit(engine: sa.Engine, database: str) -> None:
    autocommit = engine_of(database, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with autocommit.connect() as connection, connection.begin():
        refuse(autocommit, database, connection, AUTOCOMMIT)


def test_a_connection_set_to_autocommit(engine: sa.Engine, database: str) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection, connection.begin():
        refuse(engine, database, connection, AUTOCOMMIT)


def test_a_driver_connection_set_to_autocommit_behind_the_back(engine: sa.Engine, database: str) -> None:
    with Session(engine) as session, session.begin():
        driver = session.connection().connection.driver_connection
        assert driver is not None
        driver.autocommit = True
        refuse(engine, database, session, AUTOCOMMIT)
        driver.autocommit = False

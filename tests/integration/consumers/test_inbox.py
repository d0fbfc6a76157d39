"""The inbox on a real database: one effect a message, whatever is delivered and however often."""

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session, sessionmaker

from consumers import Delivery, Inbox
from consumers.inbox import intact
from consumers.outcome import Applied, Duplicate, Failed, InProgress, Unavailable
from outbox import codec
from relay.embedded import wait_until
from tests.support import ledger
from tests.support.proxy import Proxy

LEVELS = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]


def engine_for(url: str, **options: Any) -> sa.Engine:
    return sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://", 1), **options)


@pytest.fixture(params=LEVELS)
def engine(request: pytest.FixtureRequest, database: str) -> Iterator[sa.Engine]:
    ledger.create(database)
    made = engine_for(database, isolation_level=request.param, pool_size=10)
    yield made
    made.dispose()


@pytest.fixture
def inbox(engine: sa.Engine) -> Inbox:
    return Inbox(sessionmaker(engine))


def delivery_of(message_id: UUID | None = None, **fields: Any) -> Delivery:
    return Delivery(message_id or uuid4(), "ledger.apply", from_outbox=True, **fields)


def effects(engine: sa.Engine, message_id: UUID) -> int:
    with engine.connect() as connection:
        found = connection.execute(
            sa.text("SELECT count(*) FROM ledger_effect WHERE message_id = :id"), {"id": message_id}
        )
        return int(found.scalar_one())


def receipts(engine: sa.Engine, message_id: UUID) -> list[str]:
    with engine.connect() as connection:
        found = connection.execute(
            sa.text("SELECT status FROM inbox_receipt WHERE message_id = :id"), {"id": message_id}
        )
        return [row.status for row in found]


def test_effect_and_receipt_are_one_commit(inbox: Inbox, engine: sa.Engine) -> None:
    delivery = delivery_of(published_at="2026-01-01T00:00:00+00:00", epoch=7, relay="relay-1")

    def handler(session: Session) -> str:
        ledger.effect(session, delivery.id)
        assert receipts(engine, delivery.id) == []
        return "done"

    assert inbox.run(delivery, handler) == Applied("done")
    assert effects(engine, delivery.id) == 1
    assert receipts(engine, delivery.id) == ["applied"]


def test_a_second_copy_is_a_duplicate_and_runs_nothing(inbox: Inbox, engine: sa.Engine) -> None:
    delivery = delivery_of()
    inbox.run(delivery, lambda session: ledger.effect(session, delivery.id))
    assert inbox.run(delivery, lambda _: pytest.fail("must not run")) == Duplicate("applied")
    assert effects(engine, delivery.id) == 1


@pytest.mark.parametrize("status", ["dead", "cancelled", "expired", "discarded"])
def test_every_terminal_outcome_stops_a_late_copy(inbox: Inbox, engine: sa.Engine, status: str) -> None:
    delivery = delivery_of()
    with engine.begin() as connection:
        connection.execute(
            sa.text("INSERT INTO inbox_receipt (message_id, consumer, status) VALUES (:id, 'ledger.apply', :status)"),
            {"id": delivery.id, "status": status},
        )
    assert inbox.run(delivery, lambda _: pytest.fail("must not run")) == Duplicate(status)


def test_a_failing_handler_leaves_neither_effect_nor_receipt(inbox: Inbox, engine: sa.Engine) -> None:
    delivery = delivery_of()
    error = RuntimeError("no")

    def handler(session: Session) -> None:
        ledger.effect(session, delivery.id)
        raise error

    assert inbox.run(delivery, handler) == Failed(error)
    assert effects(engine, delivery.id) == 0
    assert receipts(engine, delivery.id) == []
    assert isinstance(inbox.run(delivery, lambda session: ledger.effect(session, delivery.id)), Applied)


def test_a_handler_that_breaks_a_constraint_has_failed(inbox: Inbox, engine: sa.Engine) -> None:
    delivery = delivery_of()
    outcome = inbox.run(
        delivery, lambda session: session.execute(sa.text("INSERT INTO ledger_effect VALUES (1, NULL)"))
    )
    assert isinstance(outcome, Failed)
    assert receipts(engine, delivery.id) == []


def test_a_running_message_is_in_progress_for_everyone_else(inbox: Inbox, engine: sa.Engine) -> None:
    delivery = delivery_of()
    outcomes: list[object] = []

    def handler(session: Session) -> None:
        outcomes.append(inbox.run(delivery, lambda _: pytest.fail("must not run")))
        ledger.effect(session, delivery.id)

    inbox.run(delivery, handler)
    assert outcomes == [InProgress()]
    assert effects(engine, delivery.id) == 1


def run_at_once(copies: int, inbox: Inbox, delivery: Delivery) -> list[object]:
    barrier = threading.Barrier(copies)
    outcomes: list[object] = []

    def copy() -> None:
        barrier.wait()
        outcomes.append(inbox.run(delivery, lambda session: ledger.effect(session, delivery.id)))

    threads = [threading.Thread(target=copy) for _ in range(copies)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def test_eight_copies_at_once_give_one_effect(inbox: Inbox, engine: sa.Engine) -> None:
    for _ in range(20):
        delivery = delivery_of()
        outcomes = run_at_once(8, inbox, delivery)
        assert sum(isinstance(outcome, Applied) for outcome in outcomes) == 1, outcomes
        assert all(isinstance(outcome, Applied | Duplicate | InProgress) for outcome in outcomes), outcomes
        assert effects(engine, delivery.id) == 1


def test_the_receipt_of_another_run_rolls_everything_back(inbox: Inbox, engine: sa.Engine) -> None:
    """The lock only saves work; were it not there, the primary key would still decide."""
    delivery = delivery_of()

    def handler(session: Session) -> None:
        ledger.effect(session, delivery.id)
        with engine.begin() as other:
            ledger.effect(other, delivery.id)
            other.execute(
                sa.text("INSERT INTO inbox_receipt VALUES (:id, 'ledger.apply', 'applied')"), {"id": delivery.id}
            )

    assert inbox.run(delivery, handler) == Duplicate("applied")
    assert effects(engine, delivery.id) == 1


def test_retries_and_checks_are_written_down_for_the_relay(inbox: Inbox, engine: sa.Engine) -> None:
    delivery = delivery_of(attempt=2)
    inbox.schedule_retry(delivery, RuntimeError("secret text"), timedelta(seconds=30))
    inbox.schedule_check(delivery)
    with engine.connect() as connection:
        rows = connection.execute(sa.text("SELECT kind, attempt, error FROM inbox_retry ORDER BY kind")).fetchall()
    assert [tuple(row) for row in rows] == [("check", 2, None), ("failure", 3, "RuntimeError")]


@pytest.mark.parametrize("forwarded", [True, False], ids=["the commit landed", "the commit was lost"])
def test_an_ambiguous_commit_is_settled_by_the_next_delivery(
    database: str, proxy_to: Callable[[int], Proxy], forwarded: bool
) -> None:
    """The connection breaks while COMMIT is under way: nobody can know, so nothing is counted."""
    ledger.create(database)
    proxy = proxy_to(int(psycopg.conninfo.conninfo_to_dict(database)["port"] or 0))
    engine = engine_for(proxy.url(database))
    inbox = Inbox(sessionmaker(engine))
    delivery = delivery_of()
    trap = proxy.cut_at(b"COMMIT", forwarded=forwarded)
    first = inbox.run(delivery, lambda session: ledger.effect(session, delivery.id))
    trap.wait()
    assert isinstance(first, Unavailable)

    def settled() -> object:
        """The server may not have noticed the broken line yet: until then the message counts as running."""
        outcome = inbox.run(delivery, lambda session: ledger.effect(session, delivery.id))
        return None if isinstance(outcome, InProgress) else outcome

    second = wait_until(settled, 10, "the broken session to end")
    assert isinstance(second, Duplicate if forwarded else Applied)
    assert effects(engine, delivery.id) == 1
    engine.dispose()


def test_arguments_that_differ_from_what_was_written_are_recognised() -> None:
    written = codec.body_hash("ledger.apply", (1,), {"a": 2}).hex()
    assert intact(delivery_of(body_hash=written), [1], {"a": 2})
    assert not intact(delivery_of(body_hash=written), [1], {"a": 3})
    assert not intact(delivery_of(body_hash=written), [2], {"a": 2})
    assert intact(delivery_of(), [1], {"a": 3}), "a message without a hash is taken as it is"


def commits(session: Session) -> None:
    ledger.effect(session, MISUSED.id)
    session.commit()


def rolls_back(session: Session) -> None:
    ledger.effect(session, MISUSED.id)
    session.rollback()


class Promise:
    """What an async handler returns in place of a result."""

    def __await__(self) -> Iterator[None]:
        yield


def promises(session: Session) -> Promise:
    ledger.effect(session, MISUSED.id)
    return Promise()


def rolls_back_in_sql(session: Session) -> None:
    ledger.effect(session, MISUSED.id)
    session.execute(sa.text("ROLLBACK"))


def generates(session: Session) -> Iterator[None]:
    ledger.effect(session, MISUSED.id)
    yield


MISUSED = delivery_of()


@pytest.mark.parametrize("handler", [commits, rolls_back, promises, rolls_back_in_sql, generates])
def test_a_handler_that_ends_the_transaction_or_only_promises_has_failed(
    inbox: Inbox, engine: sa.Engine, handler: Callable[[Session], object]
) -> None:
    assert isinstance(inbox.run(MISUSED, handler), Failed)
    assert effects(engine, MISUSED.id) == 0
    assert receipts(engine, MISUSED.id) == []


def test_a_handlers_own_timeout_is_a_failure_and_no_outage(inbox: Inbox, engine: sa.Engine) -> None:
    def slow(session: Session) -> None:
        session.execute(sa.text("SET LOCAL statement_timeout = 20"))
        session.execute(sa.text("SELECT pg_sleep(5)"))

    assert isinstance(inbox.run(delivery_of(), slow), Failed)


def test_an_autocommit_engine_is_refused_before_anything_runs(database: str) -> None:
    ledger.create(database)
    engine = engine_for(database, isolation_level="AUTOCOMMIT")
    delivery = delivery_of()
    outcome = Inbox(sessionmaker(engine)).run(delivery, lambda session: ledger.effect(session, delivery.id))
    assert isinstance(outcome, Failed)
    assert "AUTOCOMMIT" in str(outcome.error)
    assert effects(engine, delivery.id) == 0
    engine.dispose()


def test_registering_leaves_no_connection_to_inherit(database: str) -> None:
    """Whatever way the session finds its engine: a pooled connection would be shared by all forked children."""
    engine = engine_for(database)

    class Routing(Session):
        def get_bind(self, *_: Any, **__: Any) -> sa.Engine:
            return engine

    Inbox(sessionmaker(class_=Routing)).register("ledger.apply")
    others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    with psycopg.connect(database, autocommit=True) as connection:
        wait_until(lambda: connection.execute(others).fetchone() == (0,), 10, "the registering connection to close")
    engine.dispose()


def test_savepoints_are_the_handlers_own(inbox: Inbox, engine: sa.Engine) -> None:
    delivery = delivery_of()

    def handler(session: Session) -> None:
        with session.begin_nested():
            ledger.effect(session, delivery.id)
        undone = session.begin_nested()
        ledger.effect(session, delivery.id)
        undone.rollback()

    assert isinstance(inbox.run(delivery, handler), Applied)
    assert effects(engine, delivery.id) == 1


def test_a_registration_that_failed_is_made_up_for_with_the_next_receipt(
    database: str, proxy_to: Callable[[int], Proxy]
) -> None:
    ledger.create(database)
    proxy = proxy_to(int(psycopg.conninfo.conninfo_to_dict(database)["port"] or 0))
    engine = engine_for(proxy.url(database))
    inbox = Inbox(sessionmaker(engine))
    proxy.refuse()
    with pytest.raises(sa.exc.OperationalError):
        inbox.register("ledger.apply")
    proxy.heal()
    delivery = delivery_of()
    assert isinstance(inbox.run(delivery, lambda session: ledger.effect(session, delivery.id)), Applied)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT task FROM inbox_consumer").scalars().all() == ["ledger.apply"]
    engine.dispose()

"""cancel(), state() and batch_progress(): what is said, and that cancel and effect exclude each other."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID, uuid4

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session, sessionmaker

from consumers.delivery import Delivery
from consumers.inbox import Inbox
from consumers.outcome import Applied, Duplicate, Failed, InProgress, Outcome
from outbox import BatchProgress, Cancellation, InvalidMessage, Message, NotSupported, Outbox, State
from tests.integration.outbox.storage import (
    CHARGE,
    Order,
    Postgres,
    ask,
    committed,
    end,
    engine_of,
    messages,
    register,
    wait_blocked,
)

OUTBOX = Outbox()
PLAIN = "plain.task"
Opened = Callable[[], Postgres]


def add(connection: Postgres, task: str = CHARGE, **options: float) -> UUID:
    added = OUTBOX.add(connection, Message(task, **options))  # type: ignore[arg-type]
    connection.commit()
    return added.id


def cancel(connection: Postgres, message_id: UUID) -> tuple[str, str]:
    answer = OUTBOX.cancel(connection, message_id)
    connection.commit()
    assert answer.id == message_id
    return answer.outcome.value, answer.state.value


def state(connection: Postgres, message_id: UUID) -> State:
    answer = OUTBOX.state(connection, message_id)
    connection.rollback()
    return answer


def consume(url: str, message_id: UUID, handler: Callable[[Session], object]) -> Outcome:
    """As a worker would with one copy of the message."""
    engine = engine_of(url, poolclass=sa.NullPool)
    return Inbox(sessionmaker(engine)).run(Delivery(message_id, CHARGE), handler)


def publish(url: str) -> None:
    """Everything that is in the log is with the broker."""
    ask(url, "UPDATE outbox_leader SET prev = pg_current_snapshot()")


def test_cancelled_before_a_consumer_came(opened: Opened, database: str) -> None:
    register(database)
    connection = opened()
    message = add(connection)
    assert cancel(connection, message) == ("cancelled", "cancelled")
    assert ask(database, "SELECT consumer, status FROM inbox_receipt") == [(CHARGE, "cancelled")]
    ran: list[object] = []
    assert consume(database, message, ran.append) == Duplicate("cancelled")
    assert ran == []
    assert cancel(connection, message) == ("finished", "cancelled")


def test_ids_as_text(opened: Opened, database: str) -> None:
    register(database)
    connection = opened()
    message = add(connection)
    assert OUTBOX.state(connection, str(message)) is State.QUEUED
    assert OUTBOX.cancel(connection, str(message)).id == message
    with pytest.raises(InvalidMessage, match=r"^id 'x' is not a message id"):
        OUTBOX.cancel(connection, "x")


def test_cancelled_while_a_consumer_runs(opened: Opened, database: str) -> None:
    register(database)
    connection = opened()
    message = add(connection)
    answers: list[tuple[str, str]] = []
    outcome = consume(database, message, lambda _: answers.append(cancel(connection, message)))
    assert isinstance(outcome, Applied)
    assert answers == [("running", "running")]
    assert cancel(connection, message) == ("finished", "applied")


def test_a_handler_cannot_cancel_its_own_message(opened: Opened, database: str) -> None:
    """It holds the consumer's lock itself, and could take it once more."""
    register(database)
    message = add(opened())
    answers: list[str] = []
    outcome = consume(database, message, lambda session: answers.append(OUTBOX.cancel(session, message).outcome.value))
    assert isinstance(outcome, Applied)
    assert answers == ["running"]


def test_a_consumer_that_comes_while_the_cancel_is_open(opened: Opened, database: str) -> None:
    """It does not run and asks again later: by then the cancel has committed, or not."""
    register(database)
    connection = opened()
    message = add(connection)
    assert OUTBOX.cancel(connection, message).outcome == "cancelled"
    assert consume(database, message, lambda _: pytest.fail("ran")) == InProgress()
    connection.rollback()
    assert isinstance(consume(database, message, lambda _: None), Applied)
    assert ask(database, "SELECT status FROM inbox_receipt") == [("applied",)]


def test_an_end_between_the_look_and_the_lock(opened: Opened, database: str, pool: ThreadPoolExecutor) -> None:
    """A receipt that is inserted but not committed, without the consumer's lock: the primary key decides."""
    register(database)
    connection, other = opened(), opened()
    message = add(connection)
    other.execute("INSERT INTO inbox_receipt (message_id, consumer, status) VALUES (%s, %s, 'dead')", [message, CHARGE])
    waiting = pool.submit(cancel, connection, message)
    wait_blocked(database, connection)
    other.commit()
    assert waiting.result(15) == ("finished", "dead")


@pytest.mark.parametrize("status", ["applied", "dead", "cancelled", "expired", "discarded"])
def test_what_has_ended_stays_so(opened: Opened, database: str, status: str) -> None:
    register(database)
    connection = opened()
    message = add(connection)
    end(database, message, status)
    assert cancel(connection, message) == ("finished", status)
    assert state(connection, message).value == status
    assert state(connection, message).final
    ask(database, "DELETE FROM outbox_message")
    assert cancel(connection, message) == ("finished", status), "the receipt outlives the message"


def test_unknown(opened: Opened, database: str) -> None:
    connection, other = opened(), opened()
    assert cancel(connection, uuid4()) == ("unknown", "unknown")
    assert state(connection, uuid4()) is State.UNKNOWN
    uncommitted = OUTBOX.add(other, Message(CHARGE)).id
    assert cancel(connection, uncommitted) == ("unknown", "unknown")
    assert OUTBOX.state(other, uncommitted) is State.QUEUED, "its own transaction knows it"
    assert ask(database, "SELECT count(*) FROM inbox_receipt") == [(0,)]


def test_a_plain_task_can_be_cancelled_only_before_its_time(opened: Opened, database: str) -> None:
    """Nothing looks for a receipt once a copy is on its way."""
    connection = opened()
    now, later = add(connection, PLAIN), add(connection, PLAIN, delay=60)
    assert cancel(connection, now) == ("too_late", "queued")
    publish(database)
    assert cancel(connection, now) == ("too_late", "published")
    assert cancel(connection, later) == ("cancelled", "cancelled")
    assert ask(database, "SELECT count(*) FROM inbox_receipt") == [(1,)]


def test_a_rollback_means_nothing_happened(engine: sa.Engine, opened: Opened, database: str) -> None:
    register(database)
    message = add(opened())
    with Session(engine) as session, session.begin() as transaction:
        session.add(Order(id=7))
        assert OUTBOX.cancel(session, message).outcome == "cancelled"
        assert OUTBOX.state(session, message) is State.CANCELLED
        transaction.rollback()
    assert state(opened(), message) is State.QUEUED
    assert ask(database, "SELECT count(*) FROM inbox_receipt") == [(0,)]
    assert isinstance(consume(database, message, lambda _: None), Applied)


def test_with_the_business_rows(engine: sa.Engine, opened: Opened, database: str) -> None:
    register(database)
    message = add(opened())
    with Session(engine) as session, session.begin():
        session.add(Order(id=7))
        answer = OUTBOX.cancel(session, message)
    assert answer == Cancellation(message, answer.outcome, State.CANCELLED)
    assert committed(database) == ([str(message)], [7])


def test_two_cancels_at_a_time(opened: Opened, database: str) -> None:
    """Never waits: the second hears that somebody is at it, and later that it has ended."""
    register(database)
    first, second = opened(), opened()
    message = add(first)
    OUTBOX.cancel(first, message)
    second.execute("SET lock_timeout = '2s'")
    assert cancel(second, message)[0] == "running"
    first.commit()
    assert cancel(second, message) == ("finished", "cancelled")


def test_a_consumer_in_another_database_is_refused(engine: sa.Engine, opened: Opened, database: str) -> None:
    register(database, inbox="other")
    message = add(opened())
    with Session(engine) as session, session.begin():
        session.add(Order(id=7))
        with pytest.raises(NotSupported, match="consumed in another database"):
            OUTBOX.cancel(session, message)
    assert committed(database) == ([str(message)], [7])
    assert ask(database, "SELECT count(*) FROM inbox_receipt") == [(0,)]


def test_repeatable_read_fails_as_postgresql_does(opened: Opened, database: str) -> None:
    register(database)
    first, second = opened(), opened()
    message = add(first)
    second.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    second.execute("SELECT 1")
    end(database, message)
    with pytest.raises(psycopg.errors.SerializationFailure):
        OUTBOX.cancel(second, message)


def test_a_whole_life(opened: Opened, database: str) -> None:
    """The states of one message with a consumer, in the order in which they come."""
    register(database)
    connection = opened()
    message = OUTBOX.add(connection, Message(CHARGE, delay=60)).id
    assert OUTBOX.state(connection, message) is State.SCHEDULED
    connection.commit()
    assert state(connection, message) is State.SCHEDULED
    publish(database)
    assert state(connection, message) is State.SCHEDULED, "the log has passed it, its time has not"
    ask(database, "UPDATE outbox_due SET publication = 1")
    assert state(connection, message) is State.PUBLISHED
    seen: list[State] = []

    def fail(_session: Session) -> None:
        seen.append(state(connection, message))
        raise ZeroDivisionError

    assert isinstance(consume(database, message, fail), Failed)
    assert seen == [State.RUNNING]
    assert state(connection, message) is State.PUBLISHED
    ask(database, "INSERT INTO inbox_retry VALUES (%s, %s, 'failure', 1, clock_timestamp())", message, CHARGE)
    assert state(connection, message) is State.RETRYING
    ask(database, "DELETE FROM inbox_retry")
    ask(database, "UPDATE outbox_due SET reason = 'retry'")
    assert state(connection, message) is State.PUBLISHED, "a check, not a failed run"
    ask(database, "UPDATE outbox_due SET attempt = 1")
    assert state(connection, message) is State.RETRYING
    ask(database, "UPDATE outbox_due SET attempt = 0, reason = 'parked'")
    assert state(connection, message) is State.QUEUED
    ask(database, "UPDATE outbox_due SET reason = 'redelivery'")
    consume(database, message, lambda _: seen.append(state(connection, message)))
    assert seen == [State.RUNNING, State.RUNNING]
    assert state(connection, message) is State.APPLIED


def test_queued_until_the_position_has_passed(opened: Opened, database: str) -> None:
    """Within an open window by seq; a message that commits late is not taken for published."""
    connection, late = opened(), opened()
    slow = OUTBOX.add(late, Message(PLAIN)).id
    first, second = add(connection, PLAIN), add(connection, PLAIN)
    assert {state(connection, each) for each in (first, second)} == {State.QUEUED}
    ask(database, "UPDATE outbox_leader SET next = pg_current_snapshot(), last_seq = 2")
    late.commit()
    assert [state(connection, each) for each in (first, second, slow)] == [
        State.PUBLISHED,
        State.QUEUED,
        State.QUEUED,
    ], "seq 2, 3, and 1 of a transaction that this window does not see"
    ask(database, "UPDATE outbox_leader SET prev = next, next = NULL, last_seq = 0")
    assert [state(connection, each) for each in (first, second, slow)] == [
        State.PUBLISHED,
        State.PUBLISHED,
        State.QUEUED,
    ]
    publish(database)
    assert state(connection, slow) is State.PUBLISHED


def test_progress_of_a_batch(opened: Opened, database: str) -> None:
    register(database)
    connection = opened()
    given = [Message(CHARGE) for _ in range(6)] + [Message(CHARGE, delay=60), Message(CHARGE, unique_key="u")]
    OUTBOX.add(connection, Message(CHARGE, unique_key="u"))
    batch = OUTBOX.add_many(connection, given)
    assert OUTBOX.batch_progress(connection, batch.id).total == 7, "the rejected one is not part of it"
    connection.commit()
    assert OUTBOX.batch_progress(connection, str(batch.id)) == BatchProgress(
        batch.id, {State.QUEUED: 6, State.SCHEDULED: 1}
    )
    for added, status in zip(batch[:3], ("applied", "applied", "dead"), strict=True):
        end(database, added.id, status)
    cancel(connection, batch[6].id)
    progress = OUTBOX.batch_progress(connection, batch.id)
    assert progress.states == {State.APPLIED: 2, State.DEAD: 1, State.CANCELLED: 1, State.QUEUED: 3}
    assert (progress.total, progress.ended, progress.finished) == (7, 4, False)
    for added in batch[3:6]:
        end(database, added.id)
    assert OUTBOX.batch_progress(connection, batch.id).finished
    nobody = OUTBOX.batch_progress(connection, uuid4())
    assert (nobody.total, nobody.finished) == (0, False)


def test_asking_writes_nothing(opened: Opened, database: str) -> None:
    connection = opened()
    message = add(connection)
    OUTBOX.state(connection, message)
    OUTBOX.batch_progress(connection, uuid4())
    OUTBOX.rejected(connection)
    assert connection.execute("SELECT pg_current_xact_id_if_assigned()").fetchone() == (None,)
    assert messages(database) == [message]

"""dedup_key: the same key and body again is the same message, whoever comes first and however they overlap."""

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import suppress
from datetime import timedelta
from uuid import UUID

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from outbox import Added, DedupConflict, InvalidMessage, Message, Outbox
from tests.integration.outbox.storage import (
    CHARGE,
    Order,
    Postgres,
    ask,
    committed,
    engine_of,
    keys,
    messages,
    wait_blocked,
)

OUTBOX = Outbox()
Opened = Callable[[], Postgres]


def charge(body: int = 1, key: str | None = "order:7", **options: object) -> Message:
    return Message(CHARGE, kwargs={"n": body}, dedup_key=key, **options)  # type: ignore[arg-type]


def add(connection: Postgres, message: Message) -> UUID:
    added = OUTBOX.add(connection, message)
    assert not added.duplicate
    connection.commit()
    return added.id


def let_windows_pass(url: str) -> None:
    ask(url, "UPDATE outbox_key SET expires_at = clock_timestamp() - interval '1 s' WHERE expires_at IS NOT NULL")


def test_again_is_the_same_message(engine: sa.Engine, opened: Opened, database: str) -> None:
    """Whatever else is said the second time: key and body are what counts."""
    first = add(opened(), charge())
    with Session(engine) as session, session.begin():
        session.add(Order(id=7))
        again = OUTBOX.add(session, charge(queue="other", priority=3, delay=60))
        assert (again.id, again.duplicate, again.existing) == (first, True, None)
    assert committed(database) == ([str(first)], [7])
    assert ask(database, "SELECT count(*) FROM outbox_due") == [(0,)]
    assert keys(database, "dedup") == {"order:7": first}


def test_keys_are_compared_as_they_are(opened: Opened, database: str) -> None:
    connection = opened()
    for key in ("k", "K", "k ", " k", "ｋ", "k\u0301", "%s", "k" * 255):
        add(connection, charge(key=key))
    assert len(messages(database)) == 8


def test_twice_in_one_transaction(opened: Opened, database: str) -> None:
    connection = opened()
    first, second = OUTBOX.add(connection, charge()), OUTBOX.add(connection, charge())
    connection.commit()
    assert (second.id, second.duplicate) == (first.id, True)
    assert messages(database) == [first.id]


def test_twice_in_one_batch(opened: Opened, database: str) -> None:
    connection = opened()
    batch = OUTBOX.add_many(connection, [charge(), charge(key="other"), charge()])
    connection.commit()
    assert [each.duplicate for each in batch] == [False, False, True]
    assert batch[2].id == batch[0].id
    assert messages(database) == [batch[0].id, batch[1].id]


def test_a_savepoint_rolled_back_gives_the_key_back(opened: Opened, database: str) -> None:
    connection = opened()
    with connection.transaction():
        with connection.transaction(force_rollback=True):
            lost = OUTBOX.add(connection, charge())
        kept = OUTBOX.add(connection, charge())
    assert not kept.duplicate
    assert kept.id != lost.id
    assert messages(database) == [kept.id]
    assert keys(database, "dedup") == {"order:7": kept.id}


def test_a_rollback_leaves_no_key(opened: Opened, database: str) -> None:
    connection = opened()
    OUTBOX.add(connection, charge())
    connection.rollback()
    assert keys(database, "dedup") == {}


@pytest.mark.parametrize("commits", [True, False], ids=["commits", "rolls back"])
def test_a_writer_waits_until_the_first_has_decided(
    opened: Opened, database: str, pool: ThreadPoolExecutor, commits: bool
) -> None:
    first, second = opened(), opened()
    one = OUTBOX.add(first, charge())
    waiting = pool.submit(OUTBOX.add, second, charge())
    wait_blocked(database, second)
    first.commit() if commits else first.rollback()
    two = waiting.result(15)
    second.commit()
    assert two.duplicate == commits
    assert messages(database) == [two.id]
    assert (two.id == one.id) == commits


def test_of_two_that_wait_exactly_one_wins(opened: Opened, database: str, pool: ThreadPoolExecutor) -> None:
    first, others = opened(), [opened(), opened()]
    OUTBOX.add(first, charge())
    waiting = {pool.submit(OUTBOX.add, each, charge()): each for each in others}
    wait_blocked(database, *others)
    first.rollback()
    done, left = wait(waiting, 15, FIRST_COMPLETED)
    assert (len(done), len(left)) == (1, 1)
    (winner,), (loser,) = done, left
    assert not winner.result().duplicate
    wait_blocked(database, waiting[loser])
    waiting[winner].commit()
    assert loser.result(15).duplicate
    assert loser.result().id == winner.result().id
    waiting[loser].commit()
    assert messages(database) == [winner.result().id]


def test_a_window_ends(opened: Opened, database: str) -> None:
    connection = opened()
    windowed = charge(dedup_window=timedelta(hours=1))
    first = add(connection, windowed)
    ((left,),) = ask(database, "SELECT expires_at - clock_timestamp() FROM outbox_key")
    assert timedelta(minutes=59) < left <= timedelta(hours=1)
    assert OUTBOX.add(connection, windowed).id == first
    connection.commit()
    let_windows_pass(database)
    second = add(connection, charge(body=2, dedup_window=60.0))
    assert messages(database) == [first, second]
    assert keys(database, "dedup") == {"order:7": second}
    assert OUTBOX.add(connection, charge(body=2)).id == second, "the new window counts"


def test_without_a_window_the_key_does_not_end(opened: Opened, database: str) -> None:
    add(opened(), charge())
    assert ask(database, "SELECT expires_at FROM outbox_key") == [(None,)]


@pytest.mark.parametrize("commits", [True, False], ids=["commits", "rolls back"])
def test_of_two_that_find_the_window_over_one_takes_the_key(
    opened: Opened, database: str, pool: ThreadPoolExecutor, commits: bool
) -> None:
    first, second = opened(), opened()
    old = add(first, charge(dedup_window=60))
    let_windows_pass(database)
    one = OUTBOX.add(first, charge())
    waiting = pool.submit(OUTBOX.add, second, charge())
    wait_blocked(database, second)
    first.commit() if commits else first.rollback()
    two = waiting.result(15)
    second.commit()
    assert two.duplicate == commits
    assert (two.id == one.id) == commits
    assert messages(database) == [old, two.id]
    assert keys(database, "dedup") == {"order:7": two.id}


def test_of_two_that_have_read_an_expired_key_one_takes_it(
    opened: Opened, database: str, pool: ThreadPoolExecutor
) -> None:
    """A lock on the row stops both between their look at it and their update; a plain update would serve both."""
    holder, writers = opened(), [opened(), opened()]
    old = add(holder, charge(dedup_window=60))
    let_windows_pass(database)
    holder.execute("SELECT FROM outbox_key FOR UPDATE")

    def write(connection: Postgres) -> Added:
        added = OUTBOX.add(connection, charge(body=2))
        connection.commit()
        return added

    waiting = [pool.submit(write, each) for each in writers]
    wait_blocked(database, *writers)
    holder.rollback()
    answers = [each.result(15) for each in waiting]
    assert sorted(each.duplicate for each in answers) == [False, True]
    assert messages(database) == [old, answers[0].id] == [old, answers[1].id]


def test_another_body_is_refused_and_the_transaction_goes_on(engine: sa.Engine, opened: Opened, database: str) -> None:
    first = add(opened(), charge())
    with Session(engine) as session, session.begin():
        session.add(Order(id=7))
        with pytest.raises(DedupConflict, match=f"another body, that of message {first}") as refused:
            OUTBOX.add(session, charge(body=2, unique_key="u", delay=60))
        assert refused.value.existing == first
        other = OUTBOX.add(session, charge(body=2, key="order:8"))
    assert committed(database) == ([str(first), str(other.id)], [7])
    assert keys(database, "dedup") == {"order:7": first, "order:8": other.id}
    assert keys(database, "unique") == {}
    assert ask(database, "SELECT count(*) FROM outbox_due") == [(0,)]


def test_another_task_is_another_body(opened: Opened, database: str) -> None:
    connection = opened()
    add(connection, charge())
    with pytest.raises(DedupConflict):
        OUTBOX.add(connection, Message("billing.refund", kwargs={"n": 1}, dedup_key="order:7"))


def test_another_body_after_waiting(opened: Opened, database: str, pool: ThreadPoolExecutor) -> None:
    first, second = opened(), opened()
    one = OUTBOX.add(first, charge())
    waiting = pool.submit(OUTBOX.add, second, charge(body=2))
    wait_blocked(database, second)
    first.commit()
    with pytest.raises(DedupConflict) as refused:
        waiting.result(15)
    assert refused.value.existing == one.id


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_conflict_in_a_batch_takes_back_every_key(opened: Opened, database: str, place: int) -> None:
    """Also a key whose window was over, and whichever order the keys were taken in."""
    connection = opened()
    taken = add(connection, charge(key="b"))
    add(connection, charge(key="c", dedup_window=60))
    let_windows_pass(database)
    batch = [charge(key="a"), charge(key="c", unique_key="u")]
    batch.insert(place, charge(body=2, key="b"))
    with pytest.raises(DedupConflict, match=f"^message {place} of the batch: ") as refused:
        OUTBOX.add_many(connection, batch)
    assert refused.value.existing == taken
    connection.commit()
    assert len(messages(database)) == 2
    assert keys(database, "dedup").keys() - {"c"} == {"b"}
    assert keys(database, "unique") == {}
    assert not any(added.duplicate for added in OUTBOX.add_many(connection, [charge(key="a"), charge(key="c")]))


def test_a_batch_that_contradicts_itself(opened: Opened, database: str) -> None:
    connection = opened()
    with pytest.raises(DedupConflict, match=r"^message 1 of the batch: "):
        OUTBOX.add_many(connection, [charge(), charge(body=2)])
    assert not OUTBOX.add(connection, charge(body=2)).duplicate


def test_nothing_of_a_refused_batch_is_left_whatever_the_chunks(opened: Opened, database: str) -> None:
    connection = opened()
    taken = add(connection, charge(key="k9"))
    batch = [charge(body=n, key=f"k{n}") for n in range(10)] + [charge(key=None)]
    with pytest.raises(DedupConflict, match=r"^message 9 of the batch: "):
        OUTBOX.add_many(connection, batch, chunk_size=3)
    connection.commit()
    assert messages(database) == [taken]
    assert keys(database, "dedup") == {"k9": taken}


@pytest.mark.parametrize("unique_key", ["u", None], ids=["the same request", "without the unique key"])
def test_a_duplicate_of_a_rejected_message_is_not_lost(opened: Opened, database: str, unique_key: str | None) -> None:
    """The first of the batch is refused by its unique key; the second must not point to what was never written.

    Refusing a batch that asks for one dedup key in two ways is fine, too: then nobody believes it was written.
    """
    connection = opened()
    live = OUTBOX.add(connection, Message(CHARGE, unique_key="u"))
    connection.commit()
    with suppress(InvalidMessage):
        batch = OUTBOX.add_many(connection, [charge(unique_key="u"), charge(unique_key=unique_key)])
        assert batch[0].id == live.id
        assert {each.id for each in batch} <= {row[0] for row in connection.execute("SELECT id FROM outbox_message")}
    connection.commit()
    assert keys(database, "unique") == {"u": live.id}


def test_repeatable_read_fails_as_postgresql_does(opened: Opened, database: str) -> None:
    """A key that came after the snapshot cannot be seen, only run into: run the transaction again."""
    first, second = opened(), opened()
    second.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    second.execute("SELECT 1")
    one = add(first, charge())
    with pytest.raises(psycopg.errors.SerializationFailure):
        OUTBOX.add(second, charge())
    second.rollback()
    assert OUTBOX.add(second, charge()).id == one


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_repeatable_read_through_sqlalchemy(opened: Opened, database: str, level: str) -> None:
    engine = engine_of(database, isolation_level=level, poolclass=sa.NullPool)
    with Session(engine) as session:
        session.execute(sa.text("SELECT 1"))
        one = add(opened(), charge())
        with pytest.raises(sa.exc.OperationalError) as failed:
            OUTBOX.add(session, charge())
        assert isinstance(failed.value.orig, psycopg.errors.SerializationFailure)
        session.rollback()
        session.begin()
        assert OUTBOX.add(session, charge()).id == one

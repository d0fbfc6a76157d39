"""unique_key: at most one message with this key that has not ended yet."""

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from outbox import Added, Existing, Message, NotSupported, Outbox, State
from tests.integration.outbox.storage import (
    CHARGE,
    Order,
    Postgres,
    ask,
    committed,
    end,
    keys,
    messages,
    register,
    wait_blocked,
)

OUTBOX = Outbox()
IMPORT = Message(CHARGE, kwargs={"n": 1}, unique_key="import:7")
Opened = Callable[[], Postgres]


def add(connection: Postgres, message: Message = IMPORT) -> Added:
    added = OUTBOX.add(connection, message)
    connection.commit()
    return added


def test_a_live_message_keeps_others_out(engine: sa.Engine, opened: Opened, database: str) -> None:
    """Whatever their body, task, or other keys; the answer is enough for a 409."""
    first = add(opened())
    assert not first.duplicate
    with Session(engine) as session, session.begin():
        session.add(Order(id=7))
        for other in (IMPORT, Message("other.task", unique_key="import:7", delay=60, ordering_key=None)):
            rejected = OUTBOX.add(session, other)
            assert rejected == Added(first.id, duplicate=True, existing=Existing(first.id, State.QUEUED))
    assert committed(database) == ([str(first.id)], [7])
    assert ask(database, "SELECT count(*) FROM outbox_due") == [(0,)]


@pytest.mark.parametrize("status", ["applied", "dead", "cancelled", "expired", "discarded"])
def test_an_ended_message_gives_way(opened: Opened, database: str, status: str) -> None:
    connection = opened()
    first = add(connection)
    end(database, first.id, status)
    second = add(connection)
    assert not second.duplicate
    assert messages(database) == [first.id, second.id]
    assert keys(database, "unique") == {"import:7": second.id}
    assert add(connection).id == second.id


def test_a_pruned_message_gives_way(opened: Opened, database: str) -> None:
    connection = opened()
    first = add(connection)
    ask(database, "DELETE FROM outbox_message WHERE id = %s", first.id)
    second = add(connection)
    assert not second.duplicate
    assert keys(database, "unique") == {"import:7": second.id}


def test_the_receipt_of_another_consumer_does_not_count(opened: Opened, database: str) -> None:
    connection = opened()
    first = add(connection)
    end(database, first.id, task="other.task")
    assert add(connection).id == first.id


def test_twice_in_one_transaction(opened: Opened, database: str) -> None:
    connection = opened()
    first, second = OUTBOX.add(connection, IMPORT), OUTBOX.add(connection, IMPORT)
    connection.commit()
    assert second == Added(first.id, duplicate=True, existing=Existing(first.id, State.QUEUED))
    assert messages(database) == [first.id]


@pytest.mark.parametrize("chunk_size", [1, 10])
def test_twice_in_one_batch(opened: Opened, database: str, chunk_size: int) -> None:
    connection = opened()
    batch = OUTBOX.add_many(connection, [IMPORT, Message(CHARGE, unique_key="b"), IMPORT], chunk_size=chunk_size)
    connection.commit()
    assert [each.duplicate for each in batch] == [False, False, True]
    assert batch[2].existing == Existing(batch[0].id, State.QUEUED)
    assert sorted(messages(database)) == sorted([batch[0].id, batch[1].id])


def test_cancelled_and_replaced_in_one_transaction(opened: Opened, database: str) -> None:
    register(database)
    connection = opened()
    first = add(connection)
    OUTBOX.cancel(connection, first.id)
    second = add(connection)
    assert not second.duplicate
    assert messages(database) == [first.id, second.id]


def test_a_savepoint_rolled_back_gives_the_key_back(opened: Opened, database: str) -> None:
    connection = opened()
    ended = add(connection)
    end(database, ended.id)
    with connection.transaction():
        for _ in range(2):
            with connection.transaction(force_rollback=True):
                assert not OUTBOX.add(connection, IMPORT).duplicate
        kept = OUTBOX.add(connection, IMPORT)
    assert not kept.duplicate
    assert messages(database) == [ended.id, kept.id]


@pytest.mark.parametrize("stale", [False, True], ids=["new key", "stale holder"])
@pytest.mark.parametrize("commits", [True, False], ids=["commits", "rolls back"])
def test_a_writer_waits_until_the_first_has_decided(
    opened: Opened, database: str, pool: ThreadPoolExecutor, commits: bool, stale: bool
) -> None:
    first, second = opened(), opened()
    before = []
    if stale:
        ended = add(first)
        end(database, ended.id)
        before = [ended.id]
    one = OUTBOX.add(first, IMPORT)
    waiting = pool.submit(OUTBOX.add, second, IMPORT)
    wait_blocked(database, second)
    first.commit() if commits else first.rollback()
    two = waiting.result(15)
    second.commit()
    assert not one.duplicate
    assert two.duplicate == commits
    assert (two.id == one.id) == commits
    assert messages(database) == [*before, two.id]
    assert keys(database, "unique") == {"import:7": two.id}


@pytest.mark.parametrize("stale", [False, True], ids=["new key", "stale holder"])
def test_of_two_that_wait_exactly_one_wins(
    opened: Opened, database: str, pool: ThreadPoolExecutor, stale: bool
) -> None:
    first, others = opened(), [opened(), opened()]
    if stale:
        end(database, add(first).id)
    OUTBOX.add(first, IMPORT)
    waiting = {pool.submit(OUTBOX.add, each, IMPORT): each for each in others}
    wait_blocked(database, *others)
    first.rollback()
    done, left = wait(waiting, 15, FIRST_COMPLETED)
    assert (len(done), len(left)) == (1, 1)
    (winner,), (loser,) = done, left
    assert not winner.result().duplicate
    wait_blocked(database, waiting[loser])
    waiting[winner].commit()
    assert loser.result(15).existing == Existing(winner.result().id, State.QUEUED)


def test_of_two_that_have_read_a_stale_holder_one_takes_the_key(
    opened: Opened, database: str, pool: ThreadPoolExecutor
) -> None:
    """A lock on the row stops both between their look at it and their update; a plain update would serve both."""
    holder, writers = opened(), [opened(), opened()]
    ended = add(holder)
    end(database, ended.id)
    holder.execute("SELECT FROM outbox_key FOR UPDATE")
    waiting = [pool.submit(add, each) for each in writers]
    wait_blocked(database, *writers)
    holder.rollback()
    answers = [each.result(15) for each in waiting]
    assert sorted(each.duplicate for each in answers) == [False, True]
    assert messages(database) == [ended.id, answers[0].id] == [ended.id, answers[1].id]


def test_a_rejection_releases_the_dedup_key(opened: Opened, database: str) -> None:
    """Or the same request could never be written, and would be called the duplicate of nothing."""
    connection = opened()
    first = add(connection)
    both = Message(CHARGE, dedup_key="d", unique_key="import:7")
    assert add(connection, both).existing == Existing(first.id, State.QUEUED)
    assert keys(database, "dedup") == {}
    end(database, first.id)
    second = add(connection, both)
    assert not second.duplicate
    assert keys(database, "dedup") == {"d": second.id}
    assert add(connection, both) == Added(second.id, duplicate=True), "the dedup key is asked first"


def test_a_rejection_leaves_the_order_alone(opened: Opened, database: str) -> None:
    connection = opened()
    add(connection)
    add(connection, Message(CHARGE, unique_key="import:7", ordering_key="o"))
    assert keys(database, "ordering") == {}


def test_rejections_are_counted(opened: Opened, database: str) -> None:
    connection = opened()
    first = add(connection)
    other = add(connection, Message(CHARGE, unique_key="other"))
    add(connection)
    OUTBOX.add_many(connection, [IMPORT, IMPORT, Message(CHARGE, unique_key="other"), Message(CHARGE)])
    connection.commit()
    add(opened())
    found = OUTBOX.rejected(connection)
    assert {(each.unique_key, each.live_id, each.count) for each in found} == {
        ("import:7", first.id, 4),
        ("other", other.id, 1),
    }
    assert found[0].unique_key == "import:7", "the latest first"
    assert all(each.first_at <= each.last_at for each in found)
    assert [each.count for each in OUTBOX.rejected(connection, "other")] == [1]
    assert [each.count for each in OUTBOX.rejected(connection, limit=1)] == [4]
    assert OUTBOX.rejected(connection, "nobody") == []
    end(database, first.id)
    second = add(connection)
    add(connection)
    counts = {each.live_id: each.count for each in OUTBOX.rejected(connection, "import:7")}
    assert counts == {first.id: 4, second.id: 1}, "counted per live message"


def test_a_rejection_counts_although_the_key_goes_on_meanwhile(
    opened: Opened, database: str, pool: ThreadPoolExecutor
) -> None:
    """The call is refused, then waits for an ordering key; until it goes on, the holder has ended and has an heir."""
    blocker, writer = opened(), opened()
    first = add(blocker)
    OUTBOX.add(blocker, Message(CHARGE, ordering_key="o"))
    waiting = pool.submit(OUTBOX.add_many, writer, [IMPORT, Message(CHARGE, ordering_key="o")])
    wait_blocked(database, writer)
    end(database, first.id)
    assert not add(opened()).duplicate
    blocker.rollback()
    batch = waiting.result(15)
    writer.commit()
    assert batch[0].id == first.id
    assert {each.live_id: each.count for each in OUTBOX.rejected(writer)} == {first.id: 1}


def test_rejected_requests_do_not_wait_for_each_other(opened: Opened, database: str) -> None:
    first, second = opened(), opened()
    add(first)
    OUTBOX.add(first, IMPORT)
    second.execute("SET lock_timeout = '2s'")
    assert OUTBOX.add(second, IMPORT).duplicate


def test_a_rollback_forgets_the_rejection(opened: Opened, database: str) -> None:
    connection = opened()
    add(connection)
    OUTBOX.add(connection, IMPORT)
    assert [each.count for each in OUTBOX.rejected(connection)] == [1]
    connection.rollback()
    assert OUTBOX.rejected(connection) == []


@pytest.mark.parametrize("batch", [False, True])
def test_a_consumer_in_another_database_is_refused(engine: sa.Engine, database: str, batch: bool) -> None:
    register(database, "far.away", inbox="other")
    far = Message("far.away", dedup_key="d", unique_key="import:7")
    with Session(engine) as session, session.begin():
        session.add(Order(id=7))
        with pytest.raises(NotSupported, match="consumed in another database; use dedup_key"):
            OUTBOX.add_many(session, [IMPORT, far]) if batch else OUTBOX.add(session, far)
        kept = OUTBOX.add(session, Message("far.away", dedup_key="d"))
    assert committed(database) == ([str(kept.id)], [7])
    assert keys(database, "unique") == {}
    assert keys(database, "dedup") == {"d": kept.id}


def test_nothing_of_a_refused_batch_is_left_whatever_the_chunks(opened: Opened, database: str) -> None:
    register(database, "far.away", inbox="other")
    connection = opened()
    with pytest.raises(NotSupported, match=r"^message 2 of the batch: "):
        OUTBOX.add_many(connection, [Message(CHARGE), IMPORT, Message("far.away", unique_key="z")], chunk_size=1)
    connection.commit()
    assert messages(database) == []
    assert keys(database, "unique") == {}


def test_repeatable_read_fails_as_postgresql_does(opened: Opened, database: str) -> None:
    first, second = opened(), opened()
    ended = add(first)
    end(database, ended.id)
    second.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    second.execute("SELECT 1")
    one = add(first)
    with pytest.raises(psycopg.errors.SerializationFailure):
        OUTBOX.add(second, IMPORT)
    second.rollback()
    assert OUTBOX.add(second, IMPORT).id == one.id

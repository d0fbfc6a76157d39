"""ordering_key: for one key and task the messages are one line, in the order of seq, which is that of the commits."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import psycopg
import pytest

from outbox import Message, Outbox
from tests.integration.outbox.storage import CHARGE, Postgres, ask, blocked, keys, messages, wait_blocked

OUTBOX = Outbox()
REFUND = "billing.refund"
Opened = Callable[[], Postgres]


def step(key: str = "account:7", task: str = CHARGE) -> Message:
    return Message(task, ordering_key=key)


def add(connection: Postgres, message: Message) -> UUID:
    added = OUTBOX.add(connection, message)
    connection.commit()
    return added.id


def line(url: str, key: str = "account:7", task: str = CHARGE) -> list[tuple[UUID, UUID | None]]:
    """Each message and the one before it, in the order of seq."""
    wanted = "SELECT id, key_prev FROM outbox_message WHERE ordering_key = %s AND task = %s ORDER BY seq"
    return [(row[0], row[1]) for row in ask(url, wanted, key, task)]


def test_each_message_names_the_one_before(opened: Opened, database: str) -> None:
    connection = opened()
    ids = [add(connection, step()) for _ in range(3)]
    assert line(database) == list(zip(ids, [None, *ids], strict=False))
    assert keys(database, "ordering") == {"account:7": ids[-1]}


def test_keys_and_tasks_are_lines_of_their_own(opened: Opened, database: str) -> None:
    connection = opened()
    one, other, refund = add(connection, step()), add(connection, step("account:8")), add(connection, step(task=REFUND))
    two, refund_two = add(connection, step()), add(connection, step(task=REFUND))
    assert line(database) == [(one, None), (two, one)]
    assert line(database, "account:8") == [(other, None)]
    assert line(database, task=REFUND) == [(refund, None), (refund_two, refund)]


@pytest.mark.parametrize("chunk_size", [2, 100])
def test_a_batch_is_in_the_order_of_the_call(opened: Opened, database: str, chunk_size: int) -> None:
    connection = opened()
    before = add(connection, step("b"))
    calls = ["b", "a", "b", "c", "a", "b", "c", "b"]
    batch = OUTBOX.add_many(connection, [step(key) for key in calls], chunk_size=chunk_size)
    connection.commit()
    for key in "abc":
        ids = [each.id for each, called in zip(batch, calls, strict=True) if called == key]
        ids = [before, *ids] if key == "b" else ids
        assert line(database, key) == list(zip(ids, [None, *ids], strict=False))


def test_a_rollback_leaves_no_gap(opened: Opened, database: str) -> None:
    connection = opened()
    OUTBOX.add(connection, step())
    connection.rollback()
    assert keys(database, "ordering") == {}
    one = add(connection, step())
    OUTBOX.add(connection, step())
    connection.rollback()
    with connection.transaction():
        with connection.transaction(force_rollback=True):
            OUTBOX.add(connection, step())
        two = OUTBOX.add(connection, step()).id
    assert line(database) == [(one, None), (two, one)]


@pytest.mark.parametrize("task", [CHARGE, REFUND], ids=["same task", "another task"])
@pytest.mark.parametrize("known", [False, True], ids=["new key", "known key"])
@pytest.mark.parametrize("commits", [True, False], ids=["commits", "rolls back"])
def test_a_writer_waits_until_the_first_has_decided(
    opened: Opened, database: str, pool: ThreadPoolExecutor, commits: bool, known: bool, task: str
) -> None:
    """Whatever its task: two messages of one key must not get their seq in one order and commit in the other."""
    first, second = opened(), opened()
    before = [add(first, step()), add(first, step(task=REFUND))] if known else []
    one = OUTBOX.add(first, step())
    waiting = pool.submit(OUTBOX.add, second, step(task=task))
    wait_blocked(database, second)
    first.commit() if commits else first.rollback()
    two = waiting.result(15)
    second.commit()
    assert messages(database) == [*before, *([one.id] if commits else []), two.id]
    for each in (CHARGE, REFUND):
        ids = [message_id for message_id, _ in line(database, task=each)]
        assert line(database, task=each) == list(zip(ids, [None, *ids], strict=False))


def test_three_that_wait_form_one_line(opened: Opened, database: str, pool: ThreadPoolExecutor) -> None:
    first, others = opened(), [opened(), opened(), opened()]
    OUTBOX.add(first, step())

    def add_and_commit(connection: Postgres) -> UUID:
        return add(connection, step())

    waiting = [pool.submit(add_and_commit, each) for each in others]
    wait_blocked(database, *others)
    first.commit()
    for each in waiting:
        each.result(15)
    ids = messages(database)
    assert len(ids) == 4
    assert line(database) == list(zip(ids, [None, *ids], strict=False))


def test_other_keys_do_not_wait(opened: Opened, database: str) -> None:
    first, second = opened(), opened()
    OUTBOX.add(first, step())
    OUTBOX.add(second, step("account:8"))
    assert not blocked(database, second)


@pytest.mark.parametrize("known", [False, True], ids=["new key", "known key"])
def test_repeatable_read_fails_as_postgresql_does(opened: Opened, database: str, known: bool) -> None:
    """Its snapshot does not show the last message, so it could only name a wrong one."""
    first, second = opened(), opened()
    before = [add(first, step())] if known else []
    second.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    second.execute("SELECT 1")
    one = add(first, step())
    with pytest.raises(psycopg.errors.SerializationFailure):
        OUTBOX.add(second, step())
    second.rollback()
    two = add(second, step())
    ids = [*before, one, two]
    assert line(database) == list(zip(ids, [None, *ids], strict=False))

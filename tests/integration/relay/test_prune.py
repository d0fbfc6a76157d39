"""Retention: exactly what may go goes, with everything that is its own, and nothing else."""

import random
import threading
from collections.abc import Iterator
from datetime import timedelta
from uuid import UUID, uuid4

import psycopg
import pytest

from outbox.errors import ConfigurationError
from relay.events import RowsPruned
from relay.lease import LeaseLost
from relay.prune import checked_age, kept_for
from tests.support.leases import take_lease
from tests.support.retention import FAR, OWN, PLAIN, Client, Retention, add, end, ids, pass_by, register


@pytest.fixture
def client(database: str) -> Iterator[Client]:
    with psycopg.connect(database, autocommit=True) as connection:
        register(connection)
        yield connection


@pytest.fixture
def retention(database: str, client: Client) -> Iterator[Retention]:
    made = Retention(database, take_lease(database))
    yield made
    made.connection.close()


def key(client: Client, message: UUID, kind: str, name: str, days: float | None = None) -> None:
    """A key that ends in so many days, or with its message."""
    client.execute(
        "INSERT INTO outbox_key (kind, key, message_id, expires_at)"
        " VALUES (%s, %s, %s, clock_timestamp() + %s * interval '1 day')",
        [kind, name, message, days],
    )


@pytest.mark.parametrize("seed", range(4))
def test_exactly_what_may_go_goes(database: str, client: Client, seed: int) -> None:
    """Random messages against a plain account of the rule."""
    chance = random.Random(seed)
    retention = Retention(database, take_lease(database), batch=chance.choice([1, 3, 7, 50]))
    expected: set[UUID] = set()
    everything: set[UUID] = set()

    def write(connection: Client, *, passed: bool) -> None:
        task, held = chance.choice([OWN, OWN, PLAIN, FAR]), chance.random() < 0.3
        old = chance.random() < 0.7
        message = add(connection, task, held=held, days=8 if old else 1)
        everything.add(message)
        status = chance.choice(["applied", "cancelled", "expired", "discarded", "dead", None])
        ended_long_ago = chance.random() < 0.7
        if status:
            end(connection, message, status, task, 8 if ended_long_ago else 1)
        planned = chance.random() < 0.2
        if planned:
            connection.execute(
                "INSERT INTO outbox_due (message_id, due_at, reason) VALUES (%s, now(), 'retry')", [message]
            )
        aged = old if held else passed
        finished = status not in (None, "dead") and ended_long_ago
        owed_nobody = task == PLAIN and (status is None or finished)
        if aged and not planned and (owed_nobody or (task == OWN and finished)):
            expected.add(message)

    with psycopg.connect(database) as late:
        for _ in range(40):
            write(client, passed=True)
        for _ in range(10):
            write(late, passed=False)
        pass_by(client)
        late.commit()
    for _ in range(20):
        write(client, passed=False)
    retention.run()
    assert everything - ids(client) == expected
    assert not ids(client, "inbox_receipt", "message_id") & expected, "its receipts go with a message"
    assert retention.run() == 0
    retention.connection.close()


def test_a_late_commit_is_met_by_the_next_pass(database: str, client: Client, retention: Retention) -> None:
    with psycopg.connect(database) as late:
        message = add(late, PLAIN)
        add(client, PLAIN)
        pass_by(client)
        retention.run()
        assert ids(client) == set()
        late.commit()
    retention.run()
    assert ids(client) == {message}, "published only now"
    pass_by(client)
    retention.run()
    assert ids(client) == set()


def test_what_is_not_swept_stays(client: Client, retention: Retention) -> None:
    message = add(client)
    end(client, message)
    pass_by(client, swept=False)
    retention.run()
    assert ids(client) == {message}
    client.execute("UPDATE outbox_leader SET reconciled = prev")
    retention.run()
    assert ids(client) == set()


def test_an_unpublished_message_stays_however_old_it_is(client: Client, retention: Retention) -> None:
    pass_by(client)
    message = add(client, PLAIN, days=400)
    cancelled = add(client, days=400)
    end(client, cancelled, "cancelled", days=400)
    retention.run()
    assert ids(client) == {message, cancelled}
    pass_by(client, days=1)
    retention.run()
    assert ids(client) == {message, cancelled}, "published yesterday"


def test_a_message_goes_with_everything_that_is_its_own(client: Client, retention: Retention) -> None:
    message, other = add(client, unique_key="u"), add(client)
    end(client, message)
    for kind in ("dedup", "unique", "ordering"):
        key(client, message, kind, f"{kind} of one")
        key(client, other, kind, f"{kind} of the other")
    for each in (message, other):
        client.execute("INSERT INTO outbox_rejected (unique_key, live_id) VALUES ('u', %s)", [each])
        client.execute("INSERT INTO inbox_retry VALUES (%s, %s, 'start', 1, now())", [each, OWN])
        client.execute("INSERT INTO inbox_claim VALUES (%s, %s, %s, now())", [each, OWN, uuid4()])
    pass_by(client)
    retention.run()
    assert ids(client) == {other}
    for table, column in (
        ("outbox_key", "message_id"), ("outbox_rejected", "live_id"), ("inbox_retry", "message_id"),
        ("inbox_claim", "message_id"),
    ):  # fmt: skip
        assert ids(client, table, column) == {other}, table
    assert ids(client, "inbox_receipt", "message_id") == set()
    assert RowsPruned("outbox_message", 1) in retention.events
    assert RowsPruned("outbox_key", 3) in retention.events


def test_a_dedup_key_outlives_its_message_until_its_window_ends(client: Client, retention: Retention) -> None:
    message = add(client)
    end(client, message)
    key(client, message, "dedup", "open", days=3)
    key(client, message, "dedup", "over", days=-1)
    key(client, message, "dedup", "with the message")
    pass_by(client)
    retention.run()
    assert ids(client) == set()
    assert client.execute("SELECT key FROM outbox_key").fetchall() == [("open",)]
    client.execute("UPDATE outbox_key SET expires_at = clock_timestamp()")
    retention.run()
    assert client.execute("SELECT key FROM outbox_key").fetchall() == []


def test_a_key_that_was_taken_over_stays_with_its_new_holder(client: Client, retention: Retention) -> None:
    message = add(client, unique_key="u")
    end(client, message)
    key(client, message, "unique", "u")
    pass_by(client)
    added = client.execute("SELECT message_id FROM outbox_add('own.task', unique_key => 'u')").fetchone()
    assert added is not None
    retention.run()
    assert ids(client) == {added[0]}
    assert client.execute("SELECT message_id FROM outbox_key").fetchall() == [added]
    again = client.execute("SELECT message_id, duplicate FROM outbox_add('own.task', unique_key => 'u')").fetchone()
    assert again == (added[0], True)


def test_a_key_that_a_writer_has_locked_is_left_and_goes_later(
    database: str, client: Client, retention: Retention
) -> None:
    message = add(client, unique_key="u")
    end(client, message)
    key(client, message, "unique", "u")
    pass_by(client)
    with psycopg.connect(database) as writer:
        writer.execute("SELECT FROM outbox_key WHERE key = 'u' FOR NO KEY UPDATE")
        retention.run()
        assert ids(client) == set(), "nobody waits"
        assert ids(client, "outbox_key", "message_id") == {message}
    retention.run()
    assert ids(client, "outbox_key", "message_id") == set()


def test_a_receipt_never_goes_before_its_message(client: Client, retention: Retention) -> None:
    kept = add(client)
    end(client, kept, days=30)
    stranger, young, dead = uuid4(), uuid4(), uuid4()
    end(client, stranger, days=8)
    end(client, young, days=6)
    end(client, dead, "dead", days=30)
    retention.run()
    assert ids(client, "inbox_receipt", "message_id") == {kept, young, dead}


def test_a_closed_message_of_a_line_waits_for_the_ones_before_it(client: Client, retention: Retention) -> None:
    line: list[UUID] = []
    for _ in range(4):
        line.append(add(client, ordering_key="k", key_prev=line[-1] if line else None))
    for message in line[1:3]:
        end(client, message, "cancelled")
    end(client, line[3], "applied")
    pass_by(client)
    retention.run()
    assert ids(client) == set(line[:3]), "the first one is unfinished; an applied one had nothing unfinished before it"
    end(client, line[0])
    retention.run()
    assert ids(client) == set()


def test_a_dead_letter_can_be_retried_after_any_time(client: Client, retention: Retention) -> None:
    message = add(client)
    end(client, message, "dead", days=400)
    pass_by(client, days=400)
    retention.run()
    assert ids(client) == {message}
    client.execute("UPDATE inbox_receipt SET status = 'discarded'")
    retention.run()
    assert ids(client) == set()


def test_a_pruner_that_lost_the_lease_changes_nothing(database: str, client: Client, retention: Retention) -> None:
    end(client, add(client))
    pass_by(client)
    take_lease(database)
    before = client.execute("SELECT m::text, m.xmin::text, m.xmax::text FROM outbox_message m").fetchall()
    for walk in retention.prune._walks:
        with pytest.raises(LeaseLost):
            retention.prune._advance(walk)
    assert client.execute("SELECT m::text, m.xmin::text, m.xmax::text FROM outbox_message m").fetchall() == before


def test_prune_does_not_wait_for_the_leader_nor_the_leader_for_it(
    database: str, client: Client, retention: Retention
) -> None:
    end(client, add(client))
    pass_by(client)
    with psycopg.connect(database) as leader:
        leader.execute("UPDATE outbox_leader SET window_no = window_no + 1")  # an advance that has not committed
        retention.run()
    assert ids(client) == set()
    end(client, add(client))
    pass_by(client)
    with psycopg.connect(database) as pruner, pruner.transaction():
        pruner.execute(retention.prune.queries.log, _parameters(retention))
        client.execute("SET lock_timeout = '1s'")
        client.execute("UPDATE outbox_leader SET window_no = window_no + 1")


def _parameters(retention: Retention) -> dict[str, object]:
    term = retention.prune.term
    assert term is not None
    return {
        "xid": "0", "seq": "0", "batch": 10, "keep": timedelta(days=7), "everywhere": True, "epoch": term.epoch,
        "holder": term.holder,
    }  # fmt: skip


def test_rows_that_have_to_stay_are_looked_at_once_a_pass(database: str, client: Client) -> None:
    retention = Retention(database, take_lease(database), batch=10)
    for _ in range(25):
        add(client)
    pass_by(client)
    retention.run()
    looks = []
    for seconds in (0, 299, 2):
        retention.seconds += seconds
        looks.append(not retention.prune.resting)
    assert looks == [False, False, True]
    retention.connection.close()


def test_writers_of_equal_keys_beside_prune_never_lose_a_live_key(database: str, client: Client) -> None:
    """Writers take keys over, consumers end messages, prune forgets at once: at most one live message a key."""
    stop = threading.Event()
    problems: list[str] = []

    def write(number: int) -> None:
        with psycopg.connect(database, autocommit=True) as connection:
            chance = random.Random(number)
            while not stop.is_set():
                name = f"k{chance.randrange(3)}"
                connection.execute(
                    "SELECT outbox_add('own.task', unique_key => %s, ordering_key => %s)", [name, f"o{name}"]
                )
                live = connection.execute(
                    "SELECT count(*) FROM outbox_message m WHERE unique_key = %s AND NOT EXISTS"
                    " (SELECT FROM inbox_receipt r WHERE r.message_id = m.id)",
                    [name],
                ).fetchall()
                if live[0][0] > 1:
                    problems.append(f"{live[0][0]} live messages of {name}")

    def consume() -> None:
        with psycopg.connect(database, autocommit=True) as connection:
            while not stop.is_set():
                connection.execute(
                    "INSERT INTO inbox_receipt (message_id, consumer, status, applied_at)"
                    " SELECT id, task, 'applied', now() - interval '8 days' FROM outbox_message ON CONFLICT DO NOTHING"
                )

    threads = [threading.Thread(target=write, args=[number]) for number in range(4)]
    threads.append(threading.Thread(target=consume))
    for thread in threads:
        thread.start()
    retention = Retention(database, take_lease(database), batch=50)
    pruned = 0
    for _ in range(60):
        pass_by(client)
        pruned += retention.run()
    stop.set()
    for thread in threads:
        thread.join()
    assert problems == []
    assert pruned > 50, "prune was not beside anything"
    retention.run()
    orphans = (
        "SELECT count(*) FROM outbox_key k WHERE NOT EXISTS (SELECT FROM outbox_message m WHERE m.id = k.message_id)"
    )
    pass_by(client)
    retention.run()
    assert client.execute(orphans.encode()).fetchone() == (0,)
    retention.connection.close()


def test_notes_the_audit_and_relays_go_in_their_time(client: Client, retention: Retention) -> None:
    for days in (10, 9, 8, 1):
        pass_by(client, days=days)
    for age in ("2 years", "11 months"):
        client.execute("INSERT INTO outbox_audit (who, action, at) VALUES ('me', %s, now() - %s::interval)", [age, age])
    for hours in (25, 1):
        client.execute(
            "INSERT INTO outbox_relay (holder, name, version, seen_at)"
            " VALUES (gen_random_uuid(), %s, '1', now() - %s * interval '1 hour')",
            [f"{hours}", hours],
        )
    retention.run()
    assert client.execute("SELECT count(*) FROM outbox_window").fetchone() == (2,), (
        "the note of 8 days ago is the bound"
    )
    assert client.execute("SELECT action FROM outbox_audit").fetchall() == [("11 months",)]
    assert client.execute("SELECT name FROM outbox_relay").fetchall() == [("1",)]


def test_a_plan_without_a_message_goes(client: Client, retention: Retention) -> None:
    message = add(client)
    for each in (message, uuid4()):
        client.execute("INSERT INTO outbox_due (message_id, due_at, reason) VALUES (%s, now(), 'retry')", [each])
    retention.run()
    assert ids(client, "outbox_due", "message_id") == {message}


def test_nothing_is_kept_shorter_than_the_horizon() -> None:
    assert kept_for(7, 7) == timedelta(days=7, hours=1)
    assert kept_for(1, 7) == timedelta(days=7, hours=1)
    assert kept_for(30, 7) == timedelta(days=30)
    assert checked_age(timedelta(days=8), 7) == timedelta(days=8)
    with pytest.raises(ConfigurationError, match="shorter than the horizon of 7 days"):
        checked_age(timedelta(days=7), 7)

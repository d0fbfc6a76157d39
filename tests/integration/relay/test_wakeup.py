"""The wake-up gate: a commit wakes the relay at once, and none is missed while it falls asleep.

Here the gate is driven alone, with neither the look for plans nor the fallback once a second to hide what it misses.
"""

import random
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import psycopg
import pytest

from relay.bell import Bell
from relay.database import Database, connect
from relay.embedded import wait_until
from relay.events import Event, RelayWoken
from relay.wakeup import Notified, Polling
from tests.support.leading import QUERIES, Leading, Outbox
from tests.support.leases import take_lease

INSERT = "INSERT INTO outbox_message (id, task) VALUES (%s, 'a.b')"
FLAG = "SELECT last_value FROM outbox_wake"
NEVER = 3600.0


class Sleeper:
    """What the relay does with the gate: before a look, look, wait. The clock stands still unless it is moved."""

    def __init__(self, connection: Database, database: str) -> None:
        self.connection = connection
        self.events: list[Event] = []
        self.now = 0.0
        self.bell = Bell()
        self.gate = Notified(
            connection, QUERIES, take_lease(database), self.bell, self.events.append, clock=lambda: self.now
        )
        self.seen: set[str] = set()

    def look(self) -> int:
        self.gate.before_look()
        found = {row[0] for row in self.connection.execute("SELECT id::text FROM outbox_message")}
        new = len(found - self.seen)
        self.seen = found
        return new

    def turn(self) -> int:
        rows = self.look()
        self.gate.wait(rows, NEVER)
        return rows


@pytest.fixture
def outbox(database: str) -> Iterator[Outbox]:
    made = Outbox(database)
    yield made
    made.client.close()


@pytest.fixture
def sleeper(database: str) -> Iterator[Sleeper]:
    with connect(database, 60.0, "test") as connection:
        made = Sleeper(connection, database)
        yield made
        made.bell.close()


def until_seen(sleeper: Sleeper, message: str, deadline: float = 5.0) -> float:
    """Turns until the message is found; how long it took. A gate that sleeps too long is rung out of it."""
    started = time.monotonic()
    alarm = threading.Timer(deadline, sleeper.bell.ring)
    alarm.start()
    try:
        while time.monotonic() < started + deadline:
            rows = sleeper.look()
            if message in sleeper.seen:
                return time.monotonic() - started
            sleeper.gate.wait(rows, NEVER)
    finally:
        alarm.cancel()
    pytest.fail("nobody woke the relay")


def test_asleep_a_commit_wakes_it(sleeper: Sleeper, outbox: Outbox) -> None:
    assert outbox.one(FLAG) == 2
    sleeper.look()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(sleeper.gate.wait, 0, NEVER)
        message = outbox.add()
        waiting.result(timeout=5)
    assert message not in sleeper.seen
    sleeper.look()
    assert message in sleeper.seen


def test_under_load_it_is_awake_and_writers_are_silent(sleeper: Sleeper, outbox: Outbox, database: str) -> None:
    with psycopg.connect(database, autocommit=True) as listener:
        listener.execute("LISTEN outbox")
        sleeper.look()
        sleeper.gate.wait(50, NEVER)
        assert outbox.one(FLAG) == 1
        outbox.add()
        outbox.add()
        sleeper.now = 1.0
        sleeper.gate.wait(0, NEVER)
        assert outbox.one(FLAG) == 2, "quiet again"
        outbox.add()
        assert len(list(listener.notifies(timeout=1.0, stop_after=1))) == 1
        assert list(listener.notifies(timeout=0)) == [], "one notification, of the third"


def test_a_large_batch_and_an_outage_silence_the_writers(sleeper: Sleeper, outbox: Outbox) -> None:
    sleeper.gate.occupied()
    assert outbox.one(FLAG) == 1
    message = outbox.add()
    sleeper.now = 1.0
    assert until_seen(sleeper, message) < 1.0
    sleeper.now = 2.0
    sleeper.turn()
    assert outbox.one(FLAG) == 2


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
@pytest.mark.parametrize("savepoint", [False, True])
def test_a_writer_that_read_awake_and_commits_later_is_watched(
    sleeper: Sleeper, database: str, level: str, savepoint: bool
) -> None:
    """Its trigger has run, silently; the relay falls asleep and looks; only then does it commit."""
    sleeper.look()
    sleeper.gate.wait(50, NEVER)
    message = str(uuid.uuid4())
    with psycopg.connect(database) as writer:
        writer.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
        writer.execute("SELECT 1")
        if savepoint:
            writer.execute("SAVEPOINT s")
        writer.execute(INSERT, [message])
        sleeper.now = 1.0
        sleeper.gate.wait(0, NEVER)  # falls asleep
        assert sleeper.look() == 0
        writer.commit()  # after the look, before the wait
        started = time.monotonic()
        sleeper.gate.wait(0, NEVER)
        assert time.monotonic() - started < 0.5, "nobody woke the relay"
        assert sleeper.look() == 1
    assert RelayWoken("timer") not in sleeper.events


def test_a_snapshot_from_before_the_flag_turned_does_not_matter(sleeper: Sleeper, database: str) -> None:
    """A sequence is read as it is now, also under REPEATABLE READ: the writer sees that the relay sleeps."""
    sleeper.look()
    sleeper.gate.wait(50, NEVER)
    message = str(uuid.uuid4())
    with psycopg.connect(database) as writer:
        writer.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        writer.execute("SELECT count(*) FROM outbox_message")
        sleeper.now = 1.0
        sleeper.gate.wait(0, NEVER)
        sleeper.look()
        sleeper.gate.wait(0, 0.0)
        writer.execute(INSERT, [message])
        assert sleeper.look() == 0
        writer.commit()
        started = time.monotonic()
        sleeper.gate.wait(0, NEVER)
        assert time.monotonic() - started < 0.5, "nobody woke the relay"
        assert sleeper.look() == 1


def write(database: str, seed: int, stop: threading.Event, committed: dict[str, float]) -> None:
    dice = random.Random(seed)
    with psycopg.connect(database) as writer:
        while not stop.is_set():
            message = str(uuid.uuid4())
            if dice.random() < 0.3:
                writer.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                writer.execute("SELECT 1")
            if dice.random() < 0.3:
                writer.execute("SAVEPOINT s")
            writer.execute(INSERT, [message])
            stop.wait(dice.choice([0, 0, 0.001, 0.03]))
            if dice.random() < 0.1:
                writer.rollback()
                continue
            writer.commit()
            committed[message] = time.monotonic()
            stop.wait(dice.choice([0, 0, 0.002, 0.05, 0.1]))


@pytest.mark.parametrize("writers", [1, 3])
def test_no_commit_of_many_writers_is_missed(sleeper: Sleeper, database: str, writers: int) -> None:
    """The clock of the gate runs, but so that its fallback never comes."""
    stop, committed = threading.Event(), dict[str, float]()
    found: dict[str, float] = {}
    with ThreadPoolExecutor(writers) as pool:
        running = [pool.submit(write, database, seed, stop, committed) for seed in range(writers)]
        until = time.monotonic() + 2.5
        while time.monotonic() < until or not all(each.done() for each in running) or set(committed) - set(found):
            if time.monotonic() >= until:
                stop.set()
            assert time.monotonic() < until + 10, "nobody woke the relay"
            sleeper.now += 0.004  # 250 turns a second of the fallback, which its own constant below keeps away
            sleeper.gate._fallback_at = float("inf")
            before = set(sleeper.seen)
            rows = sleeper.look()
            found |= dict.fromkeys(sleeper.seen - before, time.monotonic())
            sleeper.gate.wait(rows, 1.0)
    late = {each: found[each] - at for each, at in committed.items() if found[each] - at > 0.6}
    assert not late, "found only when the turn was over"
    assert RelayWoken("timer") not in sleeper.events


def test_polling_leaves_the_flag_awake_and_prepared_transactions_work(database: str, outbox: Outbox) -> None:
    with connect(database, 3.0, "test") as connection, psycopg.connect(database) as writer:
        Polling(connection, QUERIES, take_lease(database), Bell(), 0.1)
        assert outbox.one(FLAG) == 1
        writer.execute(INSERT, [uuid.uuid4()])
        writer.execute("PREPARE TRANSACTION 'polled'")
        writer.commit()
    outbox.client.execute("COMMIT PREPARED 'polled'")


def test_with_the_gate_a_prepared_transaction_is_refused_by_the_server(sleeper: Sleeper, database: str) -> None:
    sleeper.look()
    with psycopg.connect(database) as writer:
        writer.execute(INSERT, [uuid.uuid4()])
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="NOTIFY"):
            writer.execute("PREPARE TRANSACTION 'gated'")


def test_a_listener_that_is_cut_off_ends_the_wait(sleeper: Sleeper, outbox: Outbox) -> None:
    sleeper.look()
    sleeper.gate.wait(0, 0.0)
    outbox.client.execute("SELECT pg_terminate_backend(%s)", [sleeper.connection.info.backend_pid])
    started = time.monotonic()
    sleeper.gate.wait(0, NEVER)
    with pytest.raises(psycopg.OperationalError):
        sleeper.look()
    assert time.monotonic() - started < 0.9, "before the fallback would have looked"


def test_a_relay_under_work_and_at_rest_turns_the_flag(database: str, broker_url: str, outbox: Outbox) -> None:
    with ExitStack() as undo:
        relay = Leading(database, broker_url, undo)
        with relay.running():
            wait_until(lambda: outbox.one(FLAG) == 2, 10, "asleep")
            ids = outbox.add_many(3000)
            wait_until(lambda: relay.at_broker() == ids, 10, "all of them")
            wait_until(lambda: outbox.one(FLAG) == 2, 10, "asleep again")

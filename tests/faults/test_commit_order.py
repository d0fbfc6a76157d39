"""Commits in every order: what has committed is published, nothing else, per key in commit order, late ones at once."""

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from psycopg import sql

from outbox import Message, Outbox
from relay.embedded import wait_until
from tests.support import ledger
from tests.support.arrivals import Arrivals, settle
from tests.support.interleaving import LEVELS, Interleaving, Schedule, kinds, schedule, without_prepared
from tests.support.processes import Programs, wait_for_line
from tests.support.writers import Writer, load

# poll: a transaction that has notified cannot be prepared.
POLL = {"OUTBOX_WAKEUP": "poll", "OUTBOX_HTTP": "", "OUTBOX_BATCH_SIZE": "20"}
GATE = {**POLL, "OUTBOX_WAKEUP": "gate"}
SHORT, LONG = range(8), range(1000, 1220)
SHORT_GATE, LONG_GATE = range(8, 11), range(2000, 2060)
ALL_KINDS = {
    *LEVELS,
    *("add", "batch", "copy", "kept savepoint", "undone savepoint"),
    *("commit", "rollback", "prepare", "prepare and roll back"),
    *("0 keys", "1 keys", "2 keys"),
}
PUBLISHED_WITHIN = 1.0


@dataclass(frozen=True)
class Stage:
    """One relay for all seeds."""

    programs: Programs
    database: str
    broker_url: str
    interleaving: Interleaving

    def start_relay(self, env: Mapping[str, str]) -> None:
        wait_for_line(self.programs.relay(self.database, self.broker_url, env=env), "leadership_gained")

    @contextmanager
    def away(self, really: bool) -> Iterator[None]:
        """A relay that looks all the time has hardly two transactions in a window, and any order is right for one.

        Away meanwhile, it finds everything in one window of several pages, late and fresh.
        """
        relay = self.programs.started[-1]
        if really:
            relay.freeze()
        try:
            yield
        finally:
            relay.thaw()


@pytest.fixture
def stage(programs: Programs, database: str, broker_url: str) -> Iterator[Stage]:
    ledger.create(database)
    made = Interleaving(database)
    try:
        yield Stage(programs, database, broker_url, made)
    finally:
        made.close()


def play(stage: Stage, seed: int, plan: Schedule) -> set[str]:
    """One seed with a queue and a ledger of its own. Returns what was rolled back."""
    queue = f"seed-{seed}"
    with psycopg.connect(stage.database, autocommit=True) as connection:
        connection.execute("TRUNCATE ledger_intent")
        connection.execute("UPDATE ledger_counter SET position = 0")
    with Arrivals(stage.broker_url, queue) as arrivals, arrivals.watching():
        with stage.away(seed % 2 == 1):
            outcome = stage.interleaving.run(plan, queue)
        back = time.monotonic() if seed % 2 == 1 else 0.0
        verdict = settle(stage.database, arrivals)
        assert verdict.written == len(outcome.committed), f"seed {seed}: the ledger and the writers agree"
        assert not outcome.rolled_back & arrivals.look(), f"seed {seed}"
        slowest = max(arrivals.seen[name] - max(at, back) for name, at in outcome.committed.items())
        assert slowest <= PUBLISHED_WITHIN, f"seed {seed}: published {slowest:.2f} s after its commit"
    return outcome.rolled_back


def play_all(stage: Stage, plans: Mapping[int, Schedule]) -> None:
    rolled_back = set[str]()
    for seed, plan in plans.items():
        rolled_back |= play(stage, seed, plan)
    assert rolled_back
    for seed in plans:  # a phantom may come late
        with Arrivals(stage.broker_url, f"seed-{seed}") as arrivals:
            assert not rolled_back & arrivals.look()


def play_polling(stage: Stage, seeds: Iterable[int]) -> None:
    plans = {seed: schedule(seed) for seed in seeds}
    assert kinds(list(plans.values())) == ALL_KINDS
    stage.start_relay(POLL)
    play_all(stage, plans)


def play_waking(stage: Stage, seeds: Iterable[int]) -> None:
    stage.start_relay(GATE)
    play_all(stage, {seed: without_prepared(schedule(seed)) for seed in seeds})


def test_the_same_seed_decides_the_same() -> None:
    assert schedule(7) == schedule(7)
    assert schedule(7) != schedule(8)
    assert len(schedule(7)) >= 6


def test_order_and_no_loss_in_random_commit_order(stage: Stage) -> None:
    play_polling(stage, SHORT)


def test_order_and_no_loss_in_random_commit_order_with_wakeup(stage: Stage) -> None:
    play_waking(stage, SHORT_GATE)


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_order_and_no_loss_in_many_random_commit_orders(stage: Stage) -> None:
    play_polling(stage, LONG)


@pytest.mark.chaos
@pytest.mark.timeout(300)
def test_order_and_no_loss_in_many_random_commit_orders_with_wakeup(stage: Stage) -> None:
    play_waking(stage, LONG_GATE)


def add(connection: psycopg.Connection[Any], count: int = 1) -> list[str]:
    """Messages with their intents, in the connection's transaction."""
    added = [Outbox().add(connection, Message("a.task")).id for _ in range(count)]
    for name in added:
        ledger.intend(connection, name)
    return [str(name) for name in added]


@contextmanager
def prepared(connection: psycopg.Connection[Any]) -> Iterator[str]:
    """A transaction with one message, prepared here and committed when the block is left; gives the message."""
    gid = sql.Literal(uuid.uuid4().hex)
    connection.execute("BEGIN")
    (name,) = add(connection)
    connection.execute(sql.SQL("PREPARE TRANSACTION {}").format(gid))
    yield name
    connection.execute(sql.SQL("COMMIT PREPARED {}").format(gid))


def test_a_prepared_transaction_is_published_once_it_has_committed(
    programs: Programs, database: str, broker_url: str
) -> None:
    ledger.create(database)
    programs.relay(database, broker_url, env=POLL)
    with psycopg.connect(database, autocommit=True) as connection, Arrivals(broker_url) as arrivals:
        with prepared(connection) as waiting:
            with connection.transaction():
                later = add(connection)
            arrivals.wait_for(later)
            assert waiting not in arrivals.look(), "prepared is not committed"
        arrivals.wait_for([waiting])
        settle(database, arrivals)


def test_a_relay_that_polls_lets_transactions_be_prepared_again(
    programs: Programs, database: str, broker_url: str
) -> None:
    """Why OUTBOX_WAKEUP=poll is there: a writer that has notified is refused by PostgreSQL, with its message."""
    ledger.create(database)
    with psycopg.connect(database, autocommit=True) as connection, Arrivals(broker_url) as arrivals:

        def flag() -> int:
            (row,) = connection.execute("SELECT last_value FROM outbox_wake").fetchall()
            return int(row[0])

        sleeper = programs.relay(database, broker_url, env=GATE)
        wait_until(lambda: flag() == 2, 10, "a relay with nothing to do to fall asleep")
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="NOTIFY"), prepared(connection):
            pass
        assert connection.execute("SELECT count(*) FROM outbox_message").fetchone() == (0,)
        sleeper.kill()  # it leaves the flag as it is
        programs.relay(database, broker_url, env=POLL)
        wait_until(lambda: flag() == 1, 15, "a relay that polls to silence the writers")
        with prepared(connection):
            pass
        settle(database, arrivals)


def hold_back(programs: Programs, database: str, broker_url: str, seconds: float) -> None:
    """The lowest transaction id and seq of all, committed last."""
    ledger.create(database)
    programs.relay(database, broker_url, env={"OUTBOX_HTTP": ""})
    writer = Writer(database)
    with psycopg.connect(database) as held, Arrivals(broker_url) as arrivals, arrivals.watching():
        late = add(held, 3)
        with writer.writing():
            arrivals.wait_for_more(50)
            stop = time.monotonic() + seconds
            wait_until(lambda: time.monotonic() >= stop, seconds + 1, "the transaction to be old")
            assert not set(late) & arrivals.look()
            held.commit()
            committed = time.monotonic()
            arrivals.wait_for(late)
        writer.close()
        assert max(arrivals.seen[name] for name in late) - committed <= PUBLISHED_WITHIN
        settle(database, arrivals)


def test_no_loss_of_a_late_commit(programs: Programs, database: str, broker_url: str) -> None:
    hold_back(programs, database, broker_url, 1)


@pytest.mark.chaos
def test_no_loss_of_a_very_late_commit(programs: Programs, database: str, broker_url: str) -> None:
    hold_back(programs, database, broker_url, 30)


def test_everything_flows_under_an_open_snapshot(programs: Programs, database: str, broker_url: str) -> None:
    """A report that runs for hours holds back vacuum, not the relay; nor does a transaction that also has written."""
    ledger.create(database)
    with psycopg.connect(database) as report, Arrivals(broker_url) as arrivals:
        report.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        report.execute("SELECT count(*), pg_current_xact_id() FROM outbox_message")
        own = add(report)
        programs.relay(database, broker_url, env={"OUTBOX_HTTP": ""})
        load(database, 50_000)
        wait_until(lambda: len(arrivals.look()) >= 50_000, 30, "50000 messages under an open snapshot")
        assert not set(own) & arrivals.look()
        report.commit()
        settle(database, arrivals)

"""Relays that die, freeze or are asked to leave, while an application writes and a worker applies."""

import signal
from collections.abc import Iterator
from uuid import UUID

import psycopg
import pytest
import redis

from outbox import Message
from relay.embedded import Process, wait_until
from relay.queries.status import status_queries_for
from tests.support import ledger
from tests.support.processes import Programs, wait_for_line
from tests.support.writers import Writer

LEADER = "SELECT r.name FROM outbox_leader p JOIN outbox_relay r USING (holder) WHERE p.expires_at > clock_timestamp()"
POSITION = "SELECT epoch, holder, window_no, prev::text, next::text, last_seq FROM outbox_leader"
TTL = {"OUTBOX_LEASE_TTL": "1"}


@pytest.fixture
def writer(database: str) -> Iterator[Writer]:
    ledger.create(database)
    made = Writer(database)
    yield made
    made.close()


class Relays:
    """Relays by name, and which of them leads."""

    def __init__(self, programs: Programs, database: str, broker_url: str) -> None:
        self._programs = programs
        self._urls = (database, broker_url)
        self._database = database
        self.by_name: dict[str, Process] = {}
        programs.environment |= {"OUTBOX_DATABASE_URL": database, "OUTBOX_BROKER_URL": broker_url}

    def start(self, name: str) -> None:
        self.by_name[name] = self._programs.relay(*self._urls, "-v", "--name", name, name=name, env=TTL)

    def leader(self) -> str | None:
        with psycopg.connect(self._database) as connection:
            row = connection.execute(LEADER).fetchone()
        return row[0] if row else None

    def wait_for_leader(self, *, other_than: str | None = None) -> str:
        return wait_until(lambda: (name := self.leader()) != other_than and name, 15, "a leader") or ""

    def position(self) -> tuple[object, ...]:
        with psycopg.connect(self._database) as connection:
            return connection.execute(POSITION).fetchall()[0]

    def everything_is_published(self) -> bool:
        """The last window is closed and nothing waits behind it: the position has no reason to move any more."""
        with psycopg.connect(self._database) as connection:
            (waiting,) = connection.execute(status_queries_for("public").backlog, {"most": 1}).fetchall()
        return waiting[0] == 0 and self.position()[4] is None


@pytest.fixture
def relays(programs: Programs, database: str, broker_url: str) -> Relays:
    return Relays(programs, database, broker_url)


def kill_leaders(rounds: int, relays: Relays, writer: Writer, programs: Programs, database: str) -> None:
    for number in (1, 2):
        relays.start(f"relay-{number}")
    programs.worker("tests.support.ledger_app", "--without-gossip", "--without-mingle")
    epochs = [int(str(relays.position()[0]))]
    with writer.writing():
        for number in range(rounds):
            leader = relays.wait_for_leader()
            relays.by_name[leader].kill()
            relays.start(f"relay-{number + 3}")
            relays.wait_for_leader(other_than=leader)
            epochs.append(int(str(relays.position()[0])))
    assert epochs == sorted(set(epochs)), "the epoch rises at every change of leader"
    report = ledger.settle(database, deadline=60)
    assert report.written > 20 * rounds


def test_no_loss_when_leaders_are_killed(relays: Relays, writer: Writer, programs: Programs, database: str) -> None:
    kill_leaders(3, relays, writer, programs, database)


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_no_loss_when_many_leaders_are_killed(
    relays: Relays, writer: Writer, programs: Programs, database: str
) -> None:
    kill_leaders(40, relays, writer, programs, database)


def test_a_leader_that_was_frozen_past_its_lease_changes_nothing(
    relays: Relays, writer: Writer, programs: Programs, database: str
) -> None:
    relays.start("relay-1")
    relays.wait_for_leader()
    relays.start("relay-2")
    with writer.writing():
        wait_for_line(relays.by_name["relay-1"], "page_published")
        relays.by_name["relay-1"].freeze()
        relays.wait_for_leader(other_than="relay-1")
    wait_until(relays.everything_is_published, 15, "the new leader to finish")
    before = relays.position()
    seen = len(relays.by_name["relay-1"].output())
    relays.by_name["relay-1"].thaw()
    wait_for_line(relays.by_name["relay-1"], "leadership_lost|database_unavailable", since=seen)
    assert relays.position() == before
    assert relays.by_name["relay-1"].alive, "losing a lease is not an error"
    programs.worker("tests.support.ledger_app", "--without-gossip", "--without-mingle")
    ledger.settle(database, deadline=40)


def test_sigterm_hands_over_without_a_repeated_delivery(
    relays: Relays, writer: Writer, database: str, broker_url: str
) -> None:
    relays.start("relay-1")
    relays.wait_for_leader()
    relays.start("relay-2")
    wait_for_line(relays.by_name["relay-2"], ".*", deadline=5)
    with writer.writing():
        for leaving, staying in (("relay-1", "relay-2"), ("relay-2", "relay-3")):
            wait_for_line(relays.by_name[leaving], "page_published")
            if staying not in relays.by_name:
                relays.start(staying)
            assert relays.by_name[leaving].terminate(deadline=10) == 0
            assert "leadership_released" in relays.by_name[leaving].output()
            relays.wait_for_leader(other_than=leaving)
    with psycopg.connect(database) as connection:
        written = {str(key) for (key,) in connection.execute("SELECT id FROM outbox_message")}
    with redis.Redis.from_url(broker_url) as broker:
        wait_until(lambda: broker.llen("celery") >= len(written), 20, "every message at the broker")
        assert broker.llen("celery") == len(written)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_at_any_moment_ends_an_idle_relay(relays: Relays, database: str, number: signal.Signals) -> None:
    """An idle relay is nearly always inside a wait: a handler on the main thread would hang there now and then."""
    for attempt in range(8):
        name = f"relay-{attempt}"
        relays.start(name)
        wait_for_line(relays.by_name[name], "leadership_gained")
        assert relays.by_name[name].terminate(deadline=10, number=number) == 0


def test_two_relays_with_one_name_are_two_relays(relays: Relays, writer: Writer, database: str) -> None:
    relays.start("twin")
    first = relays.by_name["twin"]
    relays.wait_for_leader()
    relays.start("twin")
    second = relays.by_name["twin"]
    with psycopg.connect(database) as connection:
        wait_until(
            lambda: connection.execute("SELECT count(*) FROM outbox_relay WHERE name = 'twin'").fetchone() == (2,),
            10,
            "both to register",
        )
    assert "leadership_gained" in first.output()
    assert "leadership_gained" not in second.output()


def test_a_message_that_nobody_committed_is_never_published(
    relays: Relays, writer: Writer, database: str, broker_url: str
) -> None:
    relays.start("relay-1")
    relays.wait_for_leader()
    ids: list[UUID] = []
    with writer.engine.connect() as connection:
        open_one = connection.begin()
        ids.append(writer._outbox.add(connection, Message("ledger.apply")).id)
        kept = writer.add(Message("ledger.apply"))
        with redis.Redis.from_url(broker_url) as broker:
            wait_until(lambda: broker.llen("celery") == 1, 10, "the committed one")
            open_one.rollback()
            later = writer.add(Message("ledger.apply"))
            wait_until(lambda: broker.llen("celery") == 2, 10, "the next committed one")
            published = b"".join(broker.lrange("celery", 0, -1)).decode()
    assert kept in published
    assert later in published
    assert str(ids[0]) not in published

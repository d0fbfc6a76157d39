"""Leaders cut from the broker, from PostgreSQL, from a session of their own and from the right time."""

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from outbox import Message
from relay.embedded import wait_until
from tests.support import ledger
from tests.support.debian import Unavailable, unpack
from tests.support.processes import Programs, wait_for_exit, wait_for_line
from tests.support.proxy import Proxy
from tests.support.relays import Scene
from tests.support.servers import missing
from tests.support.writers import Writer

# A statement of the leader that has changed its row waits here, inside its transaction, while the test has the lock.
GATE = """
    CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        PERFORM pg_advisory_xact_lock_shared(4242);
        RETURN NULL;
    END $$;
    CREATE TRIGGER gate AFTER UPDATE OF window_no ON outbox_leader FOR EACH ROW EXECUTE FUNCTION gate();
"""
AT_THE_GATE = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = 4242 AND NOT granted"
CRASH = """
import sys
from relay import Relay, RelaySettings
from relay.events import LeadershipGained
def crash(event):
    if isinstance(event, LeadershipGained):
        raise ZeroDivisionError("the lease thread crashes")
Relay(RelaySettings(database_url=sys.argv[1], broker_url=sys.argv[2]), observer=crash).run()
"""


@pytest.fixture
def writer(database: str) -> Iterator[Writer]:
    ledger.create(database)
    made = Writer(database)
    yield made
    made.close()


def port_of(url: str) -> int:
    return urlsplit(url).port or 0


def churn(scene: Scene, writer: Writer, seed: int, steps: int) -> None:
    chance = random.Random(seed)
    scene.audit()
    names = [f"relay-{number}" for number in range(5)]
    for name in names:
        scene.start(name, lease_ttl="1")
    scene.wait_for_leader()
    with writer.writing():
        for _ in range(steps):
            name = chance.choice([scene.leader() or names[0], *names])
            match chance.choice(["kill", "freeze", "terminate"]):
                case "kill":
                    scene.relays[name].kill()
                    scene.start(name, lease_ttl="1")
                case "freeze":
                    scene.relays[name].freeze()
                    wait_until(lambda frozen=name: scene.leader() not in (None, frozen), 15, "another leader")  # type: ignore[misc]
                    scene.relays[name].thaw()
                case _:
                    relay = scene.relays[name]
                    # One that is told to leave while Python still loads it has nothing to hand over.
                    begun = "relay_started" in relay.output()
                    assert relay.terminate(deadline=10) == 0 or not begun
                    scene.start(name, lease_ttl="1")
    scene.wait_until_nothing_is_lost()
    assert scene.assert_one_holder_an_epoch() > 1


def test_no_epoch_has_two_holders_however_relays_come_and_go(scene: Scene, writer: Writer) -> None:
    churn(scene, writer, seed=1, steps=4)


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(4))
def test_no_epoch_has_two_holders_in_a_long_churn(scene: Scene, writer: Writer, seed: int) -> None:
    churn(scene, writer, seed, steps=40)


def test_a_leader_cut_from_the_broker_alone_makes_way(
    scene: Scene, writer: Writer, proxy_to: Callable[[int], Proxy]
) -> None:
    proxy = proxy_to(port_of(scene.broker_url))
    cut = scene.start("cut", broker=proxy.url(scene.broker_url), resign_seconds="2")
    scene.wait_for_leader()
    scene.start("other", resign_seconds="2")
    scene.wait_for_standbys(2)
    proxy.refuse()
    with writer.writing():
        assert scene.wait_for_leader(other_than="cut", deadline=15) == "other"
    scene.wait_until_nothing_is_lost()
    assert "another relay reaches it" in cut.output()
    assert cut.alive
    assert scene.leader() == "other", "it does not take the lease back while it cannot use it"


def test_a_half_open_line_to_postgresql_silences_the_leader_before_its_lease_ends(
    scene: Scene, writer: Writer, proxy_to: Callable[[int], Proxy]
) -> None:
    proxy = proxy_to(port_of(scene.database))
    scene.start("cut", database=proxy.url(scene.database), lease_ttl="2")
    scene.wait_for_leader()
    scene.start("other", lease_ttl="2")
    scene.wait_for_standbys(2)
    with writer.writing():
        wait_until(lambda: scene.newest_epoch_at_broker() == scene.epoch(), 15, "the leader to publish")
        proxy.partition()
        began = time.monotonic()
        scene.wait_for_leader(other_than="cut")
        assert time.monotonic() - began < 2 + 1
        wait_until(lambda: scene.newest_epoch_at_broker() == scene.epoch(), 15, "the next leader to publish")
    proxy.heal()
    scene.wait_until_nothing_is_lost()
    epochs = scene.epochs_at_broker()
    assert epochs == sorted(epochs), "the old leader was silent before the new one spoke"


def test_swallowed_answers_do_not_stop_a_lone_relay(
    scene: Scene, writer: Writer, proxy_to: Callable[[int], Proxy]
) -> None:
    proxy = proxy_to(port_of(scene.database))
    scene.start("lone", database=proxy.url(scene.database), lease_ttl="1")
    scene.wait_for_leader()
    with writer.writing():
        wait_until(lambda: scene.newest_epoch_at_broker() == scene.epoch(), 15, "the leader to publish")
        before = scene.epoch()
        proxy.swallow_replies()
        wait_for_line(scene.relays["lone"], "no answer for|leadership_lost")
        proxy.heal()
        wait_until(lambda: scene.newest_epoch_at_broker() > before, 15, "it to lead again and publish")
    scene.wait_until_nothing_is_lost()


def test_a_leader_frozen_between_update_and_commit_blocks_nobody(scene: Scene, writer: Writer) -> None:
    scene.start("frozen", lease_ttl="2")
    scene.wait_for_leader()
    scene.start("other", lease_ttl="2")
    scene.wait_for_standbys(2)
    scene.admin.execute(GATE)
    with psycopg.connect(scene.database, autocommit=True) as gate:
        gate.execute("SELECT pg_advisory_lock(4242)")
        writer.write(1, rollbacks=0)
        wait_until(lambda: gate.execute(AT_THE_GATE).fetchone() is not None, 10, "the leader's statement at the gate")
        scene.relays["frozen"].freeze()
        gate.execute("SELECT pg_advisory_unlock(4242)")
    began = time.monotonic()
    scene.wait_for_leader(other_than="frozen")
    assert time.monotonic() - began < 2 + 1
    writer.write(3, rollbacks=0)
    scene.wait_until_nothing_is_lost()
    scene.relays["frozen"].thaw()
    wait_for_line(scene.relays["frozen"], "leadership_lost|database_unavailable")
    assert scene.leader() == "other"


def test_a_terminated_work_session_costs_an_epoch_and_no_leader(scene: Scene, writer: Writer) -> None:
    scene.start("leader", lease_ttl="30")
    scene.wait_for_leader()
    scene.start("other", lease_ttl="30")
    scene.wait_for_standbys(2)
    with writer.writing():
        wait_until(lambda: scene.newest_epoch_at_broker() == scene.epoch(), 15, "the leader to publish")
        before = scene.epoch()
        scene.admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'outbox work'"
        )
        wait_until(lambda: scene.newest_epoch_at_broker() > before, 15, "the next term")
    assert scene.leader() == "leader"
    scene.wait_until_nothing_is_lost()


def test_behind_a_pooler_leaders_are_replaced_by_the_lease_alone(
    scene: Scene, writer: Writer, pooled_database: str
) -> None:
    scene.audit()
    for name in ("one", "two"):
        scene.start(name, database=pooled_database, lease_ttl="1")
    scene.wait_for_standbys(2)
    with writer.writing():
        leader = scene.wait_for_leader()
        wait_until(lambda: scene.newest_epoch_at_broker() == scene.epoch(), 15, "the leader to publish")
        scene.relays[leader].kill()
        scene.wait_for_leader(other_than=leader)
    scene.wait_until_nothing_is_lost()
    assert scene.assert_one_holder_an_epoch() == 2
    assert "pooler_found" in scene.relays[leader].output()


def faketime() -> Path:
    try:
        return next(unpack("libfaketime").glob("usr/lib/*/faketime/libfaketime.so.1"))
    except (Unavailable, StopIteration) as error:
        missing("libfaketime", f"install the package libfaketime ({error!r})")


def test_wall_clocks_a_day_off_steal_and_stall_nothing(scene: Scene, writer: Writer) -> None:
    library = str(faketime())
    for name, clock in (("ahead", "+1d"), ("behind", "-1d")):
        process = {"LD_PRELOAD": library, "FAKETIME": clock, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        scene.programs.environment |= process
        scene.start(name, lease_ttl="1")
    scene.programs.environment.clear()
    scene.wait_for_standbys(2)
    first = scene.wait_for_leader()
    epoch = scene.epoch()
    with writer.writing():
        began = time.monotonic()
        wait_until(lambda: time.monotonic() - began > 2.5, 5, "two and a half leases")
        assert (scene.leader(), scene.epoch()) == (first, epoch), "no lease is stolen"
        scene.relays[first].kill()
        wait_until(lambda: scene.newest_epoch_at_broker() > epoch, 10, "the other clock's relay to publish")
    scene.wait_until_nothing_is_lost()


def test_a_crash_of_the_lease_thread_ends_the_process(programs: Programs, database: str, broker_url: str) -> None:
    crashed = programs.python("-c", CRASH, database, broker_url, name="crashing")
    assert wait_for_exit(crashed) == 1
    assert "the lease thread crashes" in crashed.output()


@pytest.mark.parametrize("path", ["/no_such_database", "/postgres?user=no_such_role"])
def test_a_relay_that_is_refused_at_the_start_ends_with_one_line(scene: Scene, path: str) -> None:
    refused = scene.start("refused", database=scene.database.rpartition("/")[0] + path)
    assert wait_for_exit(refused) == 5
    lines = [line for line in refused.output().splitlines() if line.startswith("outbox: ")]
    assert len(lines) == 1
    assert "does not exist" in lines[0]
    assert "Traceback" not in refused.output()


def test_a_database_that_goes_away_later_is_waited_for(
    scene: Scene, writer: Writer, proxy_to: Callable[[int], Proxy]
) -> None:
    proxy = proxy_to(port_of(scene.database))
    relay = scene.start("waiting", database=proxy.url(scene.database), lease_ttl="1")
    scene.wait_for_leader()
    proxy.refuse()
    wait_for_line(relay, "database_unavailable.*failures=[2-9]")
    proxy.heal()
    writer.add(Message("ledger.apply"))
    wait_until(lambda: scene.broker.llen("celery") == 1, 15, "the message after the outage")
    assert relay.output().count("database_unavailable") < 12, "the same outage is not told again and again"

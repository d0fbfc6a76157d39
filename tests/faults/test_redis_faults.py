"""A broker that is frozen, away, full, forgetful or read-only: messages wait, and none pays for it.

Only the test of eviction has a consumer: what the broker has taken and then thrown away, only receipts can show.
"""

import re
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from itertools import pairwise

import pytest
import redis

from outbox import Message
from relay.embedded import Valkey, free_port, wait_until
from tests.support import ledger
from tests.support.arrivals import Arrivals
from tests.support.processes import Programs, wait_for_line
from tests.support.scene import Scene, cpu_seconds, opened
from tests.support.writers import Writer

LONGEST_PAUSE = 5.0  # between two tries, as relay/publishing.py caps it, without jitter and timeout
UNAVAILABLE = re.compile(r"^(\d\d):(\d\d):(\d\d).* broker_unavailable .*attempt=(\d+)", re.MULTILINE)


@pytest.fixture
def scene(programs: Programs, database: str, own_valkey: Valkey) -> Iterator[Scene]:
    with opened(programs, database, own_valkey.url()) as made:
        made.start_relay()
        made.require_flow(5, "at first")
        yield made


@pytest.fixture
def broker(own_valkey: Valkey) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(own_valkey.url(), socket_timeout=5) as client:
        yield client


def pass_time(seconds: float) -> None:
    """The length of an outage is part of the test."""
    time.sleep(seconds)


def outages(scene: Scene, since: int) -> list[tuple[timedelta, int]]:
    """When the relay said that the broker is away, as times of day, and how often it had tried by then."""
    found = [tuple(map(int, each)) for each in UNAVAILABLE.findall(scene.relay.output()[since:])]
    return [(timedelta(hours=hour, minutes=minute, seconds=second), tried) for hour, minute, second, tried in found]


def freeze(scene: Scene, valkey: Valkey, seconds: float) -> None:
    said = len(scene.relay.output())
    ((published,),) = scene.query("SELECT max(seq) FROM outbox_message")
    valkey.freeze()
    scene.writer.write(5, rollbacks=0)
    # Whatever it opened it has opened by now: from here on nothing may move until the broker answers.
    wait_for_line(scene.relay, "broker_unavailable", since=said)
    before = scene.position()
    assert before.last_seq <= published, "never past what the broker has not answered for"
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert scene.position() == before, "no position without an answer, no lease lost"
        scene.writer.write(5)
        pass_time(0.2)
    thawed = time.monotonic()
    valkey.thaw()
    scene.settle()
    assert max(scene.arrivals.seen.values()) - thawed < 5
    scene.require_nothing_given_up()
    assert "leadership_lost" not in scene.relay.output(), "a hung broker costs no lease"


def test_a_frozen_broker_costs_neither_lease_nor_position(scene: Scene, own_valkey: Valkey) -> None:
    freeze(scene, own_valkey, 5)


@pytest.mark.chaos
def test_a_broker_frozen_for_a_minute_costs_neither_lease_nor_position(scene: Scene, own_valkey: Valkey) -> None:
    freeze(scene, own_valkey, 60)


def take_away(scene: Scene, valkey: Valkey, seconds: float) -> None:
    said, worked, began = len(scene.relay.output()), cpu_seconds(scene.relay), time.monotonic()
    valkey.kill()
    with scene.writer.writing(every=0.2):
        pass_time(seconds)
    share = (cpu_seconds(scene.relay) - worked) / (time.monotonic() - began)
    told = outages(scene, said)
    # Not every try is logged; between two that are, each took this long on average.
    gaps = [(later - earlier) / max(1, more - tried) for (earlier, tried), (later, more) in pairwise(told)]
    scene.require_nothing_given_up()
    valkey.start()
    back = time.monotonic()
    scene.arrivals.wait_for_more()
    assert max(scene.arrivals.seen.values()) - back < 5, "draining begins at once"
    scene.settle(60)
    assert share < 0.1, f"{share:.0%} of a processor spent on an absent broker"
    assert 1 <= len(told) <= 10 + seconds, "said, and not a thousand times"
    # Seconds as they are logged, one of rounding; the try itself may take as long as the timeout.
    assert max(gaps, default=timedelta()) <= timedelta(seconds=LONGEST_PAUSE + 3)
    wait_for_line(scene.relay, "broker_recovered", since=said)


def test_an_absent_broker_is_waited_for_quietly(scene: Scene, own_valkey: Valkey) -> None:
    take_away(scene, own_valkey, 7)


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_a_broker_that_is_away_for_minutes_is_waited_for_quietly(scene: Scene, own_valkey: Valkey) -> None:
    take_away(scene, own_valkey, 300)


def test_a_full_broker_makes_messages_wait(scene: Scene, broker: redis.Redis) -> None:
    broker.config_set("maxmemory-policy", "noeviction")
    broker.config_set("maxmemory", "1")
    said = len(scene.relay.output())
    scene.writer.write(30)
    wait_for_line(scene.relay, "broker_unavailable.*(OutOfMemory|OOM)", since=said)
    known = scene.arrivals.look()
    scene.writer.write(10)
    assert scene.arrivals.look() == known
    scene.require_nothing_given_up()
    broker.config_set("maxmemory", "0")
    scene.require_flow(5, "after there was memory again")


def test_a_broker_turned_replica_and_back_is_an_outage(scene: Scene, broker: redis.Redis) -> None:
    """As in a failover: it answers, and refuses to write. Its master does not exist, so it keeps its data."""
    broker.replicaof("127.0.0.1", free_port())
    said = len(scene.relay.output())
    scene.writer.write(30)
    wait_for_line(scene.relay, "broker_unavailable.*(ReadOnly|READONLY)", since=said)
    scene.require_nothing_given_up()
    broker.replicaof("NO", "ONE")
    scene.require_flow(5, "after it was master again")


def test_what_the_broker_evicts_is_published_again(programs: Programs, database: str, own_valkey: Valkey) -> None:
    ledger.create(database)
    urls = {"OUTBOX_DATABASE_URL": database, "OUTBOX_BROKER_URL": own_valkey.url(), "OUTBOX_HTTP": ""}
    programs.environment |= {**urls, "OUTBOX_LEASE_TTL": "1", "LEDGER_RECEIPT_TIMEOUT": "2"}
    worker = programs.worker("tests.support.ledger_app", "--without-gossip", "--without-mingle")
    wait_for_line(worker, r"ready\.")
    worker.kill()  # the consumer is registered, and nobody takes anything
    relay = programs.relay(database, own_valkey.url())
    writer = Writer(database)
    with redis.Redis.from_url(own_valkey.url(), socket_timeout=5) as broker:
        writer.write(30, rollbacks=0)
        writer.close()
        wait_until(lambda: broker.llen("celery") == 30, 15, "all messages at the broker")
        broker.config_set("maxmemory-policy", "allkeys-lru")
        broker.config_set("maxmemory", "1")
        wait_until(lambda: squeeze(broker), 15, "the broker to throw the queue away")
        broker.config_set("maxmemory", "0")
    programs.worker("tests.support.ledger_app", "--without-gossip", "--without-mingle")
    report = ledger.settle(database, deadline=40)
    assert report.applied == 30
    assert relay.alive


def squeeze(broker: redis.Redis) -> bool:
    """A write makes room for itself; without any room left it is refused, after everything else has gone."""
    with suppress(redis.exceptions.OutOfMemoryError):
        broker.set("something", "else")
    return not broker.exists("celery")


def test_a_queue_that_is_no_list_parks_alone(scene: Scene, broker: redis.Redis) -> None:
    """A foreign key of another type lies where the list of one queue should be."""
    broker.set("reports", "somebody else's")
    parked = [scene.writer.add(Message("a.task", queue="reports")) for _ in range(10)]
    scene.writer.write(20, rollbacks=0)
    scene.settle()
    scene.require_nothing_given_up()
    waiting = "SELECT count(*) FROM outbox_due WHERE reason = 'parked'"
    wait_until(lambda: scene.query(waiting) == [(10,)], 10, "its messages to be parked")
    scene.require_flow(2, "of all other queues")
    broker.delete("reports")
    with Arrivals(scene.broker_url, "reports") as late:
        late.wait_for(parked, 40)
        assert list(dict.fromkeys(late.copies)) == parked

"""Read, publish, advance: in this order, and only while the term is trusted."""

import json
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
import redis

from relay.cycle import Cycle
from relay.database import connect
from relay.dispatch import Dispatch
from relay.due import Due
from relay.embedded import free_port
from relay.encode import Encoder
from relay.events import BrokerUnavailable, Event, MissingPlanned
from relay.lease import LeaseLost, Term
from relay.parking import Parking
from relay.publish.redis import RedisPublisher
from relay.publishing import Publishing
from relay.queries import queries_for
from relay.queues import Queues
from relay.read import Log
from relay.reconcile import Reconcile
from relay.routing import DefaultQueue
from tests.support.leases import take_lease

QUERIES = queries_for("public")
POSITION = "SELECT window_no, prev::text, next::text, last_seq FROM outbox_leader"
INSERT = "INSERT INTO outbox_message (id, task) VALUES (%s, 'a.b')"


class Works:
    """The parts of one term, wired as the daemon wires them."""

    def __init__(self, database: str, broker_url: str, undo: ExitStack, holds: Callable[[Term], bool]) -> None:
        self.term = take_lease(database)
        self.events: list[Event] = []
        connection = undo.enter_context(connect(database, 3.0, "test"))
        routing = DefaultQueue("celery")
        publisher = RedisPublisher(broker_url, 1.0, Encoder(routing.queue_for))
        undo.callback(publisher.close)
        publishing = Publishing(
            publisher,
            self.term,
            relay="test",
            holds=holds,
            stop=threading.Event(),
            observer=self.events.append,
        )
        log = Log(connection, QUERIES, self.term, 10)
        queues = Queues()
        dispatch = Dispatch(publishing, queues, routing.queue_for)
        self.parking = Parking(connection, QUERIES, self.term, queues, self.events.append)
        self.cycle = Cycle(log, dispatch)
        self.due = Due(connection, QUERIES, log, dispatch, self.parking, 10)
        self.seconds = 0.0
        self.reconcile = Reconcile(
            connection, QUERIES, log, self.term, self.events.append, relay="test", clock=lambda: self.seconds
        )
        self.cycle.resume()


Make = Callable[..., Works]


@pytest.fixture
def works(database: str, broker_url: str) -> Iterator[Make]:
    with ExitStack() as undo:

        def make(broker: str = broker_url, holds: Callable[[Term], bool] = lambda _: True) -> Works:
            return Works(database, broker, undo, holds)

        yield make


@pytest.fixture
def client(database: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


def published(broker_url: str) -> list[str]:
    with redis.Redis.from_url(broker_url) as broker:
        return [json.loads(each)["headers"]["id"] for each in reversed(broker.lrange("celery", 0, -1))]


def add(client: psycopg.Connection[tuple[Any, ...]], count: int) -> list[str]:
    ids = [str(uuid.uuid4()) for _ in range(count)]
    for each in ids:
        client.execute(INSERT, [each])
    return ids


def test_the_position_never_runs_ahead_of_the_broker(
    works: Make, client: psycopg.Connection[tuple[Any, ...]], broker_url: str
) -> None:
    """No broker there: the window is open and nothing of it counts as published, so the next leader publishes it."""
    tries = iter([True, True, True])
    away = works(broker=f"redis://127.0.0.1:{free_port()}/0", holds=lambda _: next(tries, False))
    ids = add(client, 25)
    with pytest.raises(LeaseLost):
        away.cycle.step()
    assert any(isinstance(event, BrokerUnavailable) for event in away.events)
    row = client.execute(POSITION).fetchall()[0]
    assert row[2] is not None
    assert row[3] == 0
    heir = works()
    while heir.cycle.step():
        pass
    assert published(broker_url) == ids


def test_a_term_that_is_not_trusted_publishes_and_writes_nothing(
    works: Make, client: psycopg.Connection[tuple[Any, ...]], broker_url: str
) -> None:
    before = client.execute(POSITION).fetchall()
    add(client, 3)
    distrusted = works(holds=lambda _: False)
    with pytest.raises(LeaseLost):
        distrusted.cycle.step()
    assert published(broker_url) == []
    assert client.execute(POSITION).fetchall() == before


def register(client: psycopg.Connection[tuple[Any, ...]], seconds: float) -> None:
    client.execute("INSERT INTO inbox_consumer VALUES ('a.b', make_interval(secs => %s))", [seconds])


def let_it_be_due(client: psycopg.Connection[tuple[Any, ...]]) -> None:
    client.execute("UPDATE outbox_due SET due_at = clock_timestamp()")


def test_a_plan_is_kept_until_the_receipt_exists(
    works: Make, client: psycopg.Connection[tuple[Any, ...]], broker_url: str
) -> None:
    """The broker may lose any number of copies: each is followed by another, with a number of its own."""
    register(client, 60)
    (message,) = add(client, 1)
    relay = works()
    relay.cycle.step()
    plan = "INSERT INTO outbox_due (message_id, due_at, publication, reason) VALUES (%s, now(), 1, 'redelivery')"
    client.execute(plan, [message])
    for number in (1, 2, 3):
        with redis.Redis.from_url(broker_url) as broker:
            broker.flushdb()
            let_it_be_due(client)
            assert relay.due.step() == 1
            (copy,) = [json.loads(each) for each in broker.lrange("celery", 0, -1)]
        assert copy["headers"]["outbox"]["publication"] == number
        assert copy["properties"]["delivery_tag"] == f"{message}.{number}"
        assert relay.due.step() == 0, "the next copy waits for its time"
    client.execute("INSERT INTO inbox_receipt (message_id, consumer, status) VALUES (%s, 'a.b', 'applied')", [message])
    let_it_be_due(client)
    relay.due.step()
    assert published(broker_url) == [message], "no copy after the third"
    assert client.execute("SELECT count(*) FROM outbox_due").fetchone() == (0,)


def test_a_plan_for_a_plain_task_ends_with_its_publication(
    works: Make, client: psycopg.Connection[tuple[Any, ...]]
) -> None:
    (message,) = add(client, 1)
    relay = works()
    client.execute("INSERT INTO outbox_due (message_id, due_at, reason) VALUES (%s, now(), 'retry')", [message])
    assert relay.due.step() == 1
    assert client.execute("SELECT count(*) FROM outbox_due").fetchone() == (0,)


def test_a_zombie_changes_no_plan(works: Make, client: psycopg.Connection[tuple[Any, ...]]) -> None:
    register(client, 60)
    (message,) = add(client, 1)
    zombie = works()
    zombie.cycle.step()
    client.execute("INSERT INTO outbox_due (message_id, due_at, reason) VALUES (%s, now(), 'retry')", [message])
    client.execute("INSERT INTO inbox_retry VALUES (%s, 'a.b', 'failure', 1, now())", [message])
    works()
    rows = "SELECT (SELECT array_agg(d::text) FROM outbox_due d), (SELECT array_agg(r::text) FROM inbox_retry r)"
    before = client.execute(rows).fetchall()
    with pytest.raises(LeaseLost):
        zombie.due.step()
    assert client.execute(rows).fetchall() == before


def let_it_be_old(client: psycopg.Connection[tuple[Any, ...]]) -> None:
    client.execute("UPDATE outbox_window SET closed_at = closed_at - interval '1 hour'")


def publish_and_lose(client: psycopg.Connection[tuple[Any, ...]], relay: Works) -> list[str]:
    """Six messages of a consumer, four of them receipted, and one of a plain task; returns the two that are owed."""
    register(client, 60)
    ids = add(client, 6)
    client.execute("INSERT INTO outbox_message (id, task) VALUES (gen_random_uuid(), 'plain.task')")
    for each in ids[:4]:
        client.execute("INSERT INTO inbox_receipt (message_id, consumer, status) VALUES (%s, 'a.b', 'applied')", [each])
    while relay.cycle.step():
        pass
    relay.reconcile.step()
    return sorted(ids[4:])


def planned(client: psycopg.Connection[tuple[Any, ...]]) -> list[str]:
    return [row[0] for row in client.execute("SELECT message_id::text FROM outbox_due ORDER BY 1")]


def test_reconcile_plans_what_has_no_receipt_and_nothing_else(
    works: Make, client: psycopg.Connection[tuple[Any, ...]]
) -> None:
    relay = works()
    owed = publish_and_lose(client, relay)
    relay.seconds = 2.0
    relay.reconcile.step()
    assert planned(client) == [], "too early to judge"
    let_it_be_old(client)
    relay.seconds = 4.0
    relay.reconcile.step()
    assert planned(client) == owed
    assert MissingPlanned(2) in relay.events
    client.execute("DELETE FROM outbox_due")
    relay.seconds = 6.0
    relay.reconcile.step()
    assert planned(client) == [], "swept once"


def test_reconcile_goes_on_where_the_last_leader_stopped(
    works: Make, client: psycopg.Connection[tuple[Any, ...]]
) -> None:
    """Leaders that live shorter than a receipt timeout must not keep the sweep from ever running."""
    owed = publish_and_lose(client, works())
    let_it_be_old(client)
    heir = works()
    heir.reconcile.step()
    assert planned(client) == owed


def test_a_zombie_sweeps_nothing(works: Make, client: psycopg.Connection[tuple[Any, ...]]) -> None:
    zombie = works()
    publish_and_lose(client, zombie)
    let_it_be_old(client)
    works()
    zombie.seconds = 2.0
    with pytest.raises(LeaseLost):
        zombie.reconcile.step()
    assert planned(client) == []

"""One message all the way through: transaction, relay process, broker, Celery worker, receipted effect."""

import json
from base64 import b64encode
from collections.abc import Iterator

import psycopg
import pytest
import redis

from outbox import Message
from relay.embedded import wait_until
from tests.support import ledger
from tests.support.processes import Programs
from tests.support.writers import Writer

SHAPES = {
    "nothing": Message("ledger.echo"),
    "positional": Message("ledger.echo", args=(1, "two", None, True, 2.5)),
    "keywords": Message("ledger.echo", kwargs={"task": "x", "args": 1, "nested": {"a": [1, {"b": []}]}}),
    "unicode": Message("ledger.echo", args=("żółć 漢字 🙂 \u2028",), kwargs={"naïve": "\t\n\\\"'"}),
    "numbers": Message("ledger.echo", args=(2**200, -(2**63), 0.1, 1e300, -0.0)),
    "large": Message("ledger.echo", kwargs={"text": "x" * 200_000}),
    "headers": Message("ledger.echo", headers={"tenant": "ä-1", "traceparent": "00-abc"}),
    **{f"priority {number}": Message("ledger.echo", priority=number) for number in range(10)},
}


@pytest.fixture
def writer(database: str) -> Iterator[Writer]:
    ledger.create(database)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE echo (id uuid, told json)")
    made = Writer(database)
    yield made
    made.close()


def start(programs: Programs, database: str, broker_url: str, **env: str) -> None:
    programs.environment |= {"OUTBOX_DATABASE_URL": database, "OUTBOX_BROKER_URL": broker_url, **env}
    programs.relay(database, broker_url, "--name", "relay-1")
    programs.worker("tests.support.ledger_app", "--without-gossip", "--without-mingle")


def echoes(database: str) -> dict[str, dict[str, object]]:
    with psycopg.connect(database) as connection:
        return {str(key): told for key, told in connection.execute("SELECT id, told FROM echo")}


def test_atomic_and_exactly_once(writer: Writer, programs: Programs, database: str, broker_url: str) -> None:
    start(programs, database, broker_url)
    writer.write(300, rollbacks=0.2)
    report = ledger.settle(database, deadline=40)
    assert report.written == report.applied > 200


def test_a_real_worker_executes_every_shape(writer: Writer, programs: Programs, database: str, broker_url: str) -> None:
    start(programs, database, broker_url)
    sent = {writer.add(message): message for message in SHAPES.values()}
    wait_until(lambda: len(echoes(database)) == len(sent), 40, "every shape to be executed")
    told = echoes(database)
    for key, message in sent.items():
        assert told[key] == json.loads(
            json.dumps({"args": message.args, "kwargs": message.kwargs, "headers": message.headers})
        )


def test_a_failing_handler_is_run_again_from_the_database(
    writer: Writer, programs: Programs, database: str, broker_url: str
) -> None:
    start(programs, database, broker_url, LEDGER_RECEIPT_TIMEOUT="0.5")
    writer.write(5, rollbacks=0, failures=2)
    report = ledger.settle(database, deadline=40)
    assert report.written == report.applied == 5
    with psycopg.connect(database) as connection:
        wait_until(
            lambda: (
                connection.execute("SELECT count(*) FROM inbox_retry").fetchone() == (0,)
                and connection.execute("SELECT count(*) FROM outbox_due").fetchone() == (0,)
            ),
            20,
            "no plan left for finished messages",
        )


def test_a_plain_celery_task_gets_the_message_too(
    writer: Writer, programs: Programs, database: str, broker_url: str
) -> None:
    start(programs, database, broker_url)
    writer.add(Message("ledger.plain", args=(1,), kwargs={"two": 2}))
    wait_until(lambda: len(echoes(database)) == 1, 40, "the plain task")
    assert list(echoes(database).values()) == [{"args": [1], "kwargs": {"two": 2}}]


def test_a_forged_copy_never_suppresses_the_real_one(
    writer: Writer, programs: Programs, database: str, broker_url: str
) -> None:
    programs.environment |= {"OUTBOX_DATABASE_URL": database, "OUTBOX_BROKER_URL": broker_url}
    programs.relay(database, broker_url, "--name", "relay-1")
    key = writer.add(Message("ledger.echo", kwargs={"amount": 1}))
    with redis.Redis.from_url(broker_url) as broker:
        (real,) = wait_until(lambda: broker.lrange("celery", 0, -1), 10, "the message at the broker")
        forged = json.loads(real)
        forged["body"] = b64encode(b'[[], {"amount": 1000000}, {}]').decode()
        broker.rpush("celery", json.dumps(forged))  # in front: the forged copy is taken first
    worker = programs.worker("tests.support.ledger_app", "--without-gossip", "--without-mingle")
    wait_until(lambda: echoes(database), 40, "the real one")
    assert echoes(database)[key]["kwargs"] == {"amount": 1}
    assert f"{key} arrived with other arguments" in worker.output()

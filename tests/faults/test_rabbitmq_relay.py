"""The relay, a worker and the ledger on RabbitMQ: everything committed takes effect exactly once."""

from collections.abc import Iterator

import pytest

from outbox import Message
from relay.embedded import Process, wait_until
from tests.support import ledger
from tests.support.processes import Programs, wait_for_line
from tests.support.rabbitmq import RabbitMQ
from tests.support.writers import Writer

ENVIRONMENT = {"OUTBOX_LEASE_TTL": "1", "LEDGER_RECEIPT_TIMEOUT": "2", "OUTBOX_BROKER_TIMEOUT": "1", "OUTBOX_HTTP": ""}


class Scene:
    """A relay, a worker and a writer between one database and one node."""

    def __init__(self, programs: Programs, database: str, broker_url: str) -> None:
        ledger.create(database)
        self.database = database
        self.programs = programs
        programs.environment |= {"OUTBOX_DATABASE_URL": database, "OUTBOX_BROKER_URL": broker_url, **ENVIRONMENT}
        self.writer = Writer(database)
        self.worker = self._worker()
        self.relay = programs.relay(database, broker_url, "--name", "relay-1")

    def _worker(self) -> Process:
        worker = self.programs.worker("tests.support.ledger_app", "--without-gossip", "--without-mingle")
        wait_for_line(worker, r"ready\.", deadline=30)
        return worker

    def wait_for_effects(self, more: int = 30) -> None:
        target = ledger.check(self.database).applied + more
        wait_until(lambda: ledger.check(self.database).applied >= target, 60, f"{more} more effects")


@pytest.fixture
def node() -> Iterator[RabbitMQ]:
    with RabbitMQ() as server:
        yield server


@pytest.fixture
def scene(programs: Programs, database: str, node: RabbitMQ) -> Iterator[Scene]:
    made = Scene(programs, database, node.url())
    yield made
    made.writer.close()


def kill_under_load(scene: Scene, node: RabbitMQ, rounds: int) -> None:
    with scene.writer.writing(every=0.05):
        for _ in range(rounds):
            scene.wait_for_effects()
            node.kill()
            node.start()
        scene.wait_for_effects()
    ledger.settle(scene.database, 90)
    assert scene.relay.alive


def test_exactly_once_effects_when_rabbitmq_is_killed(scene: Scene, node: RabbitMQ) -> None:
    kill_under_load(scene, node, 1)


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_exactly_once_effects_when_rabbitmq_is_killed_often(scene: Scene, node: RabbitMQ) -> None:
    kill_under_load(scene, node, 10)


def test_a_message_for_no_queue_is_parked_and_the_others_flow(programs: Programs, database: str, amqp_url: str) -> None:
    scene = Scene(programs, database, amqp_url)
    scene.writer.add(Message("ledger.apply", queue="nowhere"))
    scene.writer.write(20)
    wait_until(lambda: ledger.check(scene.database).applied >= 15, 30, "the effects of the others")
    wait_until(lambda: ledger.check(scene.database).stuck == 1, 30, "all but the parked one to end")
    status = scene.programs.outbox("status")
    assert status.wait(20) == 0
    assert "nowhere" in status.output()
    scene.writer.close()

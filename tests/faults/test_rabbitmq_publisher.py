"""RabbitMQ that dies, freezes, runs full or forgets a queue, seen from the publisher.

The rule that is checked: a message whose publication was reported is in the queue afterwards, whatever happened. Were a
message taken for accepted by the answer to another one, it would be missing.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from kombu import Connection, Queue

from relay.embedded import wait_until
from relay.publication import Copy, Refusal, Refused
from relay.publish import BrokerOutage
from relay.publish.amqp import AmqpPublisher
from relay.routing import DefaultQueue
from tests.support.copies import STAMP, copies
from tests.support.rabbitmq import RabbitMQ, drained, queue_lengths

TIMEOUT = 0.5
LARGEST = 200_000


@pytest.fixture(scope="module")
def node() -> Iterator[RabbitMQ]:
    """One node for all of these faults: it is restarted after each."""
    with RabbitMQ(settings={"max_message_size": str(LARGEST)}) as server:
        yield server


class Storm:
    """A publisher under load, and what it has claimed so far."""

    def __init__(self, node: RabbitMQ, timeout: float = TIMEOUT) -> None:
        self.url = node.url()
        self.publisher = AmqpPublisher(self.url, timeout, DefaultQueue("celery"))
        self.claimed: list[str] = []
        self.outages = 0
        self.declare()
        drained(self.url, "celery")

    def declare(self, queue: str = "celery") -> None:
        with Connection(self.url) as connection:
            Queue(queue)(connection.default_channel).queue_declare()

    def publish(self, batch: list[Copy]) -> list[Refused]:
        refused = list(self.publisher.publish(batch, STAMP))
        gone = {each.index for each in refused}
        self.claimed += [copy.row.id for index, copy in enumerate(batch) if index not in gone]
        return refused

    def attempt(self, batch: list[Copy]) -> bool:
        try:
            self.publish(batch)
        except BrokerOutage:
            self.outages += 1
            return False
        return True

    @contextmanager
    def publishing(self) -> Iterator[None]:
        stop = threading.Event()

        def work() -> None:
            while not stop.is_set():
                if not self.attempt(copies(40)):
                    stop.wait(0.02)

        thread = threading.Thread(target=work, name="storm", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def wait_for_claims(self, more: int = 100) -> None:
        target = len(self.claimed) + more
        wait_until(lambda: len(self.claimed) >= target, 60, f"{more} more publications")

    def settle(self) -> None:
        wait_until(lambda: self.attempt(copies(1)), 60, "a publication")
        self.publisher.close()
        arrived = {message.properties["correlation_id"] for message in drained(self.url, "celery")}
        missing = [each for each in self.claimed if each not in arrived]
        assert not missing, f"{len(missing)} of {len(self.claimed)} were reported as published and are not there"


def kill_and_restart(node: RabbitMQ, rounds: int) -> None:
    storm = Storm(node)
    with storm.publishing():
        for _ in range(rounds):
            storm.wait_for_claims()
            node.kill()
            node.start()
        storm.wait_for_claims()
    storm.settle()
    assert storm.outages


def test_no_loss_when_rabbitmq_is_killed(node: RabbitMQ) -> None:
    kill_and_restart(node, 1)


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_no_loss_when_rabbitmq_is_killed_often(node: RabbitMQ) -> None:
    kill_and_restart(node, 10)


def freeze_and_thaw(node: RabbitMQ, rounds: int, *, under_load: bool) -> None:
    """The late answers to the first batch arrive while the second one is under way."""
    storm = Storm(node)
    for _ in range(rounds):
        storm.publish(copies(20))
        node.freeze()
        try:
            assert not storm.attempt(copies(20)), "a frozen broker confirms nothing"
        finally:
            node.thaw()
        # These never arrive: whoever takes a late answer for theirs claims what settle() does not find.
        wait_until(lambda: storm.attempt(copies(3, queue="nowhere")), 30, "an answer after the thaw")
        wait_until(lambda: storm.attempt(copies(5)), 30, "a publication after the thaw")
    if under_load:
        with storm.publishing():
            for _ in range(rounds):
                storm.wait_for_claims()
                node.freeze()
                before = storm.outages
                wait_until(lambda before=before: storm.outages > before, 10, "the outage")  # type: ignore[misc]
                node.thaw()
    storm.settle()


def test_nothing_is_accepted_by_a_late_answer_to_another_message(node: RabbitMQ) -> None:
    freeze_and_thaw(node, 3, under_load=False)


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_nothing_is_accepted_by_many_late_answers_to_other_messages(node: RabbitMQ) -> None:
    freeze_and_thaw(node, 50, under_load=True)


def freeze_and_kill(node: RabbitMQ, rounds: int) -> None:
    storm = Storm(node)
    for _ in range(rounds):
        # The first try after a restart meets the connection to the node that was killed.
        wait_until(lambda: storm.attempt(copies(20)), 30, "a publication")
        node.freeze()
        assert not storm.attempt(copies(20))
        node.thaw()
        storm.attempt(copies(20))
        node.kill()  # what was claimed just now must be on the disk already
        node.start()
    storm.settle()


def test_no_loss_when_a_frozen_rabbitmq_is_killed(node: RabbitMQ) -> None:
    freeze_and_kill(node, 1)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_no_loss_when_a_frozen_rabbitmq_is_killed_often(node: RabbitMQ) -> None:
    freeze_and_kill(node, 20)


def test_a_deleted_queue_is_refused_by_name_and_the_others_flow(node: RabbitMQ) -> None:
    storm = Storm(node, timeout=5.0)
    storm.declare("doomed")
    assert not storm.publish([*copies(3, queue="doomed"), *copies(3)])
    node.control("delete_queue", "doomed")
    refused = storm.publish([*copies(3, queue="doomed"), *copies(3)])
    assert [(each.index, each.refusal) for each in refused] == [(index, Refusal.QUEUE) for index in range(3)]
    assert "no such queue 'doomed'" in refused[0].why
    storm.declare("doomed")
    assert not storm.publish(copies(3, queue="doomed"))
    assert queue_lengths(storm.url, "doomed", "celery") == [3, 6]
    storm.publisher.close()


def test_a_memory_alarm_is_waited_for_no_longer_than_the_timeout_and_ends_soon(node: RabbitMQ) -> None:
    storm = Storm(node)
    storm.publish(copies(20))
    node.control("set_vm_memory_high_watermark", "0.0000001")
    try:
        wait_until(lambda: not storm.attempt(copies(20)), 30, "the alarm")
        started = time.monotonic()
        with pytest.raises(BrokerOutage, match="memory or disk alarm"):
            storm.publish(copies(200))
        assert time.monotonic() - started < TIMEOUT + 5
    finally:
        node.control("set_vm_memory_high_watermark", "0.4")
    wait_until(lambda: storm.attempt(copies(20)), 5, "the end of the alarm")
    storm.settle()


def test_a_message_that_is_too_large_is_refused_alone(node: RabbitMQ) -> None:
    storm = Storm(node, timeout=5.0)
    large = copies(2, size=LARGEST + 1)
    batch = [*copies(30), large[0], *copies(30), large[1], *copies(30)]
    refused = storm.publish(batch)
    assert [(each.index, each.refusal) for each in refused] == [(30, Refusal.MESSAGE), (61, Refusal.MESSAGE)]
    assert "larger than" in refused[0].why
    assert not storm.publish(copies(30))
    assert len(storm.claimed) == 120
    storm.settle()

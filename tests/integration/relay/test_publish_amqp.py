"""The publisher for RabbitMQ against a real one: what is accepted, what is refused and for whom, what is an outage."""

import json
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from celery import Celery
from kombu import Connection, Queue

from outbox.message import Message
from relay.application import Application
from relay.embedded import free_port
from relay.publication import Refusal
from relay.publish import BrokerOutage
from relay.publish.amqp import AmqpPublisher
from relay.routing import AllowedTasks, DefaultQueue
from tests.support.copies import STAMP, copies, copy_of
from tests.support.rabbitmq import RabbitMQ, drained, queue_lengths


def publisher(url: str, timeout: float = 5.0, **options: object) -> AmqpPublisher:
    return AmqpPublisher(url, timeout, DefaultQueue("celery"), **options)  # type: ignore[arg-type]


@pytest.fixture
def celery_queue(amqp_url: str) -> Iterator[AmqpPublisher]:
    with Connection(amqp_url) as connection:
        Queue("celery")(connection.default_channel).queue_declare()
    made = publisher(amqp_url)
    yield made
    made.close()


def test_every_message_arrives_whole_and_in_order(amqp_url: str, celery_queue: AmqpPublisher) -> None:
    batch = [*copies(700), *copies(3, size=300_000), *copies(50)]
    assert list(celery_queue.publish(batch, STAMP)) == []
    assert list(celery_queue.publish(copies(1), STAMP)) == []
    arrived = drained(amqp_url, "celery")
    assert [message.properties["correlation_id"] for message in arrived[:-1]] == [copy.row.id for copy in batch]
    assert all(json.loads(message.body)[0] for message in arrived)
    assert {message.properties["delivery_mode"] for message in arrived} == {2}


def test_messages_without_a_queue_are_refused_and_the_others_arrive(amqp_url: str, celery_queue: AmqpPublisher) -> None:
    batch = [*copies(200), *copies(3, queue="nowhere", size=50_000), *copies(200)]
    refused = celery_queue.publish(batch, STAMP)
    assert [(each.index, each.refusal) for each in refused] == [(index, Refusal.QUEUE) for index in (200, 201, 202)]
    assert "no such queue 'nowhere'" in refused[0].why
    assert queue_lengths(amqp_url, "celery") == [400]
    assert list(celery_queue.publish(copies(5), STAMP)) == [], "the connection goes on"


def test_a_flood_of_returned_messages_does_not_stop_both_sides(celery_queue: AmqpPublisher) -> None:
    """They come back whole: 40 MB, far more than the buffers of the two sockets."""
    refused = celery_queue.publish([*copies(400, queue="nowhere", size=100_000), *copies(1)], STAMP)
    assert [each.index for each in refused] == list(range(400))


def test_a_full_queue_refuses_for_itself_only(amqp_url: str, celery_queue: AmqpPublisher) -> None:
    arguments = {"x-max-length": 2, "x-overflow": "reject-publish"}
    with Connection(amqp_url) as connection:
        Queue("small", queue_arguments=arguments)(connection.default_channel).queue_declare()
    refused = celery_queue.publish([*copies(5, queue="small"), *copies(5)], STAMP)
    assert refused
    assert {each.refusal for each in refused} == {Refusal.QUEUE}
    assert all(each.index < 5 and "'small' is full" in each.why for each in refused)
    assert queue_lengths(amqp_url, "celery", "small") == [5, 5 - len(refused)]


def test_a_task_that_is_not_allowed_is_a_dead_letter(amqp_url: str, celery_queue: AmqpPublisher) -> None:
    strict = AmqpPublisher(amqp_url, 5.0, AllowedTasks(DefaultQueue("celery"), ("a.*",)))
    batch = [*copies(1), copy_of(Message("b.task"))]
    celery_map = batch[0]._replace(row=batch[0].row._replace(task="celery.map"))
    refused = strict.publish([*batch, celery_map], STAMP)
    assert [(each.index, each.refusal) for each in refused] == [(1, Refusal.MESSAGE), (2, Refusal.MESSAGE)]
    strict.close()
    assert queue_lengths(amqp_url, "celery") == [1]


def test_an_application_declares_its_missing_queues(amqp_url: str) -> None:
    app = Celery("shop", broker=amqp_url, set_as_current=False)
    app.conf.update(
        task_default_queue="orders",
        task_queues=[Queue("orders", queue_arguments={"x-max-priority": 9}), Queue("safe", durable=True)],
        task_create_missing_queue_type="quorum",
        task_routes={"mail.*": "mail"},
    )
    application = Application(app)
    made = AmqpPublisher(amqp_url, 5.0, application, declare=application.declare)
    low, high = copy_of(Message("a.task", priority=1)), copy_of(Message("a.task", priority=8))
    batch = [low, high, copy_of(Message("mail.send")), copy_of(Message("a.task", queue="other"))]
    assert list(made.publish(batch, STAMP)) == []
    made.close()
    assert [message.properties["correlation_id"] for message in drained(amqp_url, "orders")] == [
        high.row.id,
        low.row.id,
    ]
    with Connection(amqp_url) as connection:
        for name, arguments in (("mail", {"x-queue-type": "quorum"}), ("other", {"x-queue-type": "quorum"})):
            # Declaring it anew with the same arguments succeeds only if they are the same.
            Queue(name, queue_arguments=arguments)(connection.default_channel).queue_declare()
    assert queue_lengths(amqp_url, "mail", "other", "safe", missing_ok=True) == [1, 1, None]


def test_a_user_without_the_right_is_refused_for_the_queue(rabbitmq: RabbitMQ, amqp_url: str) -> None:
    """RabbitMQ closes the channel, without saying which message it was."""
    vhost = urlsplit(amqp_url).path[1:]
    rabbitmq.control("add_user", vhost, "pass-word")
    rabbitmq.control("set_permissions", "-p", vhost, vhost, ".*", "^$", ".*")
    with Connection(amqp_url) as connection:
        Queue("celery")(connection.default_channel).queue_declare()
    made = publisher(amqp_url.replace("guest:guest", f"{vhost}:pass-word"))
    refused = made.publish(copies(3), STAMP)
    made.close()
    assert [(each.index, each.refusal) for each in refused] == [(index, Refusal.QUEUE) for index in range(3)]
    assert "ACCESS_REFUSED" in refused[0].why
    assert "pass-word" not in refused[0].why


def test_wrong_credentials_vhost_or_port_are_outages_without_a_password(rabbitmq: RabbitMQ) -> None:
    right = rabbitmq.url()
    for url, said in (
        (right.replace("guest:guest", "guest:pass-word"), "ACCESS_REFUSED"),
        (rabbitmq.url("no-such-vhost"), "no-such-vhost"),
        (f"amqp://guest:pass-word@127.0.0.1:{free_port()}//", "refused"),
    ):
        made = publisher(url)
        for attempt in (made.ping, lambda made=made: made.publish(copies(1), STAMP)):
            with pytest.raises(BrokerOutage, match=said) as raised:
                attempt()
            assert "pass-word" not in str(raised.value)
            assert "\n" not in str(raised.value)
        made.close()


def test_the_next_host_of_the_list_is_tried(amqp_url: str, celery_queue: AmqpPublisher) -> None:
    made = publisher(f"amqp://guest:guest@127.0.0.1:{free_port()}//;{amqp_url}")
    made.ping()
    assert list(made.publish(copies(2), STAMP)) == []
    made.close()
    assert queue_lengths(amqp_url, "celery") == [2]


def test_an_idle_connection_answers_heartbeats(amqp_url: str, celery_queue: AmqpPublisher) -> None:
    celery_queue.ping()
    session = celery_queue._session
    assert session is not None
    session.beat()
    assert celery_queue._session is session
    assert list(celery_queue.publish(copies(1), STAMP)) == []


def test_headers_larger_than_a_frame_are_refused_alone(amqp_url: str, celery_queue: AmqpPublisher) -> None:
    huge = copies(1)[0]
    huge = huge._replace(row=huge.row._replace(headers=json.dumps({"a": "x" * 200_000})))
    refused = celery_queue.publish([*copies(2), huge, *copies(2)], STAMP)
    assert [(each.index, each.refusal) for each in refused] == [(2, Refusal.MESSAGE)]
    assert queue_lengths(amqp_url, "celery") == [4]

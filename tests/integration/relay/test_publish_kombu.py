"""The general publisher against real brokers: what kombu puts on the wire is what the fast publishers put there."""

import base64
import json
from typing import Any

import pytest
import redis
from kombu import Connection, Queue

from outbox.message import Message
from relay.embedded import Valkey, free_port
from relay.publication import Refusal
from relay.publish import BrokerOutage, Publisher
from relay.publish.choice import make_publisher
from relay.publish.kombu import KombuPublisher
from relay.routing import AllowedTasks, DefaultQueue
from relay.settings import RelaySettings
from tests.support.copies import STAMP, copies, copy_of
from tests.support.rabbitmq import drained, queue_lengths

MESSAGES = [
    Message("a.task", (1, "é"), {"b": None}, headers={"x-y": "z"}),
    *(Message("a.task", priority=priority, queue="mail") for priority in range(10)),
]


def made(url: str, transport: str, *, i_know: bool = False) -> Publisher:
    settings = RelaySettings(database_url="postgresql://h/d", broker_url=url, transport=transport, i_know=i_know)
    publisher, _ = make_publisher(settings)
    return publisher


def lists(url: str) -> dict[bytes, list[Any]]:
    """Every list, with what kombu makes up by itself taken out."""
    with redis.Redis.from_url(url) as client:
        found: dict[bytes, list[Any]] = {
            key: [json.loads(each) for each in client.lrange(key, 0, -1)] for key in sorted(client.keys())
        }
        client.flushdb()
    for messages in found.values():
        for message in messages:
            del message["properties"]["delivery_tag"]
            message["body"] = json.loads(base64.b64decode(message["body"]))
    return found


def test_on_redis_it_writes_what_the_fast_one_writes(broker_url: str) -> None:
    batch = [copy_of(message) for message in MESSAGES]
    written = []
    for transport in ("redis", "kombu"):
        publisher = made(broker_url, transport)
        publisher.ping()
        assert list(publisher.publish(batch, STAMP)) == []
        publisher.close()
        written.append(lists(broker_url))
    assert written[0] == written[1]
    assert sum(map(len, written[0].values())) == len(MESSAGES)


def test_on_rabbitmq_it_writes_what_the_fast_one_writes(amqp_url: str) -> None:
    with Connection(amqp_url) as connection:
        for queue in ("celery", "mail"):
            Queue(queue)(connection.default_channel).queue_declare()
    batch = [copy_of(message) for message in MESSAGES]
    written = []
    for transport in ("amqp", "kombu"):
        publisher = made(amqp_url, transport)
        publisher.ping()
        assert list(publisher.publish(batch, STAMP)) == []
        publisher.close()
        arrived = [*drained(amqp_url, "celery"), *drained(amqp_url, "mail")]
        written.append([(message.properties, message.body) for message in arrived])
    assert written[0] == written[1]


def test_on_rabbitmq_one_without_a_queue_is_refused_alone(amqp_url: str) -> None:
    with Connection(amqp_url) as connection:
        Queue("celery")(connection.default_channel).queue_declare()
    publisher = made(amqp_url, "kombu")
    refused = publisher.publish([*copies(2), *copies(1, queue="nowhere"), *copies(2)], STAMP)
    publisher.close()
    assert [(each.index, each.refusal) for each in refused] == [(2, Refusal.QUEUE)]
    assert "no such queue 'nowhere'" in refused[0].why
    assert queue_lengths(amqp_url, "celery") == [4]


def test_a_task_that_is_not_allowed_is_refused_alone(broker_url: str) -> None:
    publisher = KombuPublisher(broker_url, 2.0, AllowedTasks(DefaultQueue("celery"), ("a.*",)))
    refused = publisher.publish([*copies(1), copy_of(Message("b.task")), *copies(1)], STAMP)
    publisher.close()
    assert [(each.index, each.refusal) for each in refused] == [(1, Refusal.MESSAGE)]
    assert len(lists(broker_url)[b"celery"]) == 2


def test_a_broker_that_is_away_is_an_outage_until_it_is_back(own_valkey: Valkey) -> None:
    publisher = made(own_valkey.url(), "kombu")
    assert list(publisher.publish(copies(5), STAMP)) == []
    own_valkey.kill()
    for _ in range(2):
        with pytest.raises(BrokerOutage):
            publisher.publish(copies(5), STAMP)
    own_valkey.start()
    assert list(publisher.publish(copies(5), STAMP)) == []
    publisher.close()
    assert len(lists(own_valkey.url())[b"celery"]) == 10


def test_nobody_at_the_port_is_an_outage_without_a_password() -> None:
    for scheme in ("redis", "amqp"):
        publisher = made(f"{scheme}://user:pass-word@127.0.0.1:{free_port()}/0", "kombu")
        with pytest.raises(BrokerOutage) as raised:
            publisher.ping()
        assert "pass-word" not in str(raised.value)
        publisher.close()


def test_a_broker_that_we_cannot_vouch_for_takes_messages_when_asked_to() -> None:
    publisher = made("memory://", "auto", i_know=True)
    assert list(publisher.publish(copies(3), STAMP)) == []
    with Connection("memory://") as connection:
        queue = connection.SimpleQueue("celery")
        assert [queue.get(timeout=1).headers["task"] for _ in range(3)] == ["a.task"] * 3
        queue.close()
    publisher.close()

"""Publishing to a real broker that answers, but not as a leader of its data, or not for every list."""

import pytest
import redis

from outbox.message import Message
from relay.embedded import Valkey, free_port
from relay.encode import Encoder
from relay.publication import Refusal
from relay.publish import BrokerOutage
from relay.publish.redis import RedisPublisher
from relay.routing import AllowedTasks, DefaultQueue
from tests.support.copies import STAMP, copies, copy_of

ROUTING = AllowedTasks(DefaultQueue("celery"), ("a.*",))


def publisher_to(url: str) -> RedisPublisher:
    return RedisPublisher(url, 2.0, Encoder(ROUTING.queue_for))


def test_a_demoted_server_is_an_outage_and_its_connection_is_given_up(own_valkey: Valkey) -> None:
    """After a failover the old connection leads to a read-only server for ever; a new one finds the new address."""
    publisher = publisher_to(own_valkey.url())
    publisher.publish(copies(1), STAMP)
    with redis.Redis.from_url(own_valkey.url()) as admin:
        (before,) = [each["id"] for each in admin.client_list() if each["cmd"] == "lpush"]
        admin.replicaof("127.0.0.1", str(free_port()))
        with pytest.raises(BrokerOutage, match="ReadOnlyError"):
            publisher.publish(copies(1), STAMP)
        admin.replicaof("NO", "ONE")
        publisher.publish(copies(1), STAMP)
        (after,) = [each["id"] for each in admin.client_list() if each["cmd"] == "lpush"]
        assert after != before
    publisher.close()


def test_messages_arrive_in_order_and_whole(broker_url: str) -> None:
    publisher = publisher_to(broker_url)
    batch = [copy_of(Message("a.b", (number, "x" * 4000), queue=f"queue-{number % 2}")) for number in range(1200)]
    assert publisher.publish(batch, STAMP) == []
    publisher.close()
    with redis.Redis.from_url(broker_url) as client:
        for queue in ("queue-0", "queue-1"):
            arrived = [each.decode() for each in reversed(client.lrange(queue, 0, -1))]
            ids = [copy.row.id for copy in batch if copy.row.queue == queue]
            assert [message_id in text for message_id, text in zip(ids, arrived, strict=True)] == [True] * len(ids)


def test_one_list_of_another_type_refuses_only_its_own_messages(broker_url: str) -> None:
    publisher = publisher_to(broker_url)
    with redis.Redis.from_url(broker_url) as client:
        client.set("taken", "by somebody else")
        batch = [copy_of(Message("a.b", queue="taken" if number % 3 == 1 else "free")) for number in range(9)]
        refused = publisher.publish(batch, STAMP)
        assert [(one.index, one.refusal) for one in refused] == [
            (1, Refusal.QUEUE),
            (4, Refusal.QUEUE),
            (7, Refusal.QUEUE),
        ]
        assert "WRONGTYPE" in refused[0].why
        assert client.llen("free") == 6
    publisher.close()


def test_a_list_that_may_not_be_written_refuses_only_its_own_messages(own_valkey: Valkey) -> None:
    with redis.Redis.from_url(own_valkey.url()) as admin:
        admin.acl_setuser("relay", enabled=True, passwords=["+secret"], keys=["free"], commands=["+@all"])
        publisher = publisher_to(own_valkey.url().replace("redis://", "redis://relay:secret@"))
        batch = [copy_of(Message("a.b", queue=queue)) for queue in ("free", "forbidden", "free")]
        refused = publisher.publish(batch, STAMP)
        assert [(one.index, one.refusal) for one in refused] == [(1, Refusal.QUEUE)]
        assert refused[0].why == "Redis refuses to push to 'forbidden': No permissions to access a key"
        assert admin.llen("free") == 2
    publisher.close()


def test_a_task_that_is_not_allowed_refuses_itself(broker_url: str) -> None:
    publisher = publisher_to(broker_url)
    refused = publisher.publish([copy_of(Message("a.b")), copy_of(Message("b.c")), copy_of(Message("a.c"))], STAMP)
    assert [(one.index, one.refusal) for one in refused] == [(1, Refusal.MESSAGE)]
    with redis.Redis.from_url(broker_url) as client:
        assert client.llen("celery") == 2
    publisher.close()


def test_memory_that_is_full_is_an_outage(own_valkey: Valkey) -> None:
    publisher = publisher_to(own_valkey.url())
    with redis.Redis.from_url(own_valkey.url()) as admin:
        admin.config_set("maxmemory", "1mb")
        with pytest.raises(BrokerOutage, match=r"OutOfMemory|OOM"):
            publisher.publish(copies(2000, size=2000), STAMP)
        admin.config_set("maxmemory", "0")
        assert publisher.publish(copies(1), STAMP) == []
    publisher.close()

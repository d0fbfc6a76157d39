"""Publishing to a real broker that answers, but not as a leader of its data."""

import pytest
import redis

from relay.embedded import Valkey, free_port
from relay.encode import Encoded
from relay.publish import BrokerOutage
from relay.publish.redis import RedisPublisher

MESSAGE = Encoded("celery", b"{}")


def test_a_demoted_server_is_an_outage_and_its_connection_is_given_up(own_valkey: Valkey) -> None:
    """After a failover the old connection leads to a read-only server for ever; a new one finds the new address."""
    publisher = RedisPublisher(own_valkey.url(), 2.0)
    publisher.publish([MESSAGE])
    with redis.Redis.from_url(own_valkey.url()) as admin:
        (before,) = [each["id"] for each in admin.client_list() if each["cmd"] == "lpush"]
        admin.replicaof("127.0.0.1", str(free_port()))
        with pytest.raises(BrokerOutage, match="ReadOnlyError"):
            publisher.publish([MESSAGE])
        admin.replicaof("NO", "ONE")
        publisher.publish([MESSAGE])
        (after,) = [each["id"] for each in admin.client_list() if each["cmd"] == "lpush"]
        assert after != before
    publisher.close()


def test_messages_arrive_in_order_and_whole(broker_url: str) -> None:
    publisher = RedisPublisher(broker_url, 2.0)
    batch = [Encoded(f"queue-{number % 2}", b"%d" % number + b"x" * 4000) for number in range(1200)]
    publisher.publish(batch)
    publisher.close()
    with redis.Redis.from_url(broker_url) as client:
        for number in (0, 1):
            arrived = list(reversed(client.lrange(f"queue-{number}", 0, -1)))
            assert arrived == [message.payload for message in batch if message.destination == f"queue-{number}"]

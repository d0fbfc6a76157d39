"""How many messages wait at a broker: what all throughput is measured by, from outside of whoever publishes."""

from typing import Any, Protocol, cast

import kombu
import redis

from benchmarks.scene import QUEUE


class Depth(Protocol):
    """The queue `bench` of one broker."""

    def waiting(self) -> int:
        """Cheap enough to be asked two hundred times a second."""

    def clear(self) -> None: ...

    def close(self) -> None: ...


class RedisDepth:
    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url)

    def waiting(self) -> int:
        answer: Any = self._client.llen(QUEUE)
        return int(answer)

    def message_bytes(self) -> int:
        """The size of one message as it lies there."""
        answer: Any = self._client.lindex(QUEUE, 0)
        return len(answer)

    def clear(self) -> None:
        self._client.flushall()

    def close(self) -> None:
        self._client.close()


class RabbitDepth:
    """A durable classic queue, which is what Celery declares."""

    def __init__(self, url: str) -> None:
        self._connection = kombu.Connection(url)
        self._channel = cast(Any, self._connection.channel())
        self._channel.queue_declare(QUEUE, durable=True, auto_delete=False)

    def waiting(self) -> int:
        return int(self._channel.queue_declare(QUEUE, passive=True).message_count)

    def clear(self) -> None:
        self._channel.queue_purge(QUEUE)

    def close(self) -> None:
        self._connection.release()

"""What the installed Celery itself pushes to Redis, caught just before the socket."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from celery import Celery, Task
from kombu import Connection, Producer
from kombu.transport import redis, virtual


@dataclass(frozen=True)
class Pushed:
    """One LPUSH: the list and the JSON document."""

    key: str
    message: dict[str, Any]


class _Lists:
    """Stands in for the Redis client; kombu's own code decides what to push where."""

    def __init__(self) -> None:
        self.pushed: list[tuple[str, str]] = []

    def lpush(self, key: str, payload: str) -> None:
        self.pushed.append((key, payload))


class _Channel(redis.Channel):
    def __init__(self, connection: Any) -> None:
        # Not redis.Channel's: that one connects.
        virtual.Channel.__init__(self, connection)
        self._registered = False
        self._expires: dict[str, int] = {}
        self.lists = _Lists()

    @contextmanager
    def conn_or_acquire(self, client: object = None) -> Iterator[_Lists]:
        yield self.lists


class _Transport(redis.Transport):
    Channel = _Channel


def _nothing() -> None: ...


class CelerySender:
    """A Celery application with its default settings, publishing into memory."""

    def __init__(self) -> None:
        self.app = Celery("wire", broker="redis://127.0.0.1:1/0", set_as_current=False)
        self.channel: Any = Connection("redis://", transport=_Transport).channel()
        self._producer = Producer(self.channel)
        self.task: Task[Any, Any] = self.app.task(name="any.task")(_nothing)

    def send(
        self,
        message_id: str,
        task: str,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        *,
        queue: str,
        priority: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Pushed:
        message = self.app.amqp.as_task_v2(message_id, task, tuple(args), dict(kwargs))
        options: dict[str, Any] = {} if priority is None else {"priority": priority}
        self.app.amqp.send_task_message(
            self._producer, task, message, queue=queue, headers=headers, declare=[], retry=False, **options
        )
        key, payload = self.channel.lists.pushed.pop()
        return Pushed(key, json.loads(payload))

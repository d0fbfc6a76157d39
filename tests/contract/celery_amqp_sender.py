"""What the installed Celery itself hands to py-amqp, caught just before the frames."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import amqp
from celery import Celery
from kombu import Producer
from kombu.transport import pyamqp


@dataclass(frozen=True)
class Published:
    """One basic.publish: where to, and what py-amqp's reader makes of its bytes."""

    exchange: str
    queue: str
    properties: dict[str, Any]
    body: bytes


def read_back(properties: bytes) -> dict[str, Any]:
    """Properties as a worker's py-amqp reads them."""
    message: Any = amqp.Message()
    message._load_properties(60, properties, 0)
    return dict(message.properties)


class _Channel(pyamqp.Channel):
    """kombu's own, without a connection."""

    connection = None

    def __init__(self) -> None:
        self.sent: list[Published] = []

    def basic_publish(self, msg: Any, *given: Any, **options: Any) -> None:
        assert not given
        body = msg.body if isinstance(msg.body, bytes) else msg.body.encode()
        properties = read_back(msg._serialize_properties())
        self.sent.append(Published(options["exchange"], options["routing_key"], properties, body))


class CeleryAmqpSender:
    """A Celery application with its default settings, publishing into memory."""

    def __init__(self) -> None:
        self.app = Celery("wire", broker="amqp://127.0.0.1:1//", set_as_current=False)
        self._channel = _Channel()
        nothing: Any = None
        producer: Any = Producer(nothing)
        producer._channel = self._channel
        self._producer: Producer = producer

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
        expires: datetime | None = None,
    ) -> Published:
        message = self.app.amqp.as_task_v2(message_id, task, tuple(args), dict(kwargs), expires=expires)
        options: dict[str, Any] = {} if priority is None else {"priority": priority}
        self.app.amqp.send_task_message(
            self._producer, task, message, queue=queue, headers=headers, declare=[], retry=False, **options
        )
        return self._channel.sent.pop()

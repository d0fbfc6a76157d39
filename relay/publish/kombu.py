"""Publish through kombu: slower, and general. For whatever else Celery supports, and for Redis or RabbitMQ on demand.

kombu decides what goes on the wire; it is given the ready headers and body. On Redis a batch is one pipeline
(`Producer.batch`, kombu 5.7), elsewhere each message is a call. RabbitMQ confirms each; what other transports promise
is their own affair. After any error the connection is thrown away: py-amqp takes a late answer for the next one's.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import ceil
from typing import Any

import amqp
from amqp.exceptions import MessageNacked
from kombu import Connection, Producer
from kombu.exceptions import KombuError

from relay.broker_url import AMQP, REDIS, scheme_of
from relay.encode import redis_priority
from relay.protocol import EMBED, FIXED_HEADERS, facts, stamped, user_headers
from relay.publication import Copy, Refusal, Refused, Stamp
from relay.publish import BrokerOutage
from relay.routing import Routing, Undeliverable

_NO_ROUTE = 312
_FOR_THE_MESSAGE = (311, 406)


class KombuPublisher:
    """Part of a batch may go while the rest does not: one ordering key must not occur twice in it."""

    keeps_order = False

    def __init__(
        self,
        url: str,
        timeout: float,
        routing: Routing,
        *,
        ssl: bool | Mapping[str, Any] = False,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        # kombu knows Valkey only by the name of Redis.
        self._url = url.replace("valkeys://", "rediss://").replace("valkey://", "redis://")
        self._scheme = scheme_of(self._url)
        self._timeout = timeout
        self._routing = routing
        self._ssl = dict(ssl) if isinstance(ssl, Mapping) else ssl
        self._options = {**(options or {}), **self._limits()}
        self._demands: dict[str, Any] = {}
        if self._scheme in AMQP:
            self._demands = {"mandatory": True, "confirm_timeout": timeout}
        self._connection: Connection | None = None
        self._producer: Producer | None = None
        self._errors: tuple[type[BaseException], ...] = (KombuError, OSError)

    def publish(self, copies: Sequence[Copy], stamp: Stamp) -> Sequence[Refused]:
        shared = stamped(stamp)
        refused: list[Refused] = []
        try:
            # One after the other, each answered: there, and only there, one may be refused without the others.
            if self._scheme in AMQP:
                for index, copy in enumerate(copies):
                    refused += self._confirmed(index, copy, shared)
                return refused
            with self._batch(self._opened(), len(copies)):
                for index, copy in enumerate(copies):
                    refused += self._sent(index, copy, shared)
        except self._errors as error:
            raise self._outage(error) from error
        return refused

    def ping(self) -> None:
        try:
            self._opened()
        except self._errors as error:
            raise self._outage(error) from error

    def close(self) -> None:
        self._discard()

    def _confirmed(self, index: int, copy: Copy, shared: Mapping[str, object]) -> list[Refused]:
        try:
            return self._sent(index, copy, shared)
        except amqp.ChannelError as error:
            self._discard()
            code = getattr(error, "reply_code", None) or getattr(error, "code", 0)
            why = f"RabbitMQ refuses it: {' '.join(str(getattr(error, 'reply_text', None) or error).split())}"
            if code == _NO_ROUTE:
                why = f"no such queue {self._routing.queue_for(copy.row.task, copy.row.queue)!a}"
            return [Refused(index, Refusal.MESSAGE if code in _FOR_THE_MESSAGE else Refusal.QUEUE, why)]
        except MessageNacked:
            self._discard()
            return [Refused(index, Refusal.QUEUE, "its queue is full or unavailable")]

    def _sent(self, index: int, copy: Copy, shared: Mapping[str, object]) -> list[Refused]:
        row = copy.row
        try:
            queue = self._routing.queue_for(row.task, row.queue)
            headers = user_headers(row)
        except Undeliverable as error:
            return [Refused(index, error.refusal, error.why)]
        headers |= FIXED_HEADERS
        headers["task"] = row.task
        headers["id"] = headers["root_id"] = row.id
        headers["expires"] = row.expires_at.isoformat() if row.plain and row.expires_at else None
        headers["outbox"] = {**shared, **facts(copy)}
        self._opened().publish(
            (row.body + EMBED).decode(),
            exchange="",
            routing_key=queue,
            content_type="application/json",
            content_encoding="utf-8",
            headers=headers,
            delivery_mode=2,
            priority=self._priority(row.priority),
            correlation_id=row.id,
            reply_to="",
            retry=False,
            **self._demands,
        )
        return []

    def _priority(self, priority: int | None) -> int:
        """Ours is higher = sooner, as RabbitMQ's; kombu's lists on Redis are read from 0 on."""
        return redis_priority(priority) if self._scheme in REDIS else priority or 0

    def _opened(self) -> Producer:
        if self._producer is None:
            connection = Connection(
                self._url, ssl=self._ssl, connect_timeout=self._timeout, transport_options=dict(self._options)
            )
            self._connection = connection
            self._errors = (*connection.connection_errors, *connection.channel_errors, KombuError, OSError)
            connection.ensure_connection(max_retries=1, timeout=ceil(self._timeout))
            self._producer = Producer(connection.channel(), auto_declare=False)
        return self._producer

    def _batch(self, producer: Producer, size: int) -> AbstractContextManager[object]:
        batch = getattr(producer, "batch", None)  # kombu 5.7
        return nullcontext() if batch is None or not size else batch(max_size=size)

    def _limits(self) -> dict[str, object]:
        """kombu waits for ever unless told otherwise."""
        if self._scheme in REDIS:
            # Retrying by itself would turn batches off, and repeat messages behind our back.
            limits = {"socket_timeout": self._timeout, "socket_connect_timeout": self._timeout}
            return {**limits, "socket_keepalive": True, "retry_on_timeout": False}
        if self._scheme in AMQP:
            return {"confirm_publish": True, "read_timeout": self._timeout, "write_timeout": self._timeout}
        return {}

    def _outage(self, error: BaseException) -> BrokerOutage:
        self._discard()
        text = " ".join(str(error).split())
        return BrokerOutage(f"{type(error).__name__}: {text}" if text else type(error).__name__)

    def _discard(self) -> None:
        connection, self._connection, self._producer = self._connection, None, None
        if connection is not None:
            connection.collect(self._timeout)

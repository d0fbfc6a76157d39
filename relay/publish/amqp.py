"""Publish to RabbitMQ: persistent, mandatory, many under way at once, each confirmed under its own number.

What the broker's answers mean:
- acknowledged                        accepted (on disk, for a durable queue)
- returned, then acknowledged         no such queue: declared if the application knows it, else refused for its queue
- rejected                            the queue is full or unavailable: refused for its queue
- the channel closes                  because of one message. Which one is not said, so all that were not answered go
                                      again, one by one, each on trial; copies are absorbed by the consumers
- silence, a block, a lost connection an outage; the next batch begins with one message alone
After anything but the first three the connection is thrown away: a late answer must not meet another message.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import amqp
from kombu import Connection

from relay.confirms import Confirms, Disagreement
from relay.encode_amqp import AmqpEncoder, AmqpMessage
from relay.publication import Copy, Refusal, Refused, Stamp
from relay.publish import BrokerOutage
from relay.publish.amqp_session import HEARTBEAT_SECONDS, Session
from relay.routing import Routing, Undeliverable

# RabbitMQ closes the channel with these for the message itself: content too large, precondition (its size) failed.
_FOR_THE_MESSAGE = (311, 406)
_BLOCKED = "RabbitMQ accepts nothing: a memory or disk alarm is on"
_ERRORS = (amqp.AMQPError, OSError, Disagreement)

Declare = Callable[[str, Any], bool]
"""Declares the queue of this name on this channel; False if it is not ours to declare."""


class AmqpPublisher:
    """Several messages of one batch may go while one is refused: one ordering key must not occur twice in it."""

    keeps_order = False

    def __init__(
        self,
        url: str,
        timeout: float,
        routing: Routing,
        *,
        ssl: bool | Mapping[str, Any] = False,
        options: Mapping[str, Any] | None = None,
        declare: Declare | None = None,
    ) -> None:
        self._timeout = timeout
        self._encoder = AmqpEncoder(routing)
        self._hosts = [_connection(each, timeout, ssl, options or {}) for each in addresses(url)]
        self._declare = declare
        self._session: Session | None = None
        self._careful = False
        # Heartbeats are due while nothing is published, too.
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self._heart: threading.Thread | None = None

    def publish(self, copies: Sequence[Copy], stamp: Stamp) -> Sequence[Refused]:
        refused: list[Refused] = []
        batch: dict[int, AmqpMessage] = {}
        for index, copy in enumerate(copies):
            try:
                batch[index] = self._encoder.encode(copy, stamp)
            except Undeliverable as error:
                refused.append(Refused(index, error.refusal, error.why))
        with self._lock:
            try:
                refused += self._deliver(batch)
            except _ERRORS as error:
                raise self._outage(error) from error
            self._careful = False
        return refused

    def ping(self) -> None:
        with self._lock:
            try:
                self._opened().check()
            except _ERRORS as error:
                raise self._outage(error) from error

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            if self._session is not None:
                try:
                    self._session.close()
                except _ERRORS:
                    self._session.discard()
                self._session = None

    def _deliver(self, batch: Mapping[int, AmqpMessage], *, declared: bool = False) -> list[Refused]:
        refused: list[Refused] = []
        session = self._opened()
        places, contents = _framed(session, batch, refused)
        confirms = Confirms([batch[place].id for place in places])
        try:
            session.publish(contents, confirms, careful=self._careful)
        except amqp.ChannelError as error:
            self._discard()
            missing = [places[index] for index in confirms.unanswered()]
            if len(missing) == 1 and len(places) == 1:
                refused.append(_expelled(missing[0], error))
            else:
                for place in missing:
                    refused += self._deliver({place: batch[place]}, declared=declared)
        refused += [
            Refused(places[index], Refusal.QUEUE, f"queue {batch[places[index]].queue!a} is full or unavailable")
            for index in confirms.rejected
        ]
        returned = {places[index]: batch[places[index]] for index in sorted(confirms.returned - confirms.rejected)}
        return refused + (self._unroutable(returned, declared) if returned else [])

    def _unroutable(self, batch: Mapping[int, AmqpMessage], declared: bool) -> list[Refused]:
        """Declare what the application knows and send it once more; what comes back then is refused."""
        refused: list[Refused] = []
        again: dict[int, AmqpMessage] = {}
        outcomes = {} if declared else {queue: self._made(queue) for queue in {each.queue for each in batch.values()}}
        for place, message in batch.items():
            outcome = outcomes.get(message.queue, f"no such queue {message.queue!a}; start a worker that consumes it")
            if outcome is None:
                again[place] = message
            else:
                refused.append(Refused(place, Refusal.QUEUE, outcome))
        return refused + (self._deliver(again, declared=True) if again else [])

    def _made(self, queue: str) -> str | None:
        """None if the queue exists now, else why not."""
        try:
            if self._declare is not None and self._declare(queue, self._opened().channel):
                return None
        except amqp.ChannelError as error:
            self._discard()
            return f"queue {queue!a} cannot be declared: {_said(error)}"
        return f"no such queue {queue!a}; start a worker that consumes it, or give the relay the application (--app)"

    def _opened(self) -> Session:
        if self._session is None:
            self._session = self._connect()
            if self._heart is None:
                self._heart = threading.Thread(target=self._beat, name="amqp-heartbeat", daemon=True)
                self._heart.start()
        return self._session

    def _connect(self) -> Session:
        """The first host that answers; the others are asked next time first, if this one is lost."""
        last: Exception = OSError("no broker address")
        for _ in range(len(self._hosts)):
            try:
                return Session(self._hosts[0], self._timeout)
            except (amqp.AMQPError, OSError) as error:
                last = error
                self._hosts.append(self._hosts.pop(0))
        raise _Unopened(_said(last)) from last

    def _beat(self) -> None:
        while not self._closed.wait(HEARTBEAT_SECONDS / 3):
            with self._lock:
                try:
                    if self._session is not None:
                        self._session.beat()
                except _ERRORS:
                    self._discard()

    def _outage(self, error: Exception) -> BrokerOutage:
        blocked = self._session is not None and self._session.blocked
        self._careful = True
        self._discard()
        return BrokerOutage(_BLOCKED if blocked else _said(error))

    def _discard(self) -> None:
        if self._session is not None:
            self._session.discard()
            self._session = None


class _Unopened(OSError):
    """No host let us in."""


def addresses(url: str) -> list[str]:
    """Celery's list of hosts: `amqp://a//;amqp://b//`, or only the first with its scheme."""
    scheme = url.partition("://")[0]
    return [each if "://" in each else f"{scheme}://{each}" for each in url.split(";") if each]


def _connection(url: str, timeout: float, ssl: bool | Mapping[str, Any], options: Mapping[str, Any]) -> Connection:
    return Connection(
        url,
        ssl=dict(ssl) if isinstance(ssl, Mapping) else ssl,
        connect_timeout=timeout,
        heartbeat=HEARTBEAT_SECONDS,
        transport_options={
            **options,
            "confirm_publish": False,
            "read_timeout": timeout,
            "write_timeout": timeout,
            "client_properties": {"connection_name": "celery-outbox-relay"},
        },
    )


def _framed(
    session: Session, batch: Mapping[int, AmqpMessage], refused: list[Refused]
) -> tuple[list[int], list[bytes]]:
    places: list[int] = []
    contents: list[bytes] = []
    for place, message in batch.items():
        try:
            contents.append(session.content(message))
            places.append(place)
        except Undeliverable as error:
            refused.append(Refused(place, error.refusal, error.why))
    return places, contents


def _expelled(place: int, error: amqp.ChannelError) -> Refused:
    code = getattr(error, "reply_code", None) or getattr(error, "code", None)
    refusal = Refusal.MESSAGE if code in _FOR_THE_MESSAGE else Refusal.QUEUE
    return Refused(place, refusal, f"RabbitMQ refuses it: {_said(error)}")


def _said(error: Exception) -> str:
    """One line. The broker's texts name queues, users and vhosts, never a password or a payload."""
    text = getattr(error, "reply_text", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())

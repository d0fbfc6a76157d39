"""Celery task messages as AMQP 0-9-1 frames, without parsing a payload. Pure.

The same protocol 2 as on Redis, but the headers are an AMQP table and the body is bare. What depends only on
(task, queue, priority) is written once by py-amqp's own serialisation, what depends on the batch once a batch; the few
fields of one message are put between them. A contract test reads the result with py-amqp and compares it with what
the installed Celery sends.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from amqp.exceptions import FrameSyntaxError
from amqp.serialization import dumps

from relay.protocol import EMBED, FIXED_HEADERS, facts, stamped, user_headers
from relay.publication import Copy, Refusal, Stamp
from relay.routing import Routing, Undeliverable
from relay.window import Row

# content type, content encoding, headers, delivery mode, priority, correlation id, reply to.
_FLAGS = 0b1111_1110_0000_0000
_HEAD = struct.pack(">H", _FLAGS) + dumps("ss", ("application/json", "utf-8"))
_PERSISTENT = 2
_MOST_TEMPLATES = 10_000  # names come from rows, so their number is not ours to bound
_FRAME_END = b"\xce"
_PUBLISH = (60, 40)
_MANDATORY = True

_LENGTH = struct.Struct(">I")
_FRAME = struct.Struct(">BHI")
_CONTENT = struct.Struct(">BHIHHQ")


_FACTS = ("created_at", "hash", "ordering_key", "key_prev", "expires_at", "publication", "attempt")
_KEYS = {name: bytes((len(name),)) + name.encode("ascii") for name in _FACTS}


class AmqpMessage(NamedTuple):
    """A message ready to be cut into frames."""

    id: str
    queue: str
    properties: bytes
    body: bytes


@dataclass(frozen=True, slots=True)
class _Template:
    queue: str
    headers: bytes
    """The entries of the header table that never change."""
    tail: bytes
    """Delivery mode and priority, up to the correlation id."""


class AmqpEncoder:
    """Turns copies into messages; keeps one template a (task, queue, priority)."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing
        self._templates: dict[tuple[str, str | None, int | None], _Template] = {}
        self._stamp: Stamp | None = None
        self._stamped = b""

    def encode(self, copy: Copy, stamp: Stamp) -> AmqpMessage:
        """Raises Undeliverable for a message that can never be written, or that has no queue to go to."""
        row = copy.row
        if stamp is not self._stamp:
            self._stamp, self._stamped = stamp, _entries(stamped(stamp))
        template = self._templates.get((row.task, row.queue, row.priority)) or self._new_template(row)
        identity = row.id.encode("ascii")
        try:
            headers = b"".join(
                (
                    _entries(user_headers(row)) if row.headers != "{}" else b"",
                    template.headers,
                    _text(b"\x02id", identity),
                    _text(b"\x07root_id", identity),
                    _expires(row),
                    b"\x06outboxF",
                    _sized(self._stamped + _fact_entries(copy)),
                )
            )
        except (struct.error, FrameSyntaxError, RecursionError, UnicodeError):
            raise Undeliverable(Refusal.MESSAGE, "AMQP cannot carry one of its headers") from None
        properties = b"".join(
            (_HEAD, _sized(headers), template.tail, bytes((len(identity),)), identity, b"\x00")  # no reply_to
        )
        return AmqpMessage(row.id, template.queue, properties, row.body + EMBED)

    def _new_template(self, row: Row) -> _Template:
        queue = self._routing.queue_for(row.task, row.queue)
        if len(queue.encode()) > 255:
            raise Undeliverable(Refusal.QUEUE, f"the name of queue {queue[:40]!a}… is longer than AMQP allows")
        if len(self._templates) >= _MOST_TEMPLATES:
            self._templates.clear()
        template = _Template(
            queue,
            _entries({**FIXED_HEADERS, "task": row.task}),
            # RabbitMQ means by priority what we mean: higher is sooner.
            bytes((_PERSISTENT, row.priority or 0)),
        )
        self._templates[row.task, row.queue, row.priority] = template
        return template


def publish_frame(queue: str, channel: int) -> bytes:
    """The method that says where the message goes: the default exchange, whose routing keys are queues."""
    arguments = dumps("Bssbb", (0, "", queue, _MANDATORY, False))
    method = struct.pack(">HH", *_PUBLISH) + arguments
    return _FRAME.pack(1, channel, len(method)) + method + _FRAME_END


def content_frames(message: AmqpMessage, channel: int, frame_max: int) -> bytes:
    """Header and body. Raises Undeliverable when the headers do not fit, which would cost the whole connection."""
    properties, content = message.properties, message.body
    room = frame_max - 8
    if len(properties) + 12 > room:
        raise Undeliverable(Refusal.MESSAGE, f"its headers are larger than a frame of RabbitMQ ({room} bytes)")
    header = _CONTENT.pack(2, channel, len(properties) + 12, _PUBLISH[0], 0, len(content))
    parts = [header, properties, _FRAME_END]
    for start in range(0, len(content), room):
        piece = content[start : start + room]
        parts += (_FRAME.pack(3, channel, len(piece)), piece, _FRAME_END)
    return b"".join(parts)


def _fact_entries(copy: Copy) -> bytes:
    """As `_entries` writes them, but they are many times as many: nearly all are short texts."""
    parts = []
    for name, value in facts(copy).items():
        key = _KEYS[name]
        if isinstance(value, str):
            parts.append(_text(key, value.encode()))
        elif value is None:
            parts.append(key + b"V")
        else:
            parts.append(_entries({name: value}) if value else key + b"I\x00\x00\x00\x00")
    return b"".join(parts)


def _expires(row: Row) -> bytes:
    """Celery's own expiry, which the worker judges by its own clock: only where no consumer does better."""
    if not row.plain or row.expires_at is None:
        return b"\x07expiresV"
    return _text(b"\x07expires", row.expires_at.isoformat().encode("ascii"))


def _entries(fields: Mapping[str, object]) -> bytes:
    """A table without its length, so that tables can be put together."""
    return dumps("F", (fields,))[4:]


def _text(name: bytes, value: bytes) -> bytes:
    return b"%bS%b%b" % (name, _LENGTH.pack(len(value)), value)


def _sized(content: bytes) -> bytes:
    return _LENGTH.pack(len(content)) + content

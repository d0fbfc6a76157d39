"""Celery task messages as bytes, without parsing a payload. Pure.

The wire format is Celery's protocol 2 inside kombu's Redis envelope: JSON with a base64 body
`[args, kwargs, embed]`. PostgreSQL hands over the beginning of the body and the facts of the message as ready text;
`embed` is constant, so no row can smuggle callbacks, chains or chords. Everything that depends only on (task, queue,
priority) is rendered once, everything that depends on the batch once a batch; a message is one join of bytes.
A contract test compares the result with what the installed Celery sends.
"""

import json
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from relay.protocol import EMBED, FIXED_HEADERS, body_hash, stamped
from relay.publication import Copy, Stamp
from relay.window import Row

# kombu reads one list per step and no other: a message in the list of priority 5 would wait for ever.
_REDIS_STEPS = (0, 3, 6, 9)
_REDIS_SEPARATOR = "\x06\x16"
_MOST_TEMPLATES = 10_000  # names come from rows, so their number is not ours to bound


class Encoded(NamedTuple):
    """A message ready for the broker."""

    destination: str
    payload: bytes


class Encoder:
    """Turns rows into bytes; keeps one template a (task, queue, priority)."""

    def __init__(self, queue_for: Callable[[str, str | None], str]) -> None:
        self._queue_for = queue_for
        self._templates: dict[tuple[str, str | None, int | None], _Template] = {}

    def encode(self, copies: Sequence[Copy], stamp: Stamp) -> list[Encoded]:
        """Raises Undeliverable when one of them may not go."""
        shared = _shared(stamp)
        return [self._render(copy, shared) for copy in copies]

    def _render(self, copy: Copy, shared: bytes) -> Encoded:
        row, publication, attempt = copy[:3]
        key = (row.task, row.queue, row.priority)
        template = self._templates.get(key)
        if template is None:
            template = self._new_template(key)
        identity = row.id.encode()
        payload = b"".join(
            (
                b'{"body": "',
                b64encode(row.body + EMBED),
                template.before_headers,
                b"" if row.headers == "{}" else _user_headers(row.headers),
                template.task,
                identity,
                b'", "root_id": "',
                identity,
                _expires(row) if row.plain and row.expires_at else b'", "expires": null, "outbox": {',
                shared,
                b'"publication": 0, "attempt": 0, '
                if not publication and not attempt
                else _counts(publication, attempt),
                row.facts.encode(),
                b"" if row.hashed else _hash(row),
                b'}}, "properties": {"correlation_id": "',
                identity,
                b'", "delivery_tag": "',
                identity if not publication else b"%b.%d" % (identity, publication),
                template.after_tag,
            )
        )
        return Encoded(template.destination, payload)

    def _new_template(self, key: tuple[str, str | None, int | None]) -> "_Template":
        if len(self._templates) >= _MOST_TEMPLATES:
            self._templates.clear()
        task, queue, priority = key
        template = self._templates[key] = _template(task, self._queue_for(task, queue), priority)
        return template


def redis_priority(priority: int | None) -> int:
    """kombu's step for our priority: ours is higher = sooner, on Redis the lowest list is popped first."""
    if priority is None:
        return 0
    return max(step for step in _REDIS_STEPS if step <= 9 - priority)


@dataclass(frozen=True, slots=True)
class _Template:
    destination: str
    before_headers: bytes
    task: bytes
    after_tag: bytes


def _shared(stamp: Stamp) -> bytes:
    return json.dumps(stamped(stamp))[1:-1].encode("ascii") + b", "


def _user_headers(headers: str) -> bytes:
    """The inside of the headers object. They stand before ours: of two equal JSON keys the last one wins."""
    inside = headers.strip()[1:-1].strip()
    return inside.encode() + b", " if inside else b""


def _counts(publication: int, attempt: int) -> bytes:
    return b'"publication": %d, "attempt": %d, ' % (publication, attempt)


def _expires(row: Row) -> bytes:
    """A plain task has nobody but Celery's worker to judge its age."""
    expires = row.expires_at.isoformat() if row.expires_at else ""
    return b'", "expires": "%b", "outbox": {' % expires.encode("ascii")


def _hash(row: Row) -> bytes:
    return b', "hash": %b' % json.dumps(body_hash(row)).encode("ascii")


def _template(task: str, queue: str, priority: int | None) -> _Template:
    step = redis_priority(priority)
    fixed = {**FIXED_HEADERS, "task": task}
    properties = {
        "reply_to": "",
        "delivery_mode": 2,
        "delivery_info": {"exchange": "", "routing_key": queue},
        "priority": step,
        "body_encoding": "base64",
    }
    return _Template(
        destination=f"{queue}{_REDIS_SEPARATOR}{step}" if step else queue,
        before_headers=b'", "content-encoding": "utf-8", "content-type": "application/json", "headers": {',
        task=json.dumps(fixed)[1:-1].encode("ascii") + b', "id": "',
        after_tag=b'", ' + json.dumps(properties)[1:-1].encode("ascii") + b"}}",
    )

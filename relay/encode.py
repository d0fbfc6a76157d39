"""Celery task messages as bytes, without parsing a payload. Pure.

The wire format is Celery's protocol 2 inside kombu's Redis envelope: JSON with a base64 body
`[args, kwargs, embed]`. The JSON text of args and kwargs is copied as the writer stored it; `embed` is constant, so no
row can smuggle callbacks, chains or chords. Everything that depends only on (task, queue, priority) is rendered once.
A contract test compares the result with what the installed Celery sends.
"""

import json
from base64 import b64encode
from dataclasses import dataclass

from outbox import codec
from relay.publication import Stamp
from relay.window import Row

_EMBED = b', {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'
# kombu reads one list per step and no other: a message in the list of priority 5 would wait for ever.
_REDIS_STEPS = (0, 3, 6, 9)
_REDIS_SEPARATOR = "\x06\x16"


@dataclass(frozen=True, slots=True)
class Encoded:
    """A message ready for the broker."""

    destination: str
    payload: bytes


class Encoder:
    """Turns rows into bytes; keeps one template a (task, queue, priority)."""

    def __init__(self, default_queue: str) -> None:
        self._default_queue = default_queue
        self._templates: dict[tuple[str, str | None, int | None], _Template] = {}

    def encode(self, row: Row, stamp: Stamp, publication: int = 0, attempt: int = 0) -> Encoded:
        key = (row.task, row.queue, row.priority)
        template = self._templates.get(key)
        if template is None:
            template = self._templates[key] = _template(row.task, row.queue or self._default_queue, row.priority)
        return Encoded(template.destination, template.render(row, stamp, publication, attempt))


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

    def render(self, row: Row, stamp: Stamp, publication: int, attempt: int) -> bytes:
        body = b64encode(b"[%b, %b%b" % (row.args.encode(), row.kwargs.encode(), _EMBED))
        message_id = row.id.encode("ascii")
        tag = message_id if publication == 0 else b"%b.%d" % (message_id, publication)
        return b"".join(
            (
                b'{"body": "',
                body,
                self.before_headers,
                _user_headers(row.headers),
                self.task,
                message_id,
                b'", "root_id": "',
                message_id,
                b'", "outbox": ',
                _outbox_header(row, stamp, publication, attempt),
                b'}, "properties": {"correlation_id": "',
                message_id,
                b'", "delivery_tag": "',
                tag,
                self.after_tag,
            )
        )


def _user_headers(headers: str) -> bytes:
    """The inside of the headers object. They stand before ours: of two equal JSON keys the last one wins."""
    inside = headers.strip()[1:-1].strip()
    return inside.encode() + b", " if inside else b""


def _outbox_header(row: Row, stamp: Stamp, publication: int, attempt: int) -> bytes:
    fields: dict[str, object] = {
        "published_at": stamp.published_at.isoformat(),
        "created_at": row.created_at.isoformat(),
        "epoch": stamp.epoch,
        "window": stamp.window,
        "relay": stamp.relay,
        "publication": publication,
        "attempt": attempt,
        "hash": row.body_hash or _hash(row),
    }
    if row.ordering_key is not None:
        fields |= {"ordering_key": row.ordering_key, "key_prev": row.key_prev}
    if row.expires_at is not None:
        fields["expires_at"] = row.expires_at.isoformat()
    return json.dumps(fields).encode("ascii")


def _hash(row: Row) -> str | None:
    """For rows that did not come from our writer: the only payloads that the relay ever parses."""
    try:
        return codec.body_hash(row.task, json.loads(row.args), json.loads(row.kwargs)).hex()
    except (ValueError, RecursionError):
        return None  # no worker can decode it either


def _template(task: str, queue: str, priority: int | None) -> _Template:
    step = redis_priority(priority)
    fixed: dict[str, object] = {
        "lang": "py",
        "shadow": None,
        "eta": None,
        "expires": None,
        "group": None,
        "group_index": None,
        "retries": 0,
        "timelimit": [None, None],
        "parent_id": None,
        "argsrepr": "",
        "kwargsrepr": "",
        "origin": "outbox",
        "ignore_result": None,
        "replaced_task_nesting": 0,
        "stamped_headers": None,
        "stamps": {},
        "task": task,
    }
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

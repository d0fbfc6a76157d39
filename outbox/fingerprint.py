"""A fingerprint: a key made of the work itself, the same whoever computes it. Pure.

outbox.add(session, message, dedup_key=fingerprint("billing.charge", {"order_id": 7, "amount": 12.5}))
"""

import hashlib
import json
from collections.abc import Mapping, Sequence

from outbox import codec
from outbox.codec import shown
from outbox.errors import InvalidMessage


class Fingerprint(str):
    """A text that knows where it comes from: as a dedup_key it never conflicts."""

    __slots__ = ()


def fingerprint(task: str, payload: object, fields: Sequence[str] | None = None) -> Fingerprint:
    """64 hexadecimal digits for this task with this payload.

    The order of keys does not matter, nor whether a number was written 2 or 2.0; the task's name does. `fields` chooses
    the parts that make it the same work (`"order.id"` looks inside), so that times and request ids can stay out. For
    large data pass a checksum of it, as text, instead of the payload.
    """
    if not isinstance(task, str) or not task:
        raise InvalidMessage("fingerprint needs the task's name, so that two tasks with one payload stay apart")
    if fields is not None:
        payload = _chosen(payload, fields)
    # What is not JSON has no text that is the same everywhere.
    value, _ = codec.encoded(payload, "payload")
    return Fingerprint(_digest([task, value]))


def dedup_hash(key: str, task: str, args: str, kwargs: str) -> str:
    """What must be equal for a message to be the same request: the body, with numbers as in a fingerprint. A key that
    is a fingerprint says that itself: what was left out of it makes no difference."""
    if isinstance(key, Fingerprint):
        return _digest(key)
    return _digest([task, json.loads(args), json.loads(kwargs)])


def _digest(value: object) -> str:
    return hashlib.sha256(codec.canonical(value).encode("ascii")).hexdigest()


def _chosen(payload: object, fields: Sequence[str]) -> dict[str, object]:
    if not isinstance(fields, list | tuple) or not fields or not all(isinstance(name, str) for name in fields):
        raise InvalidMessage(
            'fields must be a list of names, like ["order_id"]; leave it out to take the whole payload'
        )
    return {name: _field(payload, name) for name in fields}


def _field(payload: object, name: str) -> object:
    value = payload
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            # A missing field must not mean "equal": two different payloads would get one fingerprint.
            raise InvalidMessage(f"payload: there is no field {shown(name)}; correct `fields` or send it always")
        value = value[part]
    return value

"""Celery signatures as messages, without importing Celery. Pure.

`charge.s(order_id=7)` is a dictionary with the keys task, args, kwargs, options and subtask_type. What it may ask for
beyond running one task (callbacks, ETAs, other exchanges) would be lost or would break a promise in the outbox, so it
is refused by name, with the alternative.
"""

import difflib
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeGuard, cast

from outbox.codec import shown
from outbox.errors import InvalidMessage
from outbox.message import Message, Options

_NEXT = "add the next message in the handler of this one: it is then written in the transaction of its effects"
_CANVAS = {
    "chain": _NEXT,
    "group": "add one message for each with add_many(); batch_progress() says how far they are",
    "chord": "add_many() the parts, and add the last message in the handler that finds batch_progress() finished",
    "chunks": "add one message a chunk with add_many()",
    "xmap": "add one message an item with add_many()",
    "xstarmap": "add one message an item with add_many()",
}
_BUILT_IN = {"celery.chunks": "chunks", "celery.map": "xmap", "celery.starmap": "xstarmap"}
_SERIALIZER = "payloads are JSON, so that PostgreSQL can keep and check them; leave it out"
_OPTIONS = {
    "eta": "use due_at=..., which waits in the database and survives the broker",
    "countdown": "use delay=..., which waits in the database and survives the broker",
    "expires": "use expires_at=... or expires_in=..., judged by the database clock",
    "link": _NEXT,
    "link_error": "a failed message becomes a dead letter with its reason; look at those instead",
    "chord": _CANVAS["chord"],
    "priority": "give priority=... to add(): 0 to 9, higher runs sooner, on every broker",
    "exchange": "only queues are possible; use queue=...",
    "routing_key": "only queues are possible; use queue=...",
    "task_id": "the message id is the task id, and is made when it is added",
    "serializer": _SERIALIZER,
    "compression": _SERIALIZER,
    "time_limit": "set it on the task: @consumer(app, inbox, time_limit=...)",
    "soft_time_limit": "set it on the task: @consumer(app, inbox, soft_time_limit=...)",
    "retry": "the relay repeats a failed publication for as long as it takes; leave it out",
    "retry_policy": "the relay repeats a failed publication for as long as it takes; leave it out",
}
_NAMES = tuple(Options.__annotations__)


def is_signature(value: object) -> TypeGuard[Mapping[str, object]]:
    """A Celery signature, or one that went through JSON."""
    return isinstance(value, Mapping) and {"task", "args", "kwargs", "options"} <= value.keys()


def read_message(value: object, options: Mapping[str, object]) -> Message:
    """What was given to `add`, with the keyword options, as one message."""
    if options:
        _check_names(options)
    if isinstance(value, Message):
        return replace(value, **cast("Options", options)) if options else value
    if is_signature(value):
        return _from_signature(value, options)
    if isinstance(value, str):
        return Message(value, **cast("Options", options))
    if callable(value) and hasattr(value, "delay") and not isinstance(value, type):
        raise InvalidMessage("add() got the task itself; say with what to run it: outbox.add(session, charge.s(...))")
    raise InvalidMessage(
        f'add() takes a Message, a task name or a signature, not {type(value).__name__}: write Message("task.name",'
        " kwargs={...})"
    )


def _from_signature(signature: Mapping[str, object], options: Mapping[str, object]) -> Message:
    kind = signature.get("subtask_type") or _BUILT_IN.get(str(signature["task"]))
    if kind:
        instead = _CANVAS.get(str(kind), _NEXT)
        raise InvalidMessage(f"a {shown(kind)} is several tasks and the broker's business between them: {instead}")
    own = signature["options"]
    own = dict(own) if isinstance(own, Mapping) else {}
    found = {name: own.pop(name) for name in ("queue", "headers") if own.get(name)}
    for name, value in own.items():
        if value is None or value in ((), [], {}) or (name == "serializer" and value == "json"):
            continue
        instead = _OPTIONS.get(str(name), "it has no meaning in the outbox; leave it out")
        raise InvalidMessage(f"the signature's option {shown(name)} cannot be kept: {instead}")
    queue = found.get("queue")
    if queue is not None and not isinstance(queue, str):
        found["queue"] = getattr(queue, "name", queue)
    payload = {"args": signature["args"] or (), "kwargs": signature["kwargs"] or {}}
    return Message(cast("str", signature["task"]), **cast("Options", payload | found | dict(options)))


def _check_names(options: Mapping[str, object]) -> None:
    for name in options:
        if name in _NAMES:
            continue
        if name in _OPTIONS:
            raise InvalidMessage(f"add() has no option {shown(name)}: {_OPTIONS[name]}")
        close = difflib.get_close_matches(name, _NAMES, 1)
        hint = f"did you mean {close[0]}?" if close else f"the options are {', '.join(_NAMES)}"
        raise InvalidMessage(f"add() has no option {shown(name)}: {hint}")

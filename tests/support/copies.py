"""Rows as the page query returns them, made without a database."""

import json
from datetime import UTC, datetime
from uuid import uuid4

from outbox import codec
from outbox.message import Message
from relay.publication import Copy, Stamp
from relay.window import Row

STAMP = Stamp(datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC), epoch=7, window=11, relay="relay-1")
CREATED = datetime(2030, 1, 1, tzinfo=UTC)


def copy_of(message: Message, *, message_id: str | None = None, plain: bool = False, publication: int = 0) -> Copy:
    """The message as the writer stores it, PostgreSQL renders it and the relay publishes it."""
    facts: dict[str, object] = {
        "created_at": CREATED.isoformat(),
        "hash": codec.body_hash(message.task, message.args, message.kwargs).hex(),
    }
    if message.ordering_key is not None:
        facts |= {"ordering_key": message.ordering_key, "key_prev": None}
    if message.expires_at is not None:
        facts["expires_at"] = message.expires_at.isoformat()
    args, kwargs = codec.encode(message.args, "args"), codec.encode(message.kwargs, "kwargs")
    row = Row(
        id=message_id or str(uuid4()),
        seq=1,
        task=message.task,
        queue=message.queue,
        priority=message.priority,
        body=f"[{args}, {kwargs}".encode(),
        headers=codec.encode(message.headers, "headers"),
        facts=json.dumps(facts, ensure_ascii=False)[1:-1],
        hashed=True,
        ordering_key=message.ordering_key,
        created_at=CREATED.timestamp(),
        expires_at=message.expires_at,
        plain=plain and message.expires_at is not None,
        ended=False,
    )
    return Copy(row, publication)


def copies(count: int, queue: str = "celery", size: int = 10) -> list[Copy]:
    return [copy_of(Message("a.task", (number, "x" * size), queue=queue)) for number in range(count)]

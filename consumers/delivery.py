"""A delivery: one arrival of a message at a consumer, as the broker's headers describe it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from outbox.errors import InvalidMessage


@dataclass(frozen=True, slots=True)
class Delivery:
    """What a handler is told besides its arguments."""

    id: UUID
    """The message id: the same on every copy, and the Celery task id."""
    consumer: str
    attempt: int = 0
    """Failed runs before this one."""
    publication: int = 0
    """Copies published before this one."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """The headers that the writer gave."""
    from_outbox: bool = False
    """False for a plain `.delay()` of the task: such a call has no row in the outbox."""
    body_hash: str | None = None
    published_at: datetime | None = None
    epoch: int | None = None
    relay: str | None = None

    @property
    def idempotency_key(self) -> str:
        """Pass it to services outside the database, so that they recognise a repeated call."""
        return str(self.id)


def read_delivery(task_id: object, consumer: str, headers: object) -> Delivery:
    """From the custom headers of a Celery request. They come from the broker: nothing in them can be relied on."""
    try:
        message_id = UUID(task_id if isinstance(task_id, str) else "")
    except ValueError:
        raise InvalidMessage(f"the task id of this call of {consumer} is not a UUID; do not set task_id") from None
    custom = dict(headers) if isinstance(headers, Mapping) else {}
    ours = custom.pop("outbox", None)
    texts = {name: value for name, value in custom.items() if isinstance(value, str)}
    if not isinstance(ours, Mapping):
        return Delivery(message_id, consumer, headers=texts)
    return Delivery(
        message_id,
        consumer,
        attempt=_whole(ours.get("attempt")) or 0,
        publication=_whole(ours.get("publication")) or 0,
        headers=texts,
        from_outbox=True,
        body_hash=_text(ours.get("hash")),
        published_at=_time(ours.get("published_at")),
        epoch=_whole(ours.get("epoch")),
        relay=_text(ours.get("relay")),
    )


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and len(value) <= 255 and value.isprintable() else None


def _time(value: object) -> datetime | None:
    try:
        told = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return told if told is not None and told.tzinfo is not None else None

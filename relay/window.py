"""Windows: how the log is read without losing a late commit. Pure; the SQL is in queries.py.

A window is what committed between two snapshots of the database, `prev` and `next`: rows whose transaction is not
visible in `prev` and is visible in `next`. Each committed transaction is in exactly one window, however late it
commits and whatever its ids are: that is why there is no cursor over ids here, which would skip late committers.
Inside a window the order is `seq`. A transaction that inserted after another one had committed is in a later
window, or in the same one with a higher seq; transaction ids promise nothing of the kind.

Position = (prev, next, last_seq): every row of the window up to last_seq has been accepted by the broker.

    closed ──open (durable)──▶ open ──publish, advance last_seq──▶ open … ──turn (durable)──▶ open
       ▲                                                            └──close──▶ closed

`open` and `turn` are committed durably before the first publish: PostgreSQL flushes its log in order, so every row
that is published has reached the disk too, even if its writer committed asynchronously. `advance` and `close` may be
lost in a crash; then some messages are published again, and their consumers have the receipts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

END_OF_LOG = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Window:
    """An open window and how far it has been published."""

    number: int
    prev: str
    next: str
    last_seq: int
    rows: int
    """Rows counted when it was opened or resumed, at most one more than a page holds."""


class Row(NamedTuple):
    """One message as the page query returns it: rendered by PostgreSQL as far as it goes, parsed by nobody."""

    id: str
    seq: int
    task: str
    queue: str | None
    priority: int | None
    body: bytes
    """`[args, kwargs` as the writer stored them: the beginning of a Celery body."""
    headers: str
    """The writer's headers, a JSON object."""
    facts: str
    """The inside of a JSON object: created_at, and if known hash, ordering_key and key_prev, expires_at."""
    hashed: bool
    """False for a row of a raw SQL writer: its hash is not among the facts."""
    ordering_key: str | None
    created_at: float
    """Seconds since 1970 by the database clock."""
    expires_at: datetime | None
    plain: bool
    """It expires, and its task has no registered consumer: Celery's own `expires` is all there is to honour it."""
    ended: bool
    """It has a receipt that says so: nothing is left to publish."""


class Batch(NamedTuple):
    """Rows that are read, published and advanced over together."""

    last_seq: int
    """Where to advance to once the broker has them all."""
    rows: list[Row]
    read_at: datetime
    """The database clock just before they were read: the latest time at which they may say they were published."""


@dataclass(frozen=True, slots=True)
class Page:
    """A stretch of a window: seq in (low, high], and the transaction ids that can occur in it."""

    low: int
    high: int
    first_xid: str
    last_xid: str
    xids: tuple[str, ...] = ()
    """Looked up one by one, outside the range."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """A row of the page plan: highest seq, the range of transaction ids (None: none), and those that are looked up."""

    high: int
    first_xid: str | None
    last_xid: str | None
    xids: Sequence[str] = ()


def only_page(window: Window) -> Page:
    """The whole of a small window. Its fresh transaction ids lie between the ends of its snapshots."""
    (_, first, _), (_, last, _) = window.prev.split(":"), window.next.split(":")
    return Page(window.last_seq, END_OF_LOG, first, last)


def pages(last_seq: int, plan: Sequence[Bounds]) -> Iterator[Page]:
    """Chain the plan into pages. No fresh row on a page: an empty xid range, only late rows are read."""
    low = last_seq
    for bounds in plan:
        yield Page(low, bounds.high, bounds.first_xid or "1", bounds.last_xid or "0", tuple(bounds.xids))
        low = bounds.high

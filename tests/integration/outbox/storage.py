"""What the tests of the writer share: an engine of this test's database and a look at what really committed."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import psycopg
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from relay.embedded import wait_until

CHARGE = "billing.charge"
Postgres = psycopg.Connection[tuple[Any, ...]]


class Base(DeclarativeBase):
    """The application's own tables."""


class Order(Base):
    """A business row that must stand and fall with the message."""

    __tablename__ = "shop_order"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


def engine_of(url: str, **options: Any) -> sa.Engine:
    return sa.create_engine(sa.make_url(url).set(drivername="postgresql+psycopg"), **options)


def committed(url: str) -> tuple[list[str], list[int]]:
    """Message ids in order of seq, and order numbers, as another session sees them."""
    with psycopg.connect(url) as connection:
        messages = connection.execute("SELECT id::text FROM outbox_message ORDER BY seq").fetchall()
        orders = connection.execute("SELECT id FROM shop_order ORDER BY id").fetchall()
    return [row[0] for row in messages], [row[0] for row in orders]


@dataclass
class Seen:
    """What SQLAlchemy did on behalf of the code under test."""

    statements: list[str] = field(default_factory=list)
    transactions: list[str] = field(default_factory=list)


@contextmanager
def watched(engine: sa.Engine) -> Iterator[Seen]:
    """Listen to every statement and every begin, commit, rollback and savepoint of the engine."""
    seen = Seen()

    def note_statement(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        seen.statements.append(statement)

    def noting(name: str) -> Any:
        return lambda *_: seen.transactions.append(name)

    listeners = {"before_cursor_execute": note_statement}
    for name in ("begin", "commit", "rollback", "savepoint", "release_savepoint", "rollback_savepoint"):
        listeners[name] = noting(name)
    for name, listener in listeners.items():
        sa.event.listen(engine, name, listener)
    try:
        yield seen
    finally:
        for name, listener in listeners.items():
            sa.event.remove(engine, name, listener)


def ask(url: str, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
    """One statement in a session and a transaction of its own, so the answer is what has committed."""
    with psycopg.connect(url) as connection:
        cursor = connection.execute(statement.encode(), parameters)
        return cursor.fetchall() if cursor.description else []


def messages(url: str) -> list[UUID]:
    """Ids of the committed messages in the order of seq."""
    return [row[0] for row in ask(url, "SELECT id FROM outbox_message ORDER BY seq")]


def keys(url: str, kind: str) -> dict[str, UUID]:
    """The committed keys of a kind and who holds them; for ordering keys, the last message of every task."""
    found = ask(
        url, "SELECT key, message_id FROM outbox_key WHERE kind = %s AND (kind <> 'ordering' OR scope <> '')", kind
    )
    return dict(found)


def register(url: str, task: str = CHARGE, inbox: str | None = None) -> None:
    """As a worker does when it starts; with `inbox` as the relay does for a worker of another database."""
    ask(url, "INSERT INTO inbox_consumer (task, receipt_timeout, inbox) VALUES (%s, '1 min', %s)", task, inbox)


def end(url: str, message_id: UUID, status: str = "applied", task: str = CHARGE) -> None:
    """Write the receipt."""
    ask(url, "INSERT INTO inbox_receipt (message_id, consumer, status) VALUES (%s, %s, %s)", message_id, task, status)


def blocked(url: str, connection: Postgres) -> bool:
    """Whether the session of this connection waits for a lock at this moment."""
    pid = connection.info.backend_pid
    return ask(url, "SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s", pid) == [("Lock",)]


def wait_blocked(url: str, *connections: Postgres) -> None:
    wait_until(lambda: all(blocked(url, each) for each in connections), 15, f"{len(connections)} sessions to wait")

"""What the tests of the writer share: an engine of this test's database and a look at what really committed."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

CHARGE = "billing.charge"


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

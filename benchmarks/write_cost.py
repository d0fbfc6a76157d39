"""What `Outbox.add` adds to a business transaction of three statements (a read, an insert, an update), and how many
messages `add_many` writes compared with a bare COPY of ready rows into the same table."""

import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import psycopg
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from benchmarks.figures import Figure, at_least, at_most, in_turn, ratio
from benchmarks.scene import Scene
from outbox import Message, Outbox, codec

TRANSACTIONS = 400
REPEATS = 15
BATCH = 20_000
TABLES = b"""
CREATE TABLE account (id int PRIMARY KEY, balance bigint NOT NULL);
INSERT INTO account SELECT i, 0 FROM generate_series(1, 100) i;
CREATE TABLE orders (id bigserial PRIMARY KEY, account int)"""
KWARGS = {"order_id": 7, "note": "x" * 200}

NAMES = ("write_cost_core", "write_cost_orm", "write_cost_psycopg", "add_many_of_copy")

Run = Callable[[Outbox | None], float]


class Base(DeclarativeBase):
    """The business tables, as an ORM user has them."""


class Account(Base):
    __tablename__ = "account"
    id: Mapped[int] = mapped_column(primary_key=True)
    balance: Mapped[int]


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    account: Mapped[int]


def figures(scene: Scene) -> dict[str, Figure]:
    with scene.connect() as connection:
        connection.execute(TABLES)
    engine = sa.create_engine(scene.database_url.replace("postgresql://", "postgresql+psycopg://", 1))
    with psycopg.connect(scene.database_url) as connection:
        found = {
            "write_cost_core": at_most(cost(lambda outbox: core_seconds(engine, outbox)), 0.15),
            "write_cost_orm": at_most(cost(lambda outbox: orm_seconds(engine, outbox)), 0.15),
            "write_cost_psycopg": at_most(cost(lambda outbox: psycopg_seconds(connection, outbox)), 0.06),
            "add_many_of_copy": at_least(add_many_of_copy(connection), 0.25),
        }
    engine.dispose()
    return found


def cost(run: Run) -> float:
    """Time with a message over time without, minus one."""
    outbox = Outbox()
    run(outbox)  # prepared statements, caches
    without, with_message = in_turn(REPEATS, lambda: run(None), lambda: run(outbox))
    return ratio(with_message, without) - 1


def core_seconds(engine: sa.Engine, outbox: Outbox | None) -> float:
    look = sa.text("SELECT balance FROM account WHERE id = :id")
    order = sa.text("INSERT INTO orders (account) VALUES (:id)")
    move = sa.text("UPDATE account SET balance = balance + 1 WHERE id = :id")
    with engine.connect() as connection:
        started = time.perf_counter()
        for number in range(TRANSACTIONS):
            with connection.begin():
                values = {"id": number % 100 + 1}
                connection.execute(look, values).scalar_one()
                connection.execute(order, values)
                connection.execute(move, values)
                if outbox is not None:
                    outbox.add(connection, Message("bench.task", kwargs=KWARGS))
        return time.perf_counter() - started


def orm_seconds(engine: sa.Engine, outbox: Outbox | None) -> float:
    started = time.perf_counter()
    for number in range(TRANSACTIONS):
        with Session(engine) as session, session.begin():
            account = session.get_one(Account, number % 100 + 1)
            session.add(Order(account=account.id))
            account.balance += 1
            session.flush()
            if outbox is not None:
                outbox.add(session, Message("bench.task", kwargs=KWARGS))
    return time.perf_counter() - started


def psycopg_seconds(connection: psycopg.Connection[tuple[Any, ...]], outbox: Outbox | None) -> float:
    """Read, then write in one flight with the COMMIT: what somebody does who uses pipelines at all."""
    started = time.perf_counter()
    for number in range(TRANSACTIONS):
        values = [number % 100 + 1]
        connection.execute("SELECT balance FROM account WHERE id = %s", values).fetchone()
        with connection.pipeline():
            connection.execute("INSERT INTO orders (account) VALUES (%s)", values)
            connection.execute("UPDATE account SET balance = balance + 1 WHERE id = %s", values)
            if outbox is not None:
                outbox.add(connection, Message("bench.task", kwargs=KWARGS))
            connection.commit()
    return time.perf_counter() - started


def add_many_of_copy(connection: psycopg.Connection[tuple[Any, ...]]) -> float:
    """Messages a second of add_many, checked, encoded and hashed, over rows a second of COPY, encoded beforehand."""
    outbox, batch = Outbox(), uuid4()
    text, digest = codec.encode(KWARGS, "kwargs"), codec.body_hash("bench.task", (), KWARGS)

    def copy() -> float:
        rows = [(uuid4(), "bench.task", text, digest, batch) for _ in range(BATCH)]
        started = time.perf_counter()
        with (
            connection.cursor() as cursor,
            cursor.copy("COPY outbox_message (id, task, kwargs, body_hash, batch_id) FROM STDIN") as target,
        ):
            for row in rows:
                target.write_row(row)
        return _ended(connection, started)

    def add_many() -> float:
        messages = [Message("bench.task", kwargs=KWARGS) for _ in range(BATCH)]
        started = time.perf_counter()
        outbox.add_many(connection, messages)
        return _ended(connection, started)

    copied, added = in_turn(7, copy, add_many)
    return ratio(copied, added)


def _ended(connection: psycopg.Connection[tuple[Any, ...]], started: float) -> float:
    connection.commit()
    taken = time.perf_counter() - started
    connection.execute("TRUNCATE outbox_message")
    connection.commit()
    return taken

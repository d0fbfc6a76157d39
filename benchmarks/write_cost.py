"""What `Outbox.add` adds to a business transaction of three statements."""

import time

import sqlalchemy as sa

from benchmarks.figures import Figure, at_most, in_turn, ratio
from benchmarks.scene import Scene
from outbox import Message, Outbox

TRANSACTIONS = 1_500
TABLES = b"""
CREATE TABLE account (id int PRIMARY KEY, balance bigint);
INSERT INTO account SELECT i, 0 FROM generate_series(1, 100) i;
CREATE TABLE orders (id bigserial PRIMARY KEY, account int)"""


def figures(scene: Scene) -> dict[str, Figure]:
    with scene.connect() as connection:
        connection.execute(TABLES)
    engine = sa.create_engine(scene.database_url.replace("postgresql://", "postgresql+psycopg://", 1))
    without, with_message = in_turn(5, lambda: seconds(engine, None), lambda: seconds(engine, Outbox()))
    engine.dispose()
    return {"write_cost_core": at_most(ratio(with_message, without) - 1, 0.15)}


def seconds(engine: sa.Engine, outbox: Outbox | None) -> float:
    message = Message("bench.task", kwargs={"order_id": 7, "note": "x" * 200})
    look = sa.text("SELECT balance FROM account WHERE id = :id")
    order = sa.text("INSERT INTO orders (account) VALUES (:id)")
    move = sa.text("UPDATE account SET balance = balance + 1 WHERE id = :id")
    started = time.perf_counter()
    with engine.connect() as connection:
        for number in range(TRANSACTIONS):
            with connection.begin():
                values = {"id": number % 100 + 1}
                connection.execute(look, values)
                connection.execute(order, values)
                connection.execute(move, values)
                if outbox is not None:
                    outbox.add(connection, message)
    return time.perf_counter() - started

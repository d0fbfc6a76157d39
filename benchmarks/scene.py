"""Servers and rows for the benchmarks."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from relay import migrate
from relay.embedded import Postgres, Valkey

PAYLOAD = json.dumps({"order_id": 7, "note": "x" * 500})

# What people write by hand: a status column, claimed with SKIP LOCKED, marked row by row.
NAIVE_TABLE = "CREATE TABLE naive (id uuid PRIMARY KEY, kwargs json NOT NULL, published_at timestamptz)"
NAIVE_INDEX = "CREATE INDEX naive_waiting ON naive (id) WHERE published_at IS NULL"


@dataclass(frozen=True)
class Scene:
    database_url: str
    broker_url: str

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(self.database_url, autocommit=True)

    def fill_outbox(self, count: int) -> None:
        self._fill(
            "INSERT INTO outbox_message (id, task, kwargs) SELECT gen_random_uuid(), 'bench.task', %s::json", count
        )

    def fill_naive(self, count: int) -> None:
        self._fill("INSERT INTO naive (id, kwargs) SELECT gen_random_uuid(), %s::json", count)

    def _fill(self, statement: str, count: int) -> None:
        with self.connect() as connection:
            connection.execute(f"{statement} FROM generate_series(1, %s)".encode(), [PAYLOAD, count])
            connection.execute("VACUUM ANALYZE")


@contextmanager
def scene() -> Iterator[Scene]:
    """Durable PostgreSQL, Valkey without an append-only file."""
    with Postgres() as postgres, Valkey(append_only=False) as valkey:
        made = Scene(postgres.url(), valkey.url())
        migrate.upgrade(made.database_url)
        with made.connect() as connection:
            connection.execute(NAIVE_TABLE)
            connection.execute(NAIVE_INDEX)
        yield made

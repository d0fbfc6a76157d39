"""Servers and rows for the benchmarks."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
import redis
from psycopg import sql

from outbox import codec
from relay import migrate
from relay.embedded import Postgres, Valkey

QUEUE = "bench"
TASK = "bench.task"
NOTE_BYTES = 540
"""Makes a payload of 567 bytes, the size all figures are about unless they say otherwise."""

# What people write by hand: a status column, claimed with SKIP LOCKED, marked batch by batch.
NAIVE_TABLE = b"""
CREATE TABLE naive (id uuid PRIMARY KEY, kwargs json NOT NULL, published_at timestamptz);
CREATE INDEX naive_waiting ON naive (id) WHERE published_at IS NULL"""

# Ids rise as a writer's UUIDv7 do; random ones would make the fill, not the relay, the thing that is slow.
_ID = "(lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1e6)::bigint), 16, '0') || lpad(to_hex(i), 16, '0'))::uuid"
_OUTBOX = f"INSERT INTO outbox_message (id, task, kwargs, body_hash) SELECT {_ID}, %(task)s, %(kwargs)s::json, %(hash)s"
_NAIVE = f"INSERT INTO naive (id, kwargs) SELECT {_ID}, %(kwargs)s::json"
_SERIES = " FROM generate_series(1, %(count)s) i"
# Everything written so far counts as published: what the position looks like when a relay has caught up.
_SKIP = b"""
UPDATE outbox_leader SET prev = pg_current_snapshot(), next = NULL, last_seq = base_seq,
    reconciled = pg_current_snapshot()"""

# One long checkpoint in the middle of a run of half a second would be all that is measured.
SETTINGS: dict[str, str | int | bool] = {"max_wal_size": "16GB", "checkpoint_timeout": "1h", "shared_buffers": "256MB"}


@dataclass(frozen=True)
class Scene:
    """One PostgreSQL with an outbox and a table of the naive relay, one Valkey."""

    postgres: Postgres
    valkey: Valkey
    folder: Path
    database: str = "postgres"

    @property
    def database_url(self) -> str:
        return self.postgres.url(self.database)

    @property
    def broker_url(self) -> str:
        return self.valkey.url()

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(self.database_url, autocommit=True)

    def fill_outbox(self, count: int, note_bytes: int = NOTE_BYTES) -> None:
        self._fill(_OUTBOX, "outbox_message", count, note_bytes)

    def fill_naive(self, count: int) -> None:
        self._fill(_NAIVE, "naive", count, NOTE_BYTES)

    def skip(self) -> None:
        """Move the position behind everything that is in the log."""
        with self.connect() as connection:
            connection.execute(_SKIP)

    def clear(self) -> None:
        """An empty log and an empty broker; no relay may run."""
        with self.connect() as connection:
            connection.execute("TRUNCATE outbox_message, naive, outbox_window")
        self.settle()

    def settle(self) -> None:
        """Everything published and consumed; the log keeps its rows."""
        self.skip()
        with redis.Redis.from_url(self.broker_url) as client:
            client.flushall()

    def beside(self, database: str) -> "Scene":
        """Another outbox in a database of its own, on the same servers."""
        with self.connect() as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(database)))
        made = replace(self, database=database)
        made.build()
        return made

    def build(self) -> None:
        migrate.upgrade(self.database_url)
        with self.connect() as connection:
            connection.execute(NAIVE_TABLE)

    def _fill(self, statement: str, table: str, count: int, note_bytes: int) -> None:
        kwargs = {"order_id": 7, "note": "x" * note_bytes}
        values = {
            "task": TASK,
            "kwargs": json.dumps(kwargs),
            "hash": codec.body_hash(TASK, (), kwargs),
            "count": count,
        }
        with self.connect() as connection:
            connection.execute((statement + _SERIES).encode(), values)
            connection.execute(f"VACUUM ANALYZE {table}".encode())
            connection.execute("CHECKPOINT")


@contextmanager
def scene() -> Iterator[Scene]:
    """Durable PostgreSQL, Valkey without an append-only file."""
    with (
        tempfile.TemporaryDirectory(prefix="outbox-bench-", ignore_cleanup_errors=True) as folder,
        Postgres(settings=SETTINGS) as postgres,
        Valkey(append_only=False) as valkey,
    ):
        made = Scene(postgres, valkey, Path(folder))
        made.build()
        yield made

"""A database that moves to another cluster, as pg_dump and psql move it."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from relay.database import connect, identify
from relay.embedded import Postgres, PostgresBinaries
from relay.queries import queries_for
from relay.read import Log
from relay.window import Window
from tests.support.leases import take_lease

QUERIES = queries_for("public")
Client = psycopg.Connection[tuple[Any, ...]]


def move(binaries: PostgresBinaries, source: str, target: str) -> None:
    """Everything of one database into another, empty one."""
    environment = binaries.environment()
    dump = subprocess.run(
        [binaries.folder / "pg_dump", "--dbname", source, "--no-owner"],
        env=environment,
        capture_output=True,
        check=True,
    )
    subprocess.run(
        [binaries.folder / "psql", "--quiet", "--no-psqlrc", "--set", "ON_ERROR_STOP=1", "--dbname", target],
        env=environment, input=dump.stdout, capture_output=True, check=True,
    )  # fmt: skip


def counter(url: str) -> int:
    """The cluster's next transaction id."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint").fetchone()
    assert row is not None
    return int(row[0])


def burn(url: str, upto: int) -> None:
    """Use up transaction ids until the cluster's counter is there."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            f"DO $$ BEGIN WHILE pg_snapshot_xmax(pg_current_snapshot())::text::bigint < {upto} LOOP"
            " PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$".encode()
        )


@contextmanager
def other_cluster(binaries: PostgresBinaries) -> Iterator[Postgres]:
    with Postgres(binaries, settings={"fsync": False}) as postgres:
        yield postgres


class Reader:
    """A relay without a broker: reads every window and remembers what came."""

    def __init__(self, url: str, page_size: int = 7) -> None:
        self.connection = connect(url, 3.0, "test")
        identify(self.connection, QUERIES)
        self.term = take_lease(url)
        self.log = Log(self.connection, QUERIES, self.term, page_size)
        self.ids: list[str] = []
        self.window: Window | None = self.log.resume()
        if self.window is not None:
            self._read(self.window)

    def look(self, stop: Callable[[], bool] = lambda: False) -> int:
        """One turn of the relay's loop; returns how many rows it had. Stops between pages if told."""
        finished, before = self.window, len(self.ids)
        self.window = self.log.turn(finished) if finished else self.log.open()
        if self.window is not None:
            self._read(self.window, stop)
        elif finished is not None:
            self.log.close(finished)
        return len(self.ids) - before

    def drain(self) -> None:
        while self.look():
            pass

    def close(self) -> None:
        self.connection.close()

    def _read(self, window: Window, stop: Callable[[], bool] = lambda: False) -> None:
        for last_seq, rows, *_ in self.log.batches(window):
            self.ids += [row.id for row in rows]
            self.log.advance(window, last_seq)
            if stop():
                return

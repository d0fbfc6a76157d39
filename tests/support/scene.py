"""A relay between one database and one broker, an application that writes, and nobody who consumes."""

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from relay.embedded import Process
from tests.support import arrivals, ledger
from tests.support.arrivals import Arrivals, Verdict
from tests.support.processes import Programs, wait_for_line
from tests.support.writers import Writer

QUICK = {"OUTBOX_LEASE_TTL": "1", "OUTBOX_BROKER_TIMEOUT": "1", "OUTBOX_HTTP": ""}
_LEADER = "SELECT epoch, expires_at > clock_timestamp(), window_no, last_seq, next IS NOT NULL FROM outbox_leader"


@dataclass(frozen=True)
class Position:
    epoch: int
    held: bool
    """Somebody holds the lease."""
    window: int
    last_seq: int
    open: bool


@dataclass
class Scene:
    """What a fault test looks at. `database` is where the test and its writer go, not necessarily the relay."""

    programs: Programs
    database: str
    broker_url: str
    env: Mapping[str, str]
    writer: Writer
    arrivals: Arrivals
    relays: list[Process] = field(default_factory=list)

    @property
    def relay(self) -> Process:
        return self.relays[0]

    def start_relay(self, database: str | None = None, broker_url: str | None = None) -> Process:
        """Also by way of a proxy."""
        name = f"relay-{len(self.relays) + 1}"
        urls = (database or self.database, broker_url or self.broker_url)
        self.relays.append(self.programs.relay(*urls, "--name", name, name=name, env=self.env))
        wait_for_line(self.relays[-1], "relay_started")
        return self.relays[-1]

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.database, autocommit=True) as connection:
            return connection.execute(statement.encode()).fetchall()

    def position(self) -> Position:
        return Position(*self.query(_LEADER)[0])

    def require_flow(self, within: float, what: str) -> None:
        """A message that commits now is at the broker in time; so the relay works again."""
        self.writer.engine.dispose()  # its connections may have gone with the server
        before = time.monotonic()
        self.writer.write(1, rollbacks=0)
        self.settle(within + 10)
        took = max(self.arrivals.seen.values()) - before
        assert took <= within, f"{what}: {took:.2f} s"

    def settle(self, deadline: float = 20.0) -> Verdict:
        """Every committed message is at the broker and nothing else; the relay was never restarted."""
        verdict = arrivals.settle(self.database, self.arrivals, deadline)
        for relay in self.relays:
            assert relay.alive, f"{relay.name} has ended"
        return verdict

    def require_nothing_given_up(self) -> None:
        """An outage costs no message anything."""
        assert self.query("SELECT count(*) FROM inbox_dead_letter") == [(0,)]
        assert self.query("SELECT count(*) FROM inbox_receipt") == [(0,)]


@contextmanager
def opened(
    programs: Programs, database: str, broker_url: str, env: Mapping[str, str] | None = None, queue: str = "celery"
) -> Iterator[Scene]:
    """The scene with its ledger, before any relay is started."""
    ledger.create(database)
    writer = Writer(database)
    with Arrivals(broker_url, queue) as seen:
        try:
            yield Scene(programs, database, broker_url, {**QUICK, **(env or {})}, writer, seen)
        finally:
            writer.close()


def cpu_seconds(process: Process) -> float:
    """Processor time of a program so far, all threads."""
    words = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / 100


def peak_megabytes(process: Process) -> float:
    """The most memory a program ever had at once."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024

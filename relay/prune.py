"""Prune: forget what is finished, in bounded steps beside the leader's work.

What goes (the conditions are one statement each, in queries/prune.py)
    a message        that was with the broker `keep` ago, has no plan, and whose outcome is `keep` old or owed to nobody
                     (its task has no consumer); never a dead one, never one whose consumer keeps its receipts elsewhere
    what is its own  keys that still name it, refusals, requests, claims, details and receipts: in the same commit
    a dedup key      with its message, or when its own window ends, whichever is later
    other receipts   `keep` after they were written, if there is no such message here
    notes, the audit, relays that are gone

`keep` is the retention, but never less than horizon + margin. A copy carries the time of the look that found its
message owed: not later than the position passed it, or no receipt was there. Both are `keep` ago when the message goes,
so every copy that a broker, a zombie or a resumed window might still bring is past the horizon and refused. That is
why a receipt may go in the same commit as its message.

States. Each part of the work is a walk: it remembers how far it came, and begins anew only after a rest. So rows that
have to stay (dead, without an outcome, scheduled for next year) cost one look a pass, and late commits are met by the
next pass.

Failures. Every step is one statement with short timeouts. It can be lost, repeated or run twice at once: what may go
may go whoever asks. A relay that lost its lease sees no row of its own and stops.
"""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import psycopg

from outbox.errors import ConfigurationError, OutboxError
from outbox.statements import quoted_schema
from relay.database import Database, connect, first_line, identify
from relay.events import DatabaseUnavailable, Observer, RowsPruned
from relay.lease import LeaseLost, Term
from relay.queries import Queries
from relay.queries.prune import PruneQueries, prune_queries_for
from relay.session import Session
from relay.settings import RelaySettings

BATCH = 2000
"""Rows looked at by one statement."""
BLOCKS = 16
"""Blocks of receipts read by one statement: fewer rows than a batch, however small they are."""
MARGIN = timedelta(hours=1)
"""Between the moment a copy is refused and the moment its receipt may go: for a run that began just before."""
_REST_SECONDS = 300.0
_SELDOM_SECONDS = 6 * 3600.0
_SHARE = 0.2
"""At most this part of the time is spent in statements."""
_TIMEOUTS = "SET lock_timeout = '200ms'; SET statement_timeout = '10s'; SET application_name = 'outbox prune'"

_WITH_MESSAGES = (
    "outbox_message", "outbox_key", "outbox_rejected",
    "inbox_retry", "inbox_claim", "inbox_dead_letter", "inbox_receipt",
)  # fmt: skip
"""Tables in the order in which the statements over messages count their rows."""


def kept_for(retention_days: float, horizon_days: float) -> timedelta:
    """How long a finished message stays."""
    return max(timedelta(days=retention_days), timedelta(days=horizon_days) + MARGIN)


def checked_age(age: timedelta, horizon_days: float) -> timedelta:
    """An age given by hand; refused when receipts would go while copies may still run."""
    least = timedelta(days=horizon_days) + MARGIN
    if age < least:
        raise ConfigurationError(
            f"--older-than is shorter than the horizon of {horizon_days:g} days and 1 hour: a copy that is still on its"
            " way would find no receipt and run again; give a longer time, or shorten OUTBOX_HORIZON_DAYS first"
        )
    return age


@dataclass(slots=True)
class _Walk:
    """One part of the work and how far it came."""

    statement: str
    tables: tuple[str, ...]
    first: tuple[str, ...]
    names: tuple[str, ...]
    rest: float = _REST_SECONDS
    position: tuple[str, ...] = ()
    not_before: float = 0.0

    def parameters(self) -> dict[str, str]:
        return dict(zip(self.names, self.position or self.first, strict=True))


def _walks() -> tuple[_Walk, ...]:
    return (
        _Walk("log", _WITH_MESSAGES, ("0", "0"), ("xid", "seq")),
        _Walk("windows", ("outbox_window",), (), ()),
        _Walk("held", _WITH_MESSAGES, ("0", "0"), ("xid", "seq")),
        _Walk("keys", ("outbox_key",), ("", "", ""), ("kind", "scope", "key")),
        _Walk("plans", ("outbox_due",), ("00000000-0000-0000-0000-000000000000",), ("id",)),
        _Walk("audit", ("outbox_audit",), (), (), _SELDOM_SECONDS),
        _Walk("relays", ("outbox_relay",), (), ()),
        _Walk("receipts", ("inbox_receipt",), ("0",), ("block",), _SELDOM_SECONDS),
    )


@dataclass(slots=True)
class Prune:
    """One term's retention. Not for several threads at once."""

    connection: Database
    queries: PruneQueries
    term: Term | None
    """None by hand: then the statements have no fence."""
    observer: Observer
    schema: str
    keep: timedelta
    clock: Callable[[], float] = time.monotonic
    batch: int = BATCH
    pruned: dict[str, int] = field(default_factory=dict)
    """Rows by table, since the beginning."""
    _walks: tuple[_Walk, ...] = field(default_factory=_walks)
    _everywhere: bool = True
    _met_old: bool = False

    def step(self) -> int:
        """One statement of the next walk that does not rest; returns how many rows went."""
        for walk in self._walks:
            if self.clock() >= walk.not_before:
                return self._advance(walk)
        return 0

    @property
    def resting(self) -> bool:
        return all(self.clock() < walk.not_before for walk in self._walks)

    def _advance(self, walk: _Walk) -> int:
        parameters: dict[str, Any] = walk.parameters() | {
            "batch": self.batch,
            "blocks": BLOCKS,
            "keep": self.keep,
            "everywhere": self._everywhere,
            "receipt_table": f"{quoted_schema(self.schema)}.inbox_receipt",
        }
        if self.term is not None:
            parameters |= {"epoch": self.term.epoch, "holder": self.term.holder}
        row = self.connection.execute(getattr(self.queries, walk.statement), parameters).fetchone()
        if row is None or row[0] == 0:
            raise LeaseLost
        _, looked_at, last, *counts = row
        if walk.statement == "log":
            self._met_old |= bool(counts[-1])
        self._move(walk, looked_at, last)
        for table, rows in zip(walk.tables, counts, strict=False):
            if rows:
                self.pruned[table] = self.pruned.get(table, 0) + rows
                self.observer(RowsPruned(table, rows))
        return int(sum(counts[: len(walk.tables)]))

    def _move(self, walk: _Walk, looked_at: int, last: list[str] | None) -> None:
        """On, or to the beginning after a rest. Only blocks of receipts are counted to the end, holes and all."""
        unfinished = looked_at > BLOCKS if walk.statement == "receipts" else looked_at >= self.batch
        if unfinished and last:
            walk.position = tuple(last)
            return
        walk.position = ()
        walk.not_before = self.clock() + walk.rest
        if walk.statement == "log":
            # Rows with ids of another cluster may lie anywhere in the index, until none is left.
            self._everywhere, self._met_old = self._met_old, False


class Pruner:
    """Runs the retention of one term on a thread and a connection of its own: the leader's loop never waits for it."""

    def __init__(
        self,
        settings: RelaySettings,
        queries: Queries,
        term: Term,
        observer: Observer,
        holds: Callable[[Term], bool],
    ) -> None:
        self._settings = settings
        self._queries = queries
        self._term = term
        self._observer = observer
        self._holds = holds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="outbox-prune", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after the statement that runs, if any; does not wait longer than that may take."""
        self._stop.set()

    def join(self, timeout: float) -> bool:
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        pause = 1.0  # a new leader has better things to do first
        while not self._stop.wait(pause) and self._holds(self._term):
            try:
                with connect(
                    self._settings.database_url, self._settings.lease_ttl, "prune", wanted=self._wanted
                ) as connection:
                    identify(connection, self._queries)
                    self._work(connection)
            except LeaseLost:
                return
            except (psycopg.Error, OutboxError) as error:
                self._observer(DatabaseUnavailable(f"prune: {first_line(error)}"))
                pause = 30.0

    def _wanted(self) -> bool:
        return not self._stop.is_set() and self._holds(self._term)

    def _work(self, connection: Session) -> None:
        limit_waits(connection)
        queries = prune_queries_for(self._settings.schema)
        keep = kept_for(self._settings.retention_days, self._settings.horizon_days)
        prune = Prune(connection, queries, self._term, self._observer, self._settings.schema, keep)
        pause = 0.0
        while not self._stop.wait(pause) and self._holds(self._term):
            started = time.monotonic()
            try:
                prune.step()
            except psycopg.errors.LockNotAvailable:
                # Somebody has the table: a migration, a re-base, VACUUM FULL. It is not urgent.
                pause = 5.0
                continue
            pause = 1.0 if prune.resting else max(0.01, (time.monotonic() - started) * (1 / _SHARE - 1))


def limit_waits(connection: Session) -> None:
    """Retention gives way: it neither waits for locks nor makes others wait for a long statement."""
    if connection.own:  # behind a pooler it would reach others
        connection.execute(_TIMEOUTS)


def prune_once(prune: Prune, *, dry_run: bool) -> dict[str, int]:
    """Every walk once to its end, for the command line; a dry run takes each step back."""
    while not prune.resting:
        with prune.connection.transaction(force_rollback=dry_run):
            prune.step()
    return prune.pruned


def audited(prune: Prune, who: str) -> None:
    """By hand means by somebody."""
    messages = prune.pruned.get("outbox_message", 0)
    why = f"kept for {prune.keep.total_seconds() / 86400:g} days"
    detail = json.dumps(prune.pruned)
    prune.connection.execute(prune.queries.audited, {"who": who, "why": why, "affected": messages, "detail": detail})

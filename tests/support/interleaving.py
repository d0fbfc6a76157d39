"""Interleavings: the transactions of several writers, decided by a seed and run at the same time.

The same seed always gives the same decisions: who takes which key at which isolation level, what is undone, who holds
his transaction open for how long, how it ends. How they meet is up to the machine.

Commit order is known without clocks. Every message of an ordering key takes a number from a counter of that key,
*after* the product has taken the key's lock and in the same transaction: the lock is held until the end, so numbers
rise in commit order, and a rollback takes its numbers back. If the product's lock failed to hold, numbers and the
order of publication would part.
"""

import random
import threading
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Literal

import psycopg
from psycopg import sql

from outbox import Message, Outbox
from tests.support import ledger

Connection = psycopg.Connection[tuple[Any, ...]]
Step = Literal["add", "batch", "copy", "kept savepoint", "undone savepoint"]
End = Literal["commit", "rollback", "prepare", "prepare and roll back"]

LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")
_BATCH = 4
_TRIES = 100
_COUNTER = "CREATE TABLE ledger_counter (key text PRIMARY KEY, position bigint NOT NULL)"
_NEXT_POSITION = "UPDATE ledger_counter SET position = position + 1 WHERE key = %s RETURNING position"
_COPY = "COPY outbox_message (id, task, queue) FROM STDIN"


@dataclass(frozen=True)
class Transaction:
    """What one writer does in one transaction."""

    keys: tuple[str, ...]  # none: messages without order; several: batches only, which lock them in one order
    level: str
    xid_first: bool  # a transaction id from before the key's lock: a low xid that commits late
    asynchronous: bool
    steps: tuple[Step, ...]
    hold: float
    end: End


Schedule = tuple[tuple[Transaction, ...], ...]


@dataclass(frozen=True)
class Outcome:
    """What has committed: every message with the moment at which its writer knew, on the monotonic clock."""

    committed: dict[str, float]
    rolled_back: set[str]


def schedule(seed: int, writers: int = 7, transactions: int = 5) -> Schedule:
    """A writer each; one transaction of each is long."""
    dice = random.Random(seed)
    return tuple(
        tuple(_transaction(dice, long=number == dice_long) for number in range(transactions))
        for dice_long in (dice.randrange(transactions) for _ in range(writers))
    )


def without_prepared(plan: Schedule) -> Schedule:
    """The same with every transaction ended in one step, for writers that may notify."""
    ends: dict[End, End] = {"prepare": "commit", "prepare and roll back": "rollback"}
    return tuple(tuple(replace(each, end=ends.get(each.end, each.end)) for each in writer) for writer in plan)


def _transaction(dice: random.Random, *, long: bool) -> Transaction:
    kind = dice.random()
    names = ("north", "south", "west")
    keys = () if kind < 0.25 else tuple(sorted(dice.sample(names, 2))) if kind > 0.85 else (dice.choice(names),)
    if not keys:
        choice: tuple[Step, ...] = ("add", "batch", "copy", "kept savepoint", "undone savepoint")
    elif len(keys) == 1:
        choice = ("add", "batch", "kept savepoint", "undone savepoint")
    else:
        choice = ("batch",)
    return Transaction(
        keys=keys,
        level=dice.choices(LEVELS, (6, 2, 2))[0],
        xid_first=dice.random() < 0.5,
        asynchronous=dice.random() < 0.5,
        steps=tuple(dice.choices(choice, k=dice.randint(1, 3))),
        # A long one that everybody waits for would leave nothing to interleave.
        hold=(dice.uniform(0.1, 0.2) if keys else dice.uniform(0.25, 0.45)) if long else dice.uniform(0, 0.01),
        end=dice.choices(("commit", "rollback", "prepare", "prepare and roll back"), (68, 14, 12, 6))[0],
    )


class Interleaving:
    """Connections for so many writers, to one database with a ledger; used for one schedule after another."""

    def __init__(self, database: str, writers: int = 7) -> None:
        self._stack = ExitStack()
        self._connections: list[Connection] = [
            self._stack.enter_context(psycopg.connect(database, autocommit=True)) for _ in range(writers)
        ]
        self._pool = self._stack.enter_context(ThreadPoolExecutor(writers))
        self._outbox = Outbox()
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(_COUNTER)
            connection.execute("INSERT INTO ledger_counter SELECT unnest(ARRAY['north', 'south', 'west']), 0")

    def close(self) -> None:
        self._stack.close()

    def run(self, plan: Schedule, queue: str) -> Outcome:
        """All writers start together; returns when the last has ended. Every message goes to `queue`."""
        start = threading.Barrier(len(plan))

        def work(number: int) -> list[tuple[list[str], float | None]]:
            start.wait(10)
            return [self._transact(self._connections[number], each, queue) for each in plan[number]]

        ended = [each for writer in self._pool.map(work, range(len(plan))) for each in writer]
        return Outcome(
            {name: at for names, at in ended if at is not None for name in names},
            {name for names, at in ended if at is None for name in names},
        )

    def _transact(self, connection: Connection, plan: Transaction, queue: str) -> tuple[list[str], float | None]:
        """The messages it added, and when it committed (None: it rolled back). Failures to serialize are run again."""
        for _ in range(_TRIES):
            try:
                return self._try(connection, plan, queue)
            except (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected):
                connection.execute("ROLLBACK")
        raise AssertionError(f"{_TRIES} failures to serialize in a row: {plan}")

    def _try(self, connection: Connection, plan: Transaction, queue: str) -> tuple[list[str], float | None]:
        connection.execute(sql.SQL("BEGIN ISOLATION LEVEL {}").format(sql.SQL(plan.level)))
        if plan.asynchronous:
            connection.execute("SET LOCAL synchronous_commit = off")
        if plan.xid_first:
            connection.execute("SELECT pg_current_xact_id()")
        added = [name for step in plan.steps for name in self._step(connection, step, plan.keys, queue)]
        time.sleep(plan.hold)  # part of the schedule: others commit meanwhile
        if plan.end in ("commit", "rollback"):
            connection.execute(plan.end)
        else:
            name = sql.Literal(uuid.uuid4().hex)
            connection.execute(sql.SQL("PREPARE TRANSACTION {}").format(name))
            verb = sql.SQL("COMMIT" if plan.end == "prepare" else "ROLLBACK")
            connection.execute(sql.SQL("{} PREPARED {}").format(verb, name))
        return added, time.monotonic() if plan.end in ("commit", "prepare") else None

    def _step(self, connection: Connection, step: Step, keys: tuple[str, ...], queue: str) -> list[str]:
        if step == "copy":
            return self._copy(connection, queue)
        if step in ("add", "batch"):
            return self._add(connection, keys, queue, 1 if step == "add" else _BATCH)
        connection.execute("SAVEPOINT here")
        added = self._add(connection, keys, queue, 2)
        if step == "undone savepoint":
            connection.execute("ROLLBACK TO here")
            return []
        connection.execute("RELEASE here")
        return added

    def _add(self, connection: Connection, keys: tuple[str, ...], queue: str, count: int) -> list[str]:
        chosen = [keys[number % len(keys)] if keys else None for number in range(count)]
        messages = [Message("a.task", queue=queue, ordering_key=key) for key in chosen]
        if count == 1:
            added = [self._outbox.add(connection, messages[0])]
        else:
            added = list(self._outbox.add_many(connection, messages))
        for each, key in zip(added, chosen, strict=True):
            ledger.intend(connection, each.id, key, None if key is None else _position(connection, key))
        return [str(each.id) for each in added]

    def _copy(self, connection: Connection, queue: str) -> list[str]:
        """As a bulk load does it, past the library."""
        names = [uuid.uuid4() for _ in range(_BATCH)]
        with connection.cursor() as cursor:
            with cursor.copy(_COPY) as copy:
                for name in names:
                    copy.write_row((name, "a.task", queue))
            for name in names:
                ledger.intend(connection, name)
        return [str(name) for name in names]


def _position(connection: Connection, key: str) -> int:
    (row,) = connection.execute(_NEXT_POSITION, [key]).fetchall()
    return int(row[0])


def kinds(plans: Sequence[Schedule]) -> set[str]:
    """Every kind of decision that occurs in them: a test that wants all of them asks."""
    everything = [each for plan in plans for writer in plan for each in writer]
    return (
        {each.level for each in everything}
        | {step for each in everything for step in each.steps}
        | {each.end for each in everything}
        | {f"{len(each.keys)} keys" for each in everything}
    )

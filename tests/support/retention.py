"""Messages of any age and outcome, for tests of what may be forgotten."""

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg

from relay.database import connect
from relay.events import Event
from relay.lease import Term
from relay.prune import Prune
from relay.queries.prune import prune_queries_for

Client = psycopg.Connection[tuple[Any, ...]]

OWN, PLAIN, FAR = "own.task", "plain.task", "far.task"


class Retention:
    """A prune that is driven step by step, and the events it told."""

    def __init__(self, url: str, term: Term | None, batch: int = 2000) -> None:
        self.events: list[Event] = []
        self.seconds = 0.0
        self.connection = connect(url, 3.0, "test")
        self.prune = Prune(
            self.connection,
            prune_queries_for("public", fenced=term is not None),
            term,
            self.events.append,
            "public",
            timedelta(days=7, hours=1),
            clock=lambda: self.seconds,
            batch=batch,
        )

    def run(self) -> int:
        """Every walk to its end, from the beginning."""
        self.seconds += 1_000_000
        rows = 0
        while not self.prune.resting:
            rows += self.prune.step()
        return rows


def register(client: Client) -> None:
    client.execute("INSERT INTO inbox_consumer (task, receipt_timeout) VALUES (%s, '30 s')", [OWN])
    client.execute("INSERT INTO inbox_consumer (task, receipt_timeout, inbox) VALUES (%s, '30 s', 'b')", [FAR])


def add(client: Client, task: str = OWN, *, held: bool = False, days: float = 0, **columns: Any) -> UUID:
    """One message, written so many days ago if it is a held one (the others age by their place in the log)."""
    key = uuid4()
    values = {"id": key, "task": task, "held": held, **columns}
    names = ", ".join(values)
    client.execute(
        f"INSERT INTO outbox_message ({names}, created_at)"  # noqa: S608
        f" VALUES ({', '.join(['%s'] * len(values))}, clock_timestamp() - %s * interval '1 day')".encode(),
        [*values.values(), days],
    )
    return key


def end(client: Client, message: UUID, status: str = "applied", task: str = OWN, days: float = 8) -> None:
    client.execute(
        "INSERT INTO inbox_receipt (message_id, consumer, status, applied_at)"
        " VALUES (%s, %s, %s, clock_timestamp() - %s * interval '1 day')",
        [message, task, status, days],
    )


def pass_by(client: Client, days: float = 8, *, swept: bool = True) -> None:
    """Everything committed so far was with the broker so many days ago."""
    client.execute("UPDATE outbox_leader SET prev = pg_current_snapshot(), window_no = window_no + 1")
    client.execute(
        "INSERT INTO outbox_window (window_no, from_snapshot, to_snapshot, last_seq, epoch, relay, closed_at)"
        " SELECT window_no, prev, prev, last_seq, epoch, 'test', clock_timestamp() - %s * interval '1 day'"
        " FROM outbox_leader",
        [days],
    )
    if swept:
        client.execute("UPDATE outbox_leader SET reconciled = prev")


def ids(client: Client, table: str = "outbox_message", column: str = "id") -> set[UUID]:
    return {row[0] for row in client.execute(f"SELECT {column} FROM {table}".encode())}  # noqa: S608

"""The state of one outbox: what is asked, how bounded, and what of it is bad enough to fail a check."""

import dataclasses
import re
from dataclasses import dataclass
from datetime import timedelta

import psycopg

from outbox.errors import ConfigurationError, SchemaMismatch
from outbox.migrations import REVISION
from relay.database import Database
from relay.duration import parse_duration, shown_duration
from relay.pause import Pause, Pauses
from relay.queries.pause import PauseQueries
from relay.queries.status import StatusQueries

MOST_COUNTED = 100_000
LONG_TRANSACTION = timedelta(minutes=1)
GONE_SECONDS = 10
_MISSING = (psycopg.errors.UndefinedFunction, psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName)


@dataclass(frozen=True, slots=True)
class RelayLine:
    name: str
    holder: str
    version: str
    leads: bool
    seen_seconds_ago: float
    broker_seconds_ago: float | None
    last_error: str | None

    @property
    def gone(self) -> bool:
        return self.seen_seconds_ago > GONE_SECONDS


@dataclass(frozen=True, slots=True)
class Parked:
    """Messages that wait for the same thing."""

    blocked_by: str
    queue: str | None
    why: str | None
    messages: int
    oldest_seconds: float | None


@dataclass(frozen=True, slots=True)
class OpenTransactions:
    """Of others, open for longer than a minute."""

    count: int
    oldest_seconds: float | None
    oldest: str | None


@dataclass(frozen=True, slots=True)
class Status:
    """Counts stop at `MOST_COUNTED`; what ends in `_per_second` is an average over the last minute."""

    epoch: int
    leader: str | None
    leader_up_seconds: float | None
    """How long the leading process runs; it may have led for less."""
    relays: tuple[RelayLine, ...]
    backlog: int
    backlog_is_more: bool
    oldest_seconds: float | None
    due: dict[str, int]
    due_now: int
    parked: tuple[Parked, ...]
    pauses: tuple[Pause, ...]
    published_per_second: float
    receipts_last_minute: dict[str, int]
    consumers: dict[str, float]
    wakeup: str
    """asleep: the next writer wakes the relay; awake: it looks by itself; unknown: this role may not read the flag."""
    same_cluster: bool
    read_only: bool
    open_transactions: OpenTransactions

    @property
    def parked_messages(self) -> int:
        return sum(each.messages for each in self.parked)

    @property
    def live_relays(self) -> int:
        return sum(not relay.gone for relay in self.relays)

    def as_json(self) -> dict[str, object]:
        return {"format": 1, **dataclasses.asdict(self)}


def collect(connection: Database, queries: StatusQueries, pause_queries: PauseQueries) -> Status:
    read_only, same_cluster, flag = _identity(connection, queries)
    most = {"most": MOST_COUNTED + 1}
    epoch, holder, name, alive, up = connection.execute(queries.leader, {}).fetchall()[0]
    leads = holder if alive else None
    relays = tuple(
        RelayLine(name, relay, version, relay == leads, seen, broker, error)
        for relay, name, version, seen, broker, error in connection.execute(queries.relays, {})
    )
    count, oldest = connection.execute(queries.backlog, most).fetchall()[0]
    due = connection.execute(queries.due, most).fetchall()
    [published] = connection.execute(queries.published, most).fetchall()[0]
    long = {"long": LONG_TRANSACTION}
    return Status(
        epoch=epoch,
        leader=name if leads else None,
        leader_up_seconds=up if leads else None,
        relays=relays,
        backlog=min(count, MOST_COUNTED),
        backlog_is_more=count > MOST_COUNTED,
        oldest_seconds=oldest,
        due={reason: total for reason, total, _ in due},
        due_now=sum(ready for _, _, ready in due),
        parked=tuple(Parked(*row) for row in connection.execute(queries.parked, most)),
        pauses=Pauses(connection, pause_queries).in_force(),
        published_per_second=published / 60,
        receipts_last_minute=dict(connection.execute(queries.receipts, most).fetchall()),
        consumers=dict(connection.execute(queries.consumers, {}).fetchall()),
        wakeup={None: "unknown", 2: "asleep"}.get(flag, "awake"),
        same_cluster=same_cluster,
        read_only=read_only,
        open_transactions=OpenTransactions(*connection.execute(queries.open_transactions, long).fetchall()[0]),
    )


def _identity(connection: Database, queries: StatusQueries) -> tuple[bool, bool, int | None]:
    try:
        rows = connection.execute(queries.identity, {"schema": queries.schema}).fetchall()
    except _MISSING:
        raise SchemaMismatch('the outbox tables are missing in this database; run "outbox migrate"') from None
    except psycopg.errors.InsufficientPrivilege as error:
        raise SchemaMismatch(f"this role may not read the outbox: {error.diag.message_primary}") from None
    if not rows:
        raise SchemaMismatch('outbox_leader has no row; it was emptied by hand, run "outbox migrate" on a new schema')
    [(revision, read_only, same_cluster, flag)] = rows
    if revision != REVISION:
        fix = 'run "outbox migrate"' if revision < REVISION else "upgrade celery-outbox-relay"
        raise SchemaMismatch(f"the database has schema revision {revision}, this program needs {REVISION}; {fix}")
    return read_only, same_cluster, flag


@dataclass(frozen=True, slots=True)
class Limits:
    """What `--fail-on` calls bad: `age=60s,backlog=1000,parked=1,leader`."""

    age: float | None = None
    backlog: int | None = None
    parked: int | None = None
    leader: bool = False

    @classmethod
    def parse(cls, text: str) -> "Limits":
        found: dict[str, float | int | bool] = {}
        for part in filter(None, (each.strip() for each in text.split(","))):
            name, equals, value = part.partition("=")
            match name, equals, re.fullmatch(r"[0-9]{1,12}", value, re.ASCII) is not None:
                case "leader", "", _:
                    found["leader"] = True
                case "age", "=", _:
                    found["age"] = parse_duration(value, "--fail-on age").total_seconds()
                case "backlog" | "parked", "=", True:
                    found[name] = int(value)
                case _:
                    raise ConfigurationError(
                        f"--fail-on {part[:40]!a} is not a limit; for example age=60s,backlog=1000,parked=1,leader"
                    )
        if not found:
            raise ConfigurationError("--fail-on names no limit; write for example age=60s,backlog=1000,parked=1,leader")
        return cls(**found)  # type: ignore[arg-type]

    def findings(self, status: Status) -> list[str]:
        found = []
        if self.leader and status.leader is None:
            found.append("no relay leads")
        if self.age is not None and (status.oldest_seconds or 0) >= self.age:
            found.append(f"the oldest message waits for {shown_duration(status.oldest_seconds)}")
        if self.backlog is not None and status.backlog >= self.backlog:
            found.append(f"{status.backlog:,} messages wait")
        if self.parked is not None and status.parked_messages >= self.parked:
            found.append(f"{status.parked_messages:,} messages are parked")
        return found

"""The state of one outbox in words an operator understands, or as JSON."""

import dataclasses
from dataclasses import dataclass

from relay.database import Database
from relay.queries.status import StatusQueries

MOST_COUNTED = 100_000
_GONE_SECONDS = 10


@dataclass(frozen=True, slots=True)
class RelayLine:
    name: str
    holder: str
    version: str
    leads: bool
    seen_seconds_ago: float
    broker_seconds_ago: float | None
    last_error: str | None


@dataclass(frozen=True, slots=True)
class Status:
    epoch: int
    leader: str | None
    relays: tuple[RelayLine, ...]
    backlog: int
    backlog_is_more: bool
    oldest_seconds: float | None
    due: dict[str, int]
    due_now: int
    receipts_last_minute: dict[str, int]
    consumers: dict[str, float]

    def as_json(self) -> dict[str, object]:
        return {"format": 1, **dataclasses.asdict(self)}


def collect(connection: Database, queries: StatusQueries) -> Status:
    epoch, holder, name, alive, _ = connection.execute(queries.leader, {}).fetchall()[0]
    leads = holder if alive else None
    relays = tuple(
        RelayLine(name, relay, version, relay == leads, seen, broker, error)
        for relay, name, version, seen, broker, error in connection.execute(queries.relays, {})
    )
    count, oldest = connection.execute(queries.backlog, {"most": MOST_COUNTED + 1}).fetchall()[0]
    due = connection.execute(queries.due, {}).fetchall()
    return Status(
        epoch=epoch,
        leader=name if leads else None,
        relays=relays,
        backlog=min(count, MOST_COUNTED),
        backlog_is_more=count > MOST_COUNTED,
        oldest_seconds=oldest,
        due={reason: total for reason, total, _ in due},
        due_now=sum(ready for _, _, ready in due),
        receipts_last_minute=dict(connection.execute(queries.receipts, {}).fetchall()),
        consumers=dict(connection.execute(queries.consumers, {}).fetchall()),
    )


def render(status: Status) -> str:
    lines = [_headline(status), _backlog(status)]
    lines += [_relay(relay) for relay in status.relays]
    if status.due:
        planned = ", ".join(f"{count:,} {reason}" for reason, count in status.due.items())
        lines.append(f"planned    {planned}; {status.due_now:,} due now")
    done = ", ".join(f"{count:,} {outcome}" for outcome, count in status.receipts_last_minute.items())
    lines.append(f"receipts   {done or 'none'} in the last minute")
    tasks = ", ".join(f"{task} (registered {_age(seconds)} ago)" for task, seconds in status.consumers.items())
    lines.append(f"consumers  {tasks or 'none registered yet: start a worker with @consumer tasks'}")
    return "\n".join(lines)


def _headline(status: Status) -> str:
    if status.leader is None:
        return f"leader     NONE (epoch {status.epoch}): nothing is published; start a relay: outbox relay"
    return f"leader     {status.leader} (epoch {status.epoch})"


def _backlog(status: Status) -> str:
    if not status.backlog:
        return "backlog    empty: everything committed is with the broker"
    more = "more than " if status.backlog_is_more else ""
    noun = "message" if status.backlog == 1 else "messages"
    return f"backlog    {more}{status.backlog:,} {noun} not yet published, oldest {_age(status.oldest_seconds)}"


def _relay(relay: RelayLine) -> str:
    if relay.seen_seconds_ago > _GONE_SECONDS:
        return f"relay      {relay.name} gone: not seen for {_age(relay.seen_seconds_ago)}"
    role = "leader" if relay.leads else "standby"
    broker = f", broker answered {_age(relay.broker_seconds_ago)} ago" if relay.broker_seconds_ago is not None else ""
    error = f"  last error: {relay.last_error}" if relay.last_error else ""
    return f"relay      {relay.name} {role}, seen {_age(relay.seen_seconds_ago)} ago{broker}{error}"


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    if seconds < 60:
        return f"{max(seconds, 0):.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s"

"""A status in words an operator understands: what is wrong comes with what to do."""

from relay.duration import shown_duration
from relay.status import MOST_COUNTED, Parked, RelayLine, Status

_BLOCKED_BY = {
    "pause": "paused",
    "queue": "the broker has no such queue",
    "key": "an earlier message of their ordering key waits",
    "dead": "a dead letter blocks their ordering key",
}


def render(status: Status) -> str:
    lines = [_headline(status), _backlog(status)]
    if not status.same_cluster:
        lines.append(
            "ADOPT      this database came from another cluster; nothing is published until a relay starts with --adopt"
        )
    lines += [_relay(relay) for relay in status.relays]
    lines += _pauses(status)
    if status.due:
        planned = ", ".join(f"{count:,} {reason}" for reason, count in status.due.items())
        lines.append(f"planned    {planned}; {status.due_now:,} due now")
    lines += [_parked(each) for each in status.parked]
    lines.append(f"rates      {_rate(status.published_per_second)} published, {_receipts(status)} in the last minute")
    tasks = ", ".join(f"{task} (registered {shown_duration(age)} ago)" for task, age in status.consumers.items())
    lines.append(f"consumers  {tasks or 'none registered yet: start a worker with @consumer tasks'}")
    return "\n".join(lines + _notes(status))


def _headline(status: Status) -> str:
    if status.leader is None:
        return f"leader     NONE (epoch {status.epoch}): nothing is published; start a relay: outbox relay"
    standbys = status.live_relays - 1
    others = f"{standbys} standby{'s' * (standbys != 1)}" if standbys > 0 else "no standby: start a second relay"
    up = f", up {shown_duration(status.leader_up_seconds)}" if status.leader_up_seconds is not None else ""
    return f"leader     {status.leader} (epoch {status.epoch}{up}), {others}"


def _backlog(status: Status) -> str:
    if not status.backlog:
        return "backlog    empty: everything committed is with the broker, planned or parked"
    more = "more than " if status.backlog_is_more else ""
    noun = "message" if status.backlog == 1 else "messages"
    return (
        f"backlog    {more}{status.backlog:,} {noun} not yet published, oldest {shown_duration(status.oldest_seconds)}"
    )


def _relay(relay: RelayLine) -> str:
    if relay.gone:
        return f"relay      {relay.name} gone: not seen for {shown_duration(relay.seen_seconds_ago)}"
    role = "leader" if relay.leads else "standby"
    answered = relay.broker_seconds_ago
    broker = f", broker answered {shown_duration(answered)} ago" if answered is not None else ""
    error = f"  last error: {relay.last_error}" if relay.last_error else ""
    return f"relay      {relay.name} {role}, seen {shown_duration(relay.seen_seconds_ago)} ago{broker}{error}"


def _pauses(status: Status) -> list[str]:
    return [
        f"PAUSED     {pause.shown_queue} by {pause.by}: {pause.why}; "
        + (f"until {pause.until:%Y-%m-%d %H:%M:%S %Z}" if pause.until else "until somebody runs outbox resume")
        for pause in status.pauses
    ]


def _parked(parked: Parked) -> str:
    noun = "message" if parked.messages == 1 else "messages"
    more = "more than " if parked.messages > MOST_COUNTED else ""
    where = f" of queue {parked.queue}" if parked.queue else ""
    reason = _BLOCKED_BY.get(parked.blocked_by, parked.blocked_by) + (f" ({parked.why})" if parked.why else "")
    count = min(parked.messages, MOST_COUNTED)
    return f"parked     {more}{count:,} {noun}{where}: {reason}, oldest {shown_duration(parked.oldest_seconds)}"


def _rate(per_second: float) -> str:
    if per_second * 60 > MOST_COUNTED:
        return f"more than {MOST_COUNTED / 60:,.0f}/s"
    return f"{per_second:,.1f}/s"


def _receipts(status: Status) -> str:
    total = sum(status.receipts_last_minute.values())
    ends = ", ".join(f"{count:,} {end}" for end, count in status.receipts_last_minute.items())
    return f"{_rate(total / 60)} receipts ({ends})" if ends else "no receipts"


def _notes(status: Status) -> list[str]:
    notes = []
    if status.wakeup == "asleep":
        notes.append("wake-up    the relay sleeps; the next writer wakes it")
    elif status.wakeup == "awake":
        notes.append("wake-up    the relay looks by itself (busy, or OUTBOX_WAKEUP=poll)")
    foreign = status.open_transactions
    if foreign.count:
        noun = "transaction" if foreign.count == 1 else "transactions"
        notes.append(
            f"note       {foreign.count:,} {noun} open for more than a minute, the longest {foreign.oldest} for"
            f" {shown_duration(foreign.oldest_seconds)}: publishing goes on, but vacuum cannot clean up behind it"
        )
    if status.read_only:
        notes.append("note       read from a standby server: it may lag behind")
    return notes

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from outbox.errors import ConfigurationError
from relay.pause import Pause
from relay.status import Limits, OpenTransactions, Parked, RelayLine, Status
from relay.status_words import render

LEADER = RelayLine("relay-1", "h1", "0.1.0", True, 0.4, 2.0, None)
STANDBY = RelayLine("relay-2", "h2", "0.1.0", False, 0.9, None, "ConnectionError: refused")
SILENT = RelayLine("relay-3", "h3", "0.1.0", False, 11.0, None, None)
MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
IDLE = Status(
    epoch=0,
    leader=None,
    leader_up_seconds=None,
    relays=(),
    backlog=0,
    backlog_is_more=False,
    oldest_seconds=None,
    due={},
    due_now=0,
    parked=(),
    pauses=(),
    published_per_second=0.0,
    receipts_last_minute={},
    consumers={},
    wakeup="unknown",
    same_cluster=True,
    read_only=False,
    open_transactions=OpenTransactions(0, None, None),
)
BUSY = replace(
    IDLE,
    epoch=4,
    leader="relay-1",
    leader_up_seconds=8_040.0,
    relays=(LEADER, STANDBY, SILENT),
    backlog=12_345,
    oldest_seconds=75.4,
    due={"redelivery": 1_200, "retry": 3},
    due_now=5,
    parked=(
        Parked("queue", "mail", "NO_ROUTE", 12, 60.0),
        Parked("pause", "reports", None, 1, 5.0),
        Parked("key", None, None, 100_001, None),
    ),
    pauses=(Pause("reports", "ana@ops", "db upgrade", MOMENT, MOMENT), Pause("*", "bob@ops", "move", MOMENT, None)),
    published_per_second=84.1,
    receipts_last_minute={"applied": 6_000, "dead": 1},
    consumers={"billing.charge": 3.0, "mail.send": 7_300.0},
    wakeup="asleep",
    same_cluster=False,
    read_only=True,
    open_transactions=OpenTransactions(2, 720.0, "pid 7 (report)"),
)


def test_a_busy_outbox_in_words() -> None:
    assert render(BUSY).splitlines() == [
        "leader     relay-1 (epoch 4, up 2h14m), 1 standby",
        "backlog    12,345 messages not yet published, oldest 1m15s",
        "ADOPT      this database came from another cluster; nothing is published until a relay starts with --adopt",
        "relay      relay-1 leader, seen 0.4s ago, broker answered 2.0s ago",
        "relay      relay-2 standby, seen 0.9s ago  last error: ConnectionError: refused",
        "relay      relay-3 gone: not seen for 11.0s",
        "PAUSED     queue reports by ana@ops: db upgrade; until 2026-01-02 03:04:05 UTC",
        "PAUSED     everything by bob@ops: move; until somebody runs outbox resume",
        "planned    1,200 redelivery, 3 retry; 5 due now",
        "parked     12 messages of queue mail: the broker has no such queue (NO_ROUTE), oldest 1m00s",
        "parked     1 message of queue reports: paused, oldest 5.0s",
        "parked     more than 100,000 messages: an earlier message of their ordering key waits, oldest unknown",
        "rates      84.1/s published, 100.0/s receipts (6,000 applied, 1 dead) in the last minute",
        "consumers  billing.charge (registered 3.0s ago), mail.send (registered 2h01m ago)",
        "wake-up    the relay sleeps; the next writer wakes it",
        "note       2 transactions open for more than a minute, the longest pid 7 (report) for 12m00s:"
        " publishing goes on, but vacuum cannot clean up behind it",
        "note       read from a standby server: it may lag behind",
    ]


def test_an_outbox_that_nobody_serves_says_what_to_do() -> None:
    assert render(IDLE).splitlines() == [
        "leader     NONE (epoch 0): nothing is published; start a relay: outbox relay",
        "backlog    empty: everything committed is with the broker, planned or parked",
        "rates      0.0/s published, no receipts in the last minute",
        "consumers  none registered yet: start a worker with @consumer tasks",
    ]


def test_a_bounded_count_is_not_shown_as_exact() -> None:
    assert "more than 100,000 messages" in render(replace(IDLE, backlog=100_000, backlog_is_more=True))
    assert "more than 1,667/s published" in render(replace(IDLE, published_per_second=100_001 / 60))


def test_a_single_relay_is_no_high_availability() -> None:
    assert "no standby: start a second relay" in render(replace(BUSY, relays=(LEADER,)))


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-0.2, "0.0s"),
        (0.0, "0.0s"),
        (59.9, "59.9s"),
        (60.0, "1m00s"),
        (3599.0, "59m59s"),
        (3600.0, "1h00m"),
        (90_061.0, "25h01m"),
        (200_000.0, "2d07h"),
        (None, "unknown"),
    ],
)
def test_an_age_is_readable(seconds: float | None, shown: str) -> None:
    assert render(replace(BUSY, oldest_seconds=seconds)).splitlines()[1].endswith(f"oldest {shown}")


@pytest.mark.parametrize(("seconds", "late"), [(9.9, False), (10.0, False), (10.1, True)])
def test_a_relay_that_fell_silent_is_pointed_out(seconds: float, late: bool) -> None:
    shown = render(replace(IDLE, relays=(replace(LEADER, seen_seconds_ago=seconds),)))
    assert ("gone: not seen for" in shown) is late


def test_json_carries_a_version_and_every_field() -> None:
    document = json.loads(json.dumps(BUSY.as_json(), default=str))
    assert document["format"] == 1
    assert document["relays"][1]["last_error"] == "ConnectionError: refused"
    assert document["parked"][0] == {
        "blocked_by": "queue",
        "queue": "mail",
        "why": "NO_ROUTE",
        "messages": 12,
        "oldest_seconds": 60.0,
    }
    assert document.keys() - {"format"} == {
        *("epoch", "leader", "leader_up_seconds", "relays", "backlog", "backlog_is_more", "oldest_seconds", "due"),
        *("due_now", "parked", "pauses", "published_per_second", "receipts_last_minute", "consumers", "wakeup"),
        *("same_cluster", "read_only", "open_transactions"),
    }


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("age=60s", ["the oldest message waits for 1m15s"]),
        ("age=2m", []),
        ("backlog=12345", ["12,345 messages wait"]),
        ("backlog=12346", []),
        ("parked=1", ["100,014 messages are parked"]),
        ("leader", []),
        (" age=1m , leader,backlog=1 ", ["the oldest message waits for 1m15s", "12,345 messages wait"]),
    ],
)
def test_a_limit_that_is_reached_is_a_finding(text: str, found: list[str]) -> None:
    assert Limits.parse(text).findings(BUSY) == found


def test_an_outbox_without_a_leader_is_a_finding() -> None:
    assert Limits.parse("leader").findings(IDLE) == ["no relay leads"]
    assert Limits().findings(IDLE) == []


@pytest.mark.parametrize("text", ["", ",", "age", "age=", "age=-1s", "age=soon", "backlog=1e9", "dead=1", "leader=1"])
def test_a_wrong_limit_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^--fail-on .* for example |^--fail-on age .*"):
        Limits.parse(text)

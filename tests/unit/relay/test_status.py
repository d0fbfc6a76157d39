import json
from dataclasses import replace

import pytest

from relay.status import RelayLine, Status, render

LEADER = RelayLine("relay-1", "h1", "0.1.0", True, 0.4, 2.0, None)
STANDBY = RelayLine("relay-2", "h2", "0.1.0", False, 11.0, None, "ConnectionError: refused")
BUSY = Status(
    epoch=4,
    leader="relay-1",
    relays=(LEADER, STANDBY),
    backlog=12_345,
    backlog_is_more=False,
    oldest_seconds=75.4,
    due={"redelivery": 1_200, "retry": 3},
    due_now=5,
    receipts_last_minute={"applied": 60_000, "dead": 1},
    consumers={"billing.charge": 3.0, "mail.send": 7_300.0},
)
IDLE = Status(0, None, (), 0, False, None, {}, 0, {}, {})


def test_a_busy_outbox_in_words() -> None:
    assert render(BUSY).splitlines() == [
        "leader     relay-1 (epoch 4)",
        "backlog    12,345 messages not yet published, oldest 1m15s",
        "relay      relay-1 leader, seen 0.4s ago, broker answered 2.0s ago",
        "relay      relay-2 gone: not seen for 11.0s",
        "planned    1,200 redelivery, 3 retry; 5 due now",
        "receipts   60,000 applied, 1 dead in the last minute",
        "consumers  billing.charge (registered 3.0s ago), mail.send (registered 2h01m ago)",
    ]


def test_an_outbox_that_nobody_serves_says_what_to_do() -> None:
    assert render(IDLE).splitlines() == [
        "leader     NONE (epoch 0): nothing is published; start a relay: outbox relay",
        "backlog    empty: everything committed is with the broker",
        "receipts   none in the last minute",
        "consumers  none registered yet: start a worker with @consumer tasks",
    ]


def test_a_bounded_count_is_not_shown_as_exact() -> None:
    assert "more than 100,000 messages" in render(replace(BUSY, backlog=100_000, backlog_is_more=True))


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
    document = json.loads(json.dumps(BUSY.as_json()))
    assert document["format"] == 1
    assert document["relays"][1]["last_error"] == "ConnectionError: refused"
    assert document.keys() - {"format"} == {
        *("epoch", "leader", "relays", "backlog", "backlog_is_more", "oldest_seconds", "due", "due_now"),
        *("receipts_last_minute", "consumers"),
    }

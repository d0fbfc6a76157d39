import json
import logging
import os
import re
from datetime import datetime
from typing import get_args

import pytest

from relay import events
from relay.events import Event
from relay.logs import (
    REPEAT_SECONDS,
    ConsoleFormatter,
    EventLog,
    JsonFormatter,
    SteadyHandler,
    action_of,
    configure_logs,
    logger,
)
from tests.contract.source_tree import ROOT

SAMPLES: list[tuple[Event, str, int, str]] = [
    (
        events.RelayStarted("postgresql://h/d", "redis://h/0", True),
        "relay_started",
        logging.INFO,
        "database=postgresql://h/d broker=redis://h/0 broker_answers=True",
    ),
    (events.LeadershipGained(3), "leadership_gained", logging.INFO, "epoch=3"),
    (events.LeadershipLost(3, "taken over"), "leadership_lost", logging.WARNING, "epoch=3 why='taken over'"),
    (events.LeadershipReleased(3), "leadership_released", logging.INFO, "epoch=3"),
    (events.WindowOpened(9, resumed=True), "window_opened", logging.DEBUG, "number=9 resumed=True"),
    (events.PageRead(500), "page_read", logging.DEBUG, "messages=500"),
    (events.PagePublished(500, 0.01234567), "page_published", logging.DEBUG, "messages=500 seconds=0.0123"),
    (events.PositionAdvanced(9, 77), "position_advanced", logging.DEBUG, "window=9 last_seq=77"),
    (events.MissingPlanned(2), "missing_planned", logging.INFO, "messages=2"),
    (events.BrokerUnavailable("refused", 4), "broker_unavailable", logging.WARNING, "error=refused attempt=4"),
    (events.BrokerRecovered(5), "broker_recovered", logging.INFO, "attempts=5"),
    (events.DatabaseUnavailable("no route"), "database_unavailable", logging.WARNING, "error='no route' failures=1"),
]


def logged(caplog: pytest.LogCaptureFixture, event: Event) -> logging.LogRecord:
    with caplog.at_level(logging.DEBUG, logger.name):
        EventLog()(event)
    [record] = caplog.records
    return record


def test_every_action_is_in_the_reference() -> None:
    """Actions are what operators search for and alert on: a new or renamed one is told to them."""
    page = (ROOT / "docs" / "reference.md").read_text()
    table = page.split("## Log lines")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, re.M)) == {action_of(kind) for kind in get_args(Event)} | {
        "log_lines_lost"
    }


@pytest.mark.parametrize(("event", "action", "level", "fields"), SAMPLES, ids=[action for _, action, _, _ in SAMPLES])
def test_an_event_is_one_record_with_a_stable_action(
    caplog: pytest.LogCaptureFixture, event: Event, action: str, level: int, fields: str
) -> None:
    record = logged(caplog, event)
    assert (record.getMessage(), record.levelno, record.name) == (action, level, "outbox.relay")
    assert vars(record)["action"] == action
    line = ConsoleFormatter("relay-1").format(record)
    assert re.fullmatch(r"\d\d:\d\d:\d\d (DEBUG  |INFO   |WARNING) relay-1 " + re.escape(f"{action} {fields}"), line)


@pytest.mark.parametrize("text", ["two\nlines", "\x1b[31mred", "tab\there", "\u2028", "a b", "nul\x00"])
def test_a_text_from_outside_stays_on_its_line(caplog: pytest.LogCaptureFixture, text: str) -> None:
    line = ConsoleFormatter("relay-1").format(logged(caplog, events.LeadershipLost(1, text)))
    assert line.isprintable()
    assert line.endswith(f"why={text!a}")


def test_a_record_of_another_library_has_no_fields() -> None:
    record = logging.LogRecord("x", logging.ERROR, __file__, 1, "plain %s", ("text",), None)
    assert ConsoleFormatter("r").format(record).endswith(" ERROR   r plain text")


@pytest.mark.parametrize(("verbose", "shown"), [(False, False), (True, True)])
def test_the_console_is_stderr_and_pages_are_shown_on_demand(
    capfd: pytest.CaptureFixture[str], verbose: bool, shown: bool
) -> None:
    handler = configure_logs("relay-1", verbose=verbose)
    EventLog()(events.LeadershipGained(1))
    EventLog()(events.PageRead(3))
    handler.flush()
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "leadership_gained epoch=1" in captured.err
    assert ("page_read" in captured.err) is shown


def test_json_is_one_object_a_line(caplog: pytest.LogCaptureFixture) -> None:
    record = logged(caplog, events.LeadershipLost(1, "two\nlines"))
    line = JsonFormatter("relay-1").format(record)
    document = json.loads(line)
    assert "\n" not in line
    assert list(document) == ["ts", "level", "relay", "outbox", "action", "fields"]
    assert document["fields"] == {"epoch": 1, "why": "two\nlines"}
    assert (document["level"], document["relay"], document["outbox"]) == ("warning", "relay-1", "default")
    assert datetime.fromisoformat(document["ts"]).tzinfo is not None


def test_several_outboxes_are_told_apart(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger.name):
        EventLog("shop")(events.LeadershipGained(1))
    assert " relay-1/shop leadership_gained" in ConsoleFormatter("relay-1", several=True).format(caplog.records[0])


def test_a_repeated_warning_is_said_once_a_minute_with_the_number_left_out(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    log = EventLog(clock=lambda: now[0])
    for attempt in range(1, 11):
        log(events.BrokerUnavailable("refused", attempt))
    log(events.BrokerUnavailable("timed out", 11))
    now[0] += REPEAT_SECONDS
    log(events.BrokerUnavailable("refused", 12))
    log(events.BrokerRecovered(12))
    log(events.BrokerUnavailable("refused", 1))
    fields = [vars(record)["fields"] for record in caplog.records if record.levelno == logging.WARNING]
    assert [(each["error"], each["attempt"], each.get("repeated")) for each in fields] == [
        ("refused", 1, None),
        ("timed out", 11, None),
        ("refused", 12, 9),
        ("refused", 1, None),
    ]


def test_lines_that_could_not_be_written_are_counted() -> None:
    """A reader that has stopped holds nobody up; when it goes on it learns how much it missed."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with os.fdopen(reading, "rb") as reader, os.fdopen(writing, "w", encoding="ascii") as stream:
        handler = SteadyHandler(stream)
        handler.setFormatter(JsonFormatter("r"))
        for number in range(2_000):
            handler.emit(logging.LogRecord("x", logging.INFO, "", 1, "é %d " + "x" * 100, (number,), None))
        handler.flush()
        os.set_blocking(reading, False)
        first = reader.read()
        handler.emit(logging.LogRecord("x", logging.INFO, "", 1, "again", (), None))
        handler.flush()
        rest = [json.loads(line) for line in reader.read().decode("ascii").splitlines()]
    whole = first.count(b"\n")
    assert 0 < whole < 2_000
    assert rest[-1]["action"] == "log_lines_lost"
    # The line that was cut is counted as lost.
    assert rest[-1]["fields"] == {"lines": 2_000 - whole}


def test_importing_the_module_configures_nothing() -> None:
    assert logger.handlers == []
    assert logger.propagate


def test_an_observer_may_ignore_everything() -> None:
    for event, *_ in SAMPLES:
        events.ignore(event)

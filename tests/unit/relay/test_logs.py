import logging
import re
from typing import get_args

import pytest

from relay import events
from relay.events import Event
from relay.logs import ConsoleFormatter, configure_console, log_event, logger

# Actions are what operators search for and alert on: a renamed class must not rename them silently.
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
    (events.PagePublished(500, 0.01234567), "page_published", logging.INFO, "messages=500 seconds=0.0123"),
    (events.PositionAdvanced(9, 77), "position_advanced", logging.DEBUG, "window=9 last_seq=77"),
    (events.MissingPlanned(2), "missing_planned", logging.INFO, "messages=2"),
    (events.BrokerUnavailable("refused", 4), "broker_unavailable", logging.WARNING, "error=refused attempt=4"),
    (events.BrokerRecovered(5), "broker_recovered", logging.INFO, "attempts=5"),
    (events.DatabaseUnavailable("no route"), "database_unavailable", logging.WARNING, "error='no route'"),
]


def logged(caplog: pytest.LogCaptureFixture, event: Event) -> logging.LogRecord:
    with caplog.at_level(logging.DEBUG, logger.name):
        log_event(event)
    [record] = caplog.records
    return record


def test_every_event_has_a_sample() -> None:
    assert {type(event) for event, *_ in SAMPLES} == set(get_args(Event))


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
    line = ConsoleFormatter("relay-1").format(logged(caplog, events.DatabaseUnavailable(text)))
    assert line.isprintable()
    assert line.endswith(f"error={text!a}")


def test_a_record_of_another_library_has_no_fields() -> None:
    record = logging.LogRecord("x", logging.ERROR, __file__, 1, "plain %s", ("text",), None)
    assert ConsoleFormatter("r").format(record).endswith(" ERROR   r plain text")


@pytest.mark.parametrize(("verbose", "shown"), [(False, False), (True, True)])
def test_the_console_is_stderr_and_pages_are_shown_on_demand(
    capsys: pytest.CaptureFixture[str], verbose: bool, shown: bool
) -> None:
    configure_console("relay-1", verbose)
    log_event(events.LeadershipGained(1))
    log_event(events.PageRead(3))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "leadership_gained epoch=1" in captured.err
    assert ("page_read" in captured.err) is shown


def test_importing_the_module_configures_nothing() -> None:
    assert logger.handlers == []
    assert logger.propagate


def test_an_observer_may_ignore_everything() -> None:
    for event, *_ in SAMPLES:
        events.ignore(event)

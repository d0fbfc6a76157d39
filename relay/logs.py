"""Events as log records with a stable `action`; only the command line decides how records look and where they go.

An observer runs on the relay's own threads, the lease's among them, so a log must never hold one up: records go into a
bounded queue, and a thread of their own writes them. A terminal that is gone, a full disk or a reader that has stopped
costs lines (the next one that gets through says how many), never a message.
"""

import contextlib
import dataclasses
import json
import logging
import os
import queue
import re
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TextIO

from relay import events
from relay.events import Event

logger = logging.getLogger("outbox.relay")

REPEAT_SECONDS = 60.0
_FIRST = re.compile(r"(?<=[a-z])(?=[A-Z])")
_QUEUE_LINES = 5_000
_FLUSH_SECONDS = 1.0

_WARNINGS = frozenset(
    "cluster_moved configuration_noticed history_lost leadership_lost messages_dead queue_closed".split()
)
_BAD_ENDINGS = ("_unavailable", "_refused", "_failed")
_NOISE = frozenset(
    "database_connected lease_renewed page_published page_read position_advanced relay_woken window_opened".split()
)


def action_of(kind: type) -> str:
    """`BrokerUnavailable` → `broker_unavailable`: what operators search for and alert on."""
    return _FIRST.sub("_", kind.__name__).lower()


def level_of(action: str) -> int:
    if action in _NOISE:
        return logging.DEBUG
    return logging.WARNING if action in _WARNINGS or action.endswith(_BAD_ENDINGS) else logging.INFO


class EventLog:
    """The observer of one outbox. Of a warning that repeats itself, one a minute, with the number left out."""

    def __init__(self, outbox: str = "default", clock: Callable[[], float] = time.monotonic) -> None:
        self._outbox = outbox
        self._clock = clock
        self._lock = threading.Lock()
        self._said: dict[tuple[str, str], tuple[float, int]] = {}

    def __call__(self, event: Event) -> None:
        action = action_of(type(event))
        level = level_of(action)
        fields = {
            field.name: getattr(event, field.name)
            for field in dataclasses.fields(event)
            if field.metadata.get("logged", True)
        }
        if level >= logging.WARNING:
            left_out = self._left_out(action, fields)
            if left_out is None:
                return
            if left_out:
                fields["repeated"] = left_out
        elif isinstance(event, events.BrokerRecovered | events.LeadershipGained):
            self._forget()
        logger.log(level, action, extra={"action": action, "fields": fields, "outbox": self._outbox})

    def _left_out(self, action: str, fields: dict[str, Any]) -> int | None:
        """How many like this were left out since the last one said; None: leave this one out too."""
        # Numbers count up with every attempt; what makes it the same trouble is the text.
        text = " ".join(str(value) for value in fields.values() if isinstance(value, str))
        now = self._clock()
        with self._lock:
            if len(self._said) > 100:
                self._said.clear()
            said_at, left_out = self._said.get((action, text), (-REPEAT_SECONDS, 0))
            if now - said_at < REPEAT_SECONDS:
                self._said[action, text] = (said_at, left_out + 1)
                return None
            self._said[action, text] = (now, 0)
            return left_out

    def _forget(self) -> None:
        """It is over: the next outage is news again."""
        with self._lock:
            self._said.clear()


class ConsoleFormatter(logging.Formatter):
    """`12:00:01 INFO    relay-1 leadership_gained epoch=3`, with the outbox where there are several."""

    def __init__(self, name: str, several: bool = False) -> None:
        super().__init__(datefmt="%H:%M:%S")
        self._name = name
        self._several = several

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = getattr(record, "fields", {})
        name = f"{self._name}/{getattr(record, 'outbox', '-')}" if self._several else self._name
        words = [self.formatTime(record, self.datefmt), f"{record.levelname:<7}", name, _one_line(record.getMessage())]
        return " ".join(
            words + [f"{name}={_shown(value)}" for name, value in fields.items() if value not in ("", None)]
        )


class JsonFormatter(logging.Formatter):
    """One object a line: ts, level, relay, outbox, action, and the fields of the event."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "relay": self._name,
            "outbox": getattr(record, "outbox", None),
            "action": getattr(record, "action", "message"),
            "fields": getattr(record, "fields", None) or {"text": record.getMessage()},
        }
        return json.dumps(line, default=str)


def _one_line(text: str) -> str:
    return text if text.isprintable() else ascii(text)


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    text = str(value)
    return text if text.isprintable() and " " not in text else ascii(text)


class SteadyHandler(logging.Handler):
    """Writes on a thread of its own and gives up lines rather than time."""

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__()
        self._stream = stream
        self._lines: queue.Queue[str] = queue.Queue(_QUEUE_LINES)
        self._lost = 0
        self._counting = threading.Lock()
        threading.Thread(target=self._write_all, name="outbox-log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.put_nowait(self.format(record))
        except queue.Full:
            self._count(1)

    def flush(self) -> None:
        """At most a second: a reader that has stopped must not keep the process from ending."""
        until = time.monotonic() + _FLUSH_SECONDS
        with self._lines.all_tasks_done:
            while self._lines.unfinished_tasks and (left := until - time.monotonic()) > 0:
                self._lines.all_tasks_done.wait(left)

    def _count(self, lines: int) -> None:
        with self._counting:
            self._lost += lines

    def _write_all(self) -> None:
        while True:
            line = self._lines.get()
            lost = self._lost
            if self._written(f"{line}\n{self._loss(lost)}\n" if lost else f"{line}\n"):
                self._count(-lost)
            else:
                self._count(1)
            self._lines.task_done()

    def _loss(self, lines: int) -> str:
        record = logging.LogRecord(logger.name, logging.WARNING, "", 0, "log_lines_lost", (), None)
        record.__dict__.update(action="log_lines_lost", fields={"lines": lines})
        return self.format(record)

    def _written(self, text: str) -> bool:
        """Past Python's buffers: what cannot be written would stay in them and turn the exit code into 120."""
        if self._stream is None:
            return False
        # A terminal in LANG=C cannot show everything; an escaped letter is better than none.
        encoded = text.encode(self._stream.encoding or "ascii", "backslashreplace")
        with contextlib.suppress(OSError, ValueError):
            file = self._stream.fileno()
            while encoded:
                encoded = encoded[os.write(file, encoded) :]
        return not encoded


def configure_logs(name: str, *, form: str = "console", verbose: bool = False, several: bool = False) -> SteadyHandler:
    """All records of the relay to stderr. Call it once, from the command line."""
    handler = SteadyHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(name) if form == "json" else ConsoleFormatter(name, several))
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if verbose else logging.INFO)
    logger.propagate = False
    return handler

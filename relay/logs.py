"""Events as log records with a stable `action`; only the command line decides how records look."""

import dataclasses
import logging
import re
import sys

from relay.events import (
    BrokerUnavailable,
    DatabaseUnavailable,
    Event,
    LeadershipLost,
    PageRead,
    PositionAdvanced,
    WindowOpened,
)

logger = logging.getLogger("outbox.relay")

_FIRST = re.compile(r"(?<=[a-z])(?=[A-Z])")


def log_event(event: Event) -> None:
    """An observer: one record per event, noisy ones at debug level."""
    fields = dataclasses.asdict(event)
    action = _FIRST.sub("_", type(event).__name__).lower()
    logger.log(_level(event), action, extra={"action": action, "fields": fields})


def _level(event: Event) -> int:
    match event:
        case BrokerUnavailable() | DatabaseUnavailable() | LeadershipLost():
            return logging.WARNING
        case PageRead() | PositionAdvanced() | WindowOpened():
            return logging.DEBUG
        case _:
            return logging.INFO


class ConsoleFormatter(logging.Formatter):
    """`12:00:01 INFO  relay-1 leadership_gained epoch=3`"""

    def __init__(self, name: str) -> None:
        super().__init__(datefmt="%H:%M:%S")
        self._name = name

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = getattr(record, "fields", {})
        words = [self.formatTime(record, self.datefmt), f"{record.levelname:<7}", self._name, record.getMessage()]
        return " ".join(words + [f"{name}={_shown(value)}" for name, value in fields.items()])


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    text = str(value)
    return text if text.isprintable() and " " not in text else ascii(text)


def configure_console(name: str, verbose: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(ConsoleFormatter(name))
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if verbose else logging.INFO)
    logger.propagate = False

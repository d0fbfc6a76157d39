"""The relay's settings: one frozen object, checked when it is built. The environment is read only in `from_env`."""

import difflib
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from outbox.errors import ConfigurationError
from outbox.message import QUEUE_NAME
from outbox.statements import DEFAULT_SCHEMA, quoted_schema
from relay.database import libpq_url

_BROKERS = ("redis", "rediss", "valkey", "valkeys")

VARIABLES: dict[str, str] = {
    "OUTBOX_DATABASE_URL": "database_url",
    "OUTBOX_BROKER_URL": "broker_url",
    "OUTBOX_SCHEMA": "schema",
    "OUTBOX_RELAY_NAME": "name",
    "OUTBOX_LEASE_TTL": "lease_ttl",
    "OUTBOX_BATCH_SIZE": "batch_size",
    "OUTBOX_POLL_SECONDS": "poll_seconds",
    "OUTBOX_DEFAULT_QUEUE": "default_queue",
    "OUTBOX_BROKER_TIMEOUT": "broker_timeout",
    "OUTBOX_TRANSPORT": "transport",
    "OUTBOX_APP": "app",
    "OUTBOX_TASKS": "tasks",
    "OUTBOX_ORDERING_ON_DEAD": "ordering_on_dead",
    "OUTBOX_WAKEUP": "wakeup",
    "OUTBOX_ADOPT": "adopt",
    "OUTBOX_RETENTION_DAYS": "retention_days",
    "OUTBOX_HORIZON_DAYS": "horizon_days",
    "OUTBOX_HTTP": "http",
    "OUTBOX_LOG_FORMAT": "log_format",
}
"""Environment variable → setting."""

OTHER_VARIABLES = ("OUTBOX_POSTGRES_BIN", "OUTBOX_VALKEY_BIN")
"""Read elsewhere (relay/embedded), so not a mistake. Names below OUTBOX_TEST_ belong to the test-suite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings:
    """Everything a relay needs to know. Times are in seconds."""

    database_url: str = field(repr=False)
    broker_url: str = field(repr=False)
    schema: str = DEFAULT_SCHEMA
    name: str = field(default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}")
    """A label for logs and status; two relays may share it."""
    lease_ttl: float = 3.0
    """How long the lease outlives its holder: a frozen leader is replaced after this time."""
    batch_size: int = 500
    """Messages read, published and advanced over together."""
    poll_seconds: float = 0.1
    """The longest wait between two looks at an idle log; under load it is a hundredth of that."""
    default_queue: str = "celery"
    """Where messages without a queue go; the same as the workers' task_default_queue."""
    broker_timeout: float = 5.0
    """After this time without an answer the broker counts as down."""
    transport: str = "auto"
    """redis, amqp or kombu; auto chooses by the broker URL."""
    app: str | None = None
    """`module:attribute` of the Celery application: its routes, queues, default queue and transport options."""
    tasks: str = ""
    """Names or patterns (`billing.*`), separated by commas: any other task is refused as a dead letter. Empty: all."""
    ordering_on_dead: str = "block"
    """What the later messages of an ordering key do when one of them is dead: block (wait for a decision) or skip."""
    wakeup: str = "gate"
    """gate: writers notify a sleeping relay; poll: they never do, which PREPARE TRANSACTION needs."""
    adopt: str = "ask"
    """On a database that came from another cluster: ask stops, auto sets the position anew."""
    retention_days: float = 7.0
    """How long a finished message is kept."""
    horizon_days: float = 7.0
    """How long after its publication a copy may still run; receipts outlive it."""
    http: str = "127.0.0.1:9464"
    """Where /metrics, /livez and /readyz are served; empty: nowhere."""
    log_format: str = "console"
    holder: UUID = field(default_factory=uuid4)
    """Random per process: two relays are never the same holder, whatever they are called."""

    def __post_init__(self) -> None:
        libpq_url(self.database_url)
        quoted_schema(self.schema)
        _check_broker(self.broker_url)
        _check_range("lease_ttl (OUTBOX_LEASE_TTL)", self.lease_ttl, 0.5, 60)
        _check_range("batch_size (OUTBOX_BATCH_SIZE)", self.batch_size, 1, 10_000)
        _check_range("poll_seconds (OUTBOX_POLL_SECONDS)", self.poll_seconds, 0.001, 10)
        _check_range("broker_timeout (OUTBOX_BROKER_TIMEOUT)", self.broker_timeout, 0.1, 60)
        _check_choice("transport (OUTBOX_TRANSPORT)", self.transport, ("auto", "redis", "amqp", "kombu"))
        _check_choice("ordering_on_dead (OUTBOX_ORDERING_ON_DEAD)", self.ordering_on_dead, ("block", "skip"))
        _check_choice("wakeup (OUTBOX_WAKEUP)", self.wakeup, ("gate", "poll"))
        _check_choice("adopt (OUTBOX_ADOPT)", self.adopt, ("ask", "auto"))
        _check_choice("log_format (OUTBOX_LOG_FORMAT)", self.log_format, ("console", "json"))
        if not QUEUE_NAME.fullmatch(self.default_queue) or self.default_queue.startswith(("unacked", "_kombu")):
            raise ConfigurationError(f"default_queue (OUTBOX_DEFAULT_QUEUE) {self.default_queue!a} is not a queue name")
        if not self.name or not self.name.isprintable() or len(self.name) > 100:
            raise ConfigurationError("name (OUTBOX_RELAY_NAME) must be 1 to 100 printable characters")

    @classmethod
    def from_env(
        cls, environ: Mapping[str, str] | None = None, overrides: Mapping[str, str] | None = None
    ) -> "RelaySettings":
        """Settings from OUTBOX_* variables; `overrides` (command-line options, by setting) win."""
        values = {**read_environment(os.environ if environ is None else environ), **(overrides or {})}
        for variable in ("OUTBOX_DATABASE_URL", "OUTBOX_BROKER_URL"):
            if not values.get(VARIABLES[variable]):
                example = "postgresql://user@host/name" if "DATABASE" in variable else "redis://host:6379/0"
                raise ConfigurationError(f"{variable} is not set; the relay needs it, for example {variable}={example}")
        converted: dict[str, Any] = {name: _converted(name, value) for name, value in values.items()}
        return cls(**converted)


def read_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The settings among the variables; an unknown OUTBOX_ name is an error, because it is a typing mistake."""
    found = {}
    for variable, value in environ.items():
        if not variable.startswith("OUTBOX_") or variable.startswith("OUTBOX_TEST_") or variable in OTHER_VARIABLES:
            continue
        if variable not in VARIABLES:
            # Without the common beginning, which would make every name look alike.
            names = {known.removeprefix("OUTBOX_"): known for known in VARIABLES}
            close = difflib.get_close_matches(variable.removeprefix("OUTBOX_"), names, 1, cutoff=0.5)
            hint = f", did you mean {names[close[0]]}?" if close else f"; known are {', '.join(VARIABLES)}"
            raise ConfigurationError(f"unknown setting {variable}{hint}")
        found[VARIABLES[variable]] = value
    return found


def _converted(name: str, value: str) -> str | float | int:
    kinds: dict[str, type[int] | type[float]] = {
        "lease_ttl": float,
        "batch_size": int,
        "poll_seconds": float,
        "broker_timeout": float,
        "retention_days": float,
        "horizon_days": float,
    }
    if name not in kinds:
        return value
    try:
        return kinds[name](value)
    except ValueError:
        variable = f"OUTBOX_{name.upper()}"
        raise ConfigurationError(f"{name} ({variable}) is {value!a}, which is not a number") from None


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ConfigurationError(f"{name} is {value:g}; it must be between {low:g} and {high:g}")


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigurationError(f"{name} is {value!a}; it must be one of {', '.join(choices)}")


def _check_broker(url: str) -> None:
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in _BROKERS:
        # Only a plain word is repeated: what stands before "://" in a malformed URL may be a password.
        named = f" of {scheme}" if separator and re.fullmatch(r"[a-z+]{1,20}", scheme) else ""
        raise ConfigurationError(
            f"the broker URL{named} is not supported; give OUTBOX_BROKER_URL=redis://host:6379/0"
            f" ({', '.join(_BROKERS)})"
        )

"""The relay's settings: one frozen object, checked when it is built. The environment is read only in `from_env`;
what a file and the command line add to it is put together in relay/configuration.py."""

import difflib
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from outbox.errors import ConfigurationError
from outbox.message import QUEUE_NAME
from outbox.statements import DEFAULT_SCHEMA, quoted_schema
from relay.broker_url import transport_for
from relay.database import libpq_url

_LAST_PORT = 65535

RESIGN_SECONDS = 15.0
"""A leader that cannot publish for this long resigns if another relay reaches the broker."""

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
    "OUTBOX_RESIGN_SECONDS": "resign_seconds",
    "OUTBOX_I_KNOW": "i_know",
}
"""Environment variable → setting."""

OTHER_VARIABLES = ("OUTBOX_CONFIG", "OUTBOX_POSTGRES_BIN", "OUTBOX_VALKEY_BIN")
"""Read elsewhere (relay/configuration, relay/embedded): no mistakes. Names below OUTBOX_TEST_ belong to the tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings:
    """Everything a relay needs to know. Times are in seconds."""

    database_url: str = field(repr=False)
    broker_url: str = field(default="", repr=False)
    """May be left out if `app` is given."""
    schema: str = DEFAULT_SCHEMA
    name: str = field(default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}")
    """A label for logs and status; two relays may share it."""
    lease_ttl: float = 3.0
    """How long the lease outlives its holder: a frozen leader is replaced after this time."""
    batch_size: int = 1000
    """Messages read, published and advanced over together."""
    poll_seconds: float = 0.1
    """The longest wait between two looks at an idle log; under load it is a hundredth of that."""
    default_queue: str = "celery"
    """Where messages without a queue go; the same as the workers' task_default_queue."""
    broker_timeout: float = 5.0
    """After this time without an answer the broker counts as down."""
    resign_seconds: float = RESIGN_SECONDS
    """A leader that could not publish for this long resigns, if another relay reaches the broker."""
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
    i_know: bool = False
    """Start also with a broker that only kombu speaks to and that we cannot vouch for."""
    holder: UUID = field(default_factory=uuid4)
    """Random per process: two relays are never the same holder, whatever they are called."""

    def __post_init__(self) -> None:
        libpq_url(self.database_url)
        quoted_schema(self.schema)
        if self.broker_url or not self.app:  # else the application's, when it is loaded
            transport_for(self.broker_url, self.transport, self.i_know)
        _check_range("lease_ttl (OUTBOX_LEASE_TTL)", self.lease_ttl, 0.5, 60)
        _check_range("batch_size (OUTBOX_BATCH_SIZE)", self.batch_size, 1, 10_000)
        _check_range("poll_seconds (OUTBOX_POLL_SECONDS)", self.poll_seconds, 0.001, 10)
        _check_range("broker_timeout (OUTBOX_BROKER_TIMEOUT)", self.broker_timeout, 0.1, 60)
        _check_range("resign_seconds (OUTBOX_RESIGN_SECONDS)", self.resign_seconds, 1, 3600)
        _check_choice("transport (OUTBOX_TRANSPORT)", self.transport, ("auto", "redis", "amqp", "kombu"))
        _check_choice("ordering_on_dead (OUTBOX_ORDERING_ON_DEAD)", self.ordering_on_dead, ("block", "skip"))
        _check_choice("wakeup (OUTBOX_WAKEUP)", self.wakeup, ("gate", "poll"))
        _check_choice("adopt (OUTBOX_ADOPT)", self.adopt, ("ask", "auto"))
        _check_choice("log_format (OUTBOX_LOG_FORMAT)", self.log_format, ("console", "json"))
        _check_range("retention_days (OUTBOX_RETENTION_DAYS)", self.retention_days, 0, 3650)
        _check_range("horizon_days (OUTBOX_HORIZON_DAYS)", self.horizon_days, 0.001, 3650)
        http_address(self.http)
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
            if not values.get(VARIABLES[variable]) and not ("BROKER" in variable and values.get("app")):
                example = "postgresql://user@host/name" if "DATABASE" in variable else "redis://host:6379/0"
                raise ConfigurationError(f"{variable} is not set; the relay needs it, for example {variable}={example}")
        converted: dict[str, Any] = {name: converted_setting(name, value) for name, value in values.items()}
        return cls(**converted)

    def notices(self) -> tuple[str, ...]:
        """Settings that are allowed and yet seldom meant, each with what follows from it."""
        found = []
        if self.retention_days < self.horizon_days:
            found.append(
                f"retention_days ({self.retention_days:g}) is shorter than horizon_days ({self.horizon_days:g}):"
                " receipts stay for the horizon, but a message can be neither traced nor replayed once it is pruned"
            )
        if self.broker_timeout > self.resign_seconds:
            found.append(
                f"broker_timeout ({self.broker_timeout:g}) is longer than resign_seconds ({self.resign_seconds:g}),"
                " after which a leader without a broker makes way for another: it will notice late"
            )
        return tuple(found)


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


_NUMBERS: dict[str, type[int] | type[float]] = {
    "lease_ttl": float,
    "batch_size": int,
    "poll_seconds": float,
    "broker_timeout": float,
    "resign_seconds": float,
    "retention_days": float,
    "horizon_days": float,
}
_SWITCHES = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def variable_of(name: str) -> str:
    return next(variable for variable, setting in VARIABLES.items() if setting == name)


def converted_setting(name: str, value: object) -> str | float | int | bool:
    """A value as the setting has it: text from the environment, or what TOML makes of it."""
    label = f"{name} ({variable_of(name)})"
    if name in _NUMBERS:
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            raise ConfigurationError(f"{label} must be a number, not {type(value).__name__}")
        try:
            return _NUMBERS[name](value)
        except (ValueError, OverflowError):
            raise ConfigurationError(f"{label} is {value!a}, which is not a number") from None
    if name == "i_know":
        switch = value if isinstance(value, bool) else _SWITCHES.get(str(value).lower())
        if switch is None:
            raise ConfigurationError(f"{label} must be true or false")
        return switch
    if name == "tasks" and isinstance(value, list) and all(isinstance(each, str) for each in value):
        return ",".join(value)
    if not isinstance(value, str):
        # The value is not repeated: it may be half of a URL.
        raise ConfigurationError(f"{label} must be text, not {type(value).__name__}")
    return value


def http_address(text: str) -> tuple[str, int] | None:
    """Host and port of `127.0.0.1:9464`, `[::1]:9464` or `:9464` (every address); None for empty: nothing is served."""
    if not text:
        return None
    host, colon, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    right = colon and port.isascii() and port.isdecimal() and int(port) <= _LAST_PORT and bare.isprintable()
    if not right or (":" in host and bare == host) or any(mark in bare for mark in "/@ []"):
        raise ConfigurationError(
            f"http (OUTBOX_HTTP) {text[:60]!a} is not an address; write host:port, for example 127.0.0.1:9464 (port 0"
            " to 65535), or leave it empty to serve nothing"
        )
    return bare, int(port)


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ConfigurationError(f"{name} is {value:g}; it must be between {low:g} and {high:g}")


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigurationError(f"{name} is {value!a}; it must be one of {', '.join(choices)}")

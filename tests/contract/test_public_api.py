"""The public surface, to the letter: whoever changes it must change this file too, and mean it."""

import dataclasses
import inspect
from collections.abc import Callable
from importlib.metadata import entry_points
from types import ModuleType

import pytest

import consumers
import outbox
import relay
from consumers import Delivery, Inbox, consumer
from outbox import Added, Message, Outbox
from outbox.errors import (
    ConfigurationError,
    HandlerMisuse,
    InvalidMessage,
    NotInTransaction,
    OutboxError,
    SchemaMismatch,
    Unreachable,
)
from relay import Relay, RelaySettings
from relay.cli import commands, exit_code
from relay.settings import OTHER_VARIABLES, VARIABLES
from tests.contract.source_tree import ROOT

PUBLIC = {
    outbox: "Added ConfigurationError HandlerMisuse InvalidMessage Message NotInTransaction Outbox OutboxError"
    " SchemaMismatch Unreachable",
    relay: "Relay RelaySettings",
    consumers: "Delivery Inbox consumer",
}
EXIT_CODES = {
    ConfigurationError: 2,
    SchemaMismatch: 4,
    Unreachable: 5,
    InvalidMessage: 1,
    HandlerMisuse: 1,
    NotInTransaction: 1,
    OutboxError: 1,
}


def shape(called: Callable[..., object]) -> str:
    """Names, kinds and defaults of the parameters; their types are mypy's affair."""
    signature = inspect.signature(called)
    bare = [parameter.replace(annotation=parameter.empty) for parameter in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=signature.empty))


def field_names(kind: type) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


@pytest.mark.parametrize("package", PUBLIC, ids=lambda package: package.__name__)
def test_the_public_names_are_these_and_sorted(package: ModuleType) -> None:
    assert package.__all__ == PUBLIC[package].split()
    assert package.__all__ == sorted(package.__all__)
    assert all(hasattr(package, name) for name in package.__all__)


@pytest.mark.parametrize("package", PUBLIC, ids=lambda package: package.__name__)
def test_types_are_shipped_with_each_package(package: ModuleType) -> None:
    assert (ROOT / package.__name__ / "py.typed").is_file()


@pytest.mark.parametrize(
    ("called", "expected"),
    [
        (Outbox, "(schema='public')"),
        (Outbox.add, "(self, session, message)"),
        (Message, "(task, args=(), kwargs=<factory>, queue=None, priority=None, headers=<factory>)"),
        (Inbox, "(sessions, *, schema='public', receipt_timeout=datetime.timedelta(seconds=300))"),
        (consumer, "(app, inbox, *, name)"),
        (RelaySettings.from_env, "(environ=None, overrides=None)"),
        (Relay.run, "(self)"),
        (Relay.stop, "(self)"),
    ],
    ids=lambda value: getattr(value, "__qualname__", ""),
)
def test_a_signature_stays_as_it_is(called: Callable[..., object], expected: str) -> None:
    assert shape(called) == expected


def test_a_relay_is_made_from_settings_and_an_observer() -> None:
    assert list(inspect.signature(Relay).parameters) == ["settings", "observer"]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Message, "task args kwargs queue priority headers"),
        (Added, "id duplicate"),
        (
            Delivery,
            "id consumer attempt publication headers from_outbox body_hash published_at epoch relay",
        ),
        (
            RelaySettings,
            "database_url broker_url schema name lease_ttl batch_size poll_seconds default_queue broker_timeout holder",
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_fields_stay_as_they_are(kind: type, expected: str) -> None:
    assert field_names(kind) == expected.split()


@pytest.mark.parametrize("kind", [Message, Added, Delivery, RelaySettings])
def test_values_are_frozen(kind: type) -> None:
    assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]


def test_a_delivery_offers_an_idempotency_key() -> None:
    assert isinstance(inspect.getattr_static(Delivery, "idempotency_key"), property)


def test_every_setting_has_its_variable() -> None:
    assert VARIABLES == {
        "OUTBOX_DATABASE_URL": "database_url",
        "OUTBOX_BROKER_URL": "broker_url",
        "OUTBOX_SCHEMA": "schema",
        "OUTBOX_RELAY_NAME": "name",
        "OUTBOX_LEASE_TTL": "lease_ttl",
        "OUTBOX_BATCH_SIZE": "batch_size",
        "OUTBOX_POLL_SECONDS": "poll_seconds",
        "OUTBOX_DEFAULT_QUEUE": "default_queue",
        "OUTBOX_BROKER_TIMEOUT": "broker_timeout",
    }
    # The holder is drawn anew by each process; nobody may configure it.
    assert set(field_names(RelaySettings)) - set(VARIABLES.values()) == {"holder"}
    assert OTHER_VARIABLES == ("OUTBOX_POSTGRES_BIN", "OUTBOX_VALKEY_BIN")


def test_the_commands_are_these() -> None:
    assert sorted(commands.commands) == ["demo", "migrate", "relay", "status", "version"]


def test_the_command_line_is_installed_under_both_names() -> None:
    [script] = entry_points(group="console_scripts", name="outbox")
    [plugin] = entry_points(group="celery.commands", name="outbox")
    assert (script.value, plugin.value) == ("relay.cli:main", "relay.cli:commands")
    assert plugin.load() is commands


@pytest.mark.parametrize("error", EXIT_CODES, ids=lambda error: error.__name__)
def test_an_error_has_its_exit_code(error: type[OutboxError]) -> None:
    assert exit_code(error("why")) == EXIT_CODES[error]


def test_every_error_is_in_the_tree_and_has_an_exit_code() -> None:
    found = {value for value in vars(outbox.errors).values() if inspect.isclass(value)}
    assert found == set(EXIT_CODES)
    assert all(issubclass(error, OutboxError) for error in found)


def test_errors_can_be_caught_as_their_builtin_kind() -> None:
    assert issubclass(InvalidMessage, ValueError)
    assert issubclass(ConfigurationError, ValueError)
    assert issubclass(Unreachable, ConnectionError)

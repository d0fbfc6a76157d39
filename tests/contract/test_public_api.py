"""The public surface, to the letter: whoever changes it must change this file too, and mean it."""

import dataclasses
import inspect
import re
from collections.abc import Callable
from enum import StrEnum
from importlib.metadata import entry_points
from types import ModuleType
from uuid import UUID

import pytest

import consumers
import outbox
import relay
from consumers import Delivery, Inbox, consumer
from outbox import (
    Added,
    AddedBatch,
    AsyncOutbox,
    BatchProgress,
    Cancellation,
    CancelOutcome,
    Existing,
    Message,
    Outbox,
    Rejected,
    State,
    fingerprint,
)
from outbox.errors import (
    ConfigurationError,
    DedupConflict,
    HandlerMisuse,
    InvalidMessage,
    NotInTransaction,
    NotSupported,
    OutboxError,
    SchemaMismatch,
    Unreachable,
)
from outbox.message import Options
from relay import Relay, RelaySettings
from relay.cli import commands, exit_code
from relay.settings import OTHER_VARIABLES, VARIABLES
from tests.contract.source_tree import ROOT

PUBLIC = {
    outbox: "Added AddedBatch AsyncOutbox BatchProgress CancelOutcome Cancellation ConfigurationError DedupConflict"
    " Existing HandlerMisuse InvalidMessage Message NotInTransaction NotSupported Outbox OutboxError Rejected"
    " SchemaMismatch State Unreachable fingerprint",
    relay: "Relay RelaySettings",
    consumers: "Delivery Inbox consumer",
}
EXIT_CODES = {
    ConfigurationError: 2,
    SchemaMismatch: 4,
    Unreachable: 5,
    InvalidMessage: 1,
    DedupConflict: 1,
    NotSupported: 1,
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
        (Outbox, "(schema='public', *, max_payload=262144, encoders=None, tasks=None, queues=None, observer=None)"),
        (Outbox.add, "(self, session, message, **options)"),
        (Outbox.add_many, "(self, session, messages, *, chunk_size=500, batch_id=None)"),
        (Outbox.cancel, "(self, session, message_id)"),
        (Outbox.state, "(self, session, message_id)"),
        (Outbox.batch_progress, "(self, session, batch_id)"),
        (Outbox.rejected, "(self, session, unique_key=None, *, limit=100)"),
        (fingerprint, "(task, payload, fields=None)"),
        (
            Message,
            "(task, args=(), kwargs=<factory>, queue=None, priority=None, headers=<factory>, dedup_key=None,"
            " dedup_window=None, unique_key=None, ordering_key=None, due_at=None, delay=None, expires_at=None,"
            " expires_in=None)",
        ),
        (Inbox, "(sessions, *, schema='public', receipt_timeout=datetime.timedelta(seconds=300))"),
        (consumer, "(app, inbox, *, name)"),
        (RelaySettings.from_env, "(environ=None, overrides=None)"),
        (Relay.run, "(self, *, once=False)"),
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
        (
            Message,
            "task args kwargs queue priority headers dedup_key dedup_window unique_key ordering_key due_at delay"
            " expires_at expires_in",
        ),
        (Added, "id duplicate existing"),
        (AddedBatch, "id added"),
        (Existing, "id state"),
        (Cancellation, "id outcome state"),
        (BatchProgress, "id states"),
        (Rejected, "unique_key live_id count first_at last_at"),
        (
            Delivery,
            "id consumer attempt publication headers from_outbox body_hash published_at epoch relay",
        ),
        (
            RelaySettings,
            "database_url broker_url schema name lease_ttl batch_size poll_seconds default_queue broker_timeout"
            " resign_seconds transport app tasks ordering_on_dead wakeup adopt retention_days horizon_days http"
            " log_format i_know holder",
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_fields_stay_as_they_are(kind: type, expected: str) -> None:
    assert field_names(kind) == expected.split()


def public_methods(kind: type) -> dict[str, Callable[..., object]]:
    return {name: value for name, value in vars(kind).items() if inspect.isfunction(value) and name[0] != "_"}


def test_the_outbox_has_these_methods_and_its_async_twin_has_the_same() -> None:
    plain, awaited = public_methods(Outbox), public_methods(AsyncOutbox)
    assert sorted(plain) == sorted(awaited) == "add add_many batch_progress cancel rejected state".split()
    for name, method in plain.items():
        # With the types, as written: what a checker accepts for the one it accepts for the other.
        assert inspect.signature(method) == inspect.signature(awaited[name]), name
        assert not inspect.iscoroutinefunction(method)
        assert inspect.iscoroutinefunction(awaited[name])
    assert inspect.signature(Outbox) == inspect.signature(AsyncOutbox)


def test_each_method_is_documented_once() -> None:
    assert all(method.__doc__ for method in public_methods(Outbox).values())


def test_add_takes_the_fields_of_a_message_as_keywords() -> None:
    fields = {field.name: field.type for field in dataclasses.fields(Message)}
    assert Options.__annotations__ == {name: kind for name, kind in fields.items() if name != "task"}
    assert Options.__optional_keys__ == set(fields) - {"task"}
    assert "options: Unpack[Options]" in inspect.getsource(Outbox.add)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (
            State,
            "scheduled queued published running retrying applied dead cancelled expired discarded unknown",
        ),
        (CancelOutcome, "cancelled running finished too_late unknown"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_words_stay_as_they_are(kind: type[StrEnum], expected: str) -> None:
    assert [str(member) for member in kind] == expected.split()
    assert [member.name.lower() for member in kind] == expected.split()


@pytest.mark.parametrize(
    "kind",
    [Message, Added, AddedBatch, Existing, Cancellation, BatchProgress, Rejected, Delivery, RelaySettings],
)
def test_values_are_frozen(kind: type) -> None:
    assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]


def test_a_delivery_offers_an_idempotency_key() -> None:
    assert isinstance(inspect.getattr_static(Delivery, "idempotency_key"), property)


def test_every_setting_has_its_variable() -> None:
    # The holder is drawn anew by each process; nobody may configure it.
    assert set(field_names(RelaySettings)) - set(VARIABLES.values()) == {"holder"}
    odd = {"OUTBOX_RELAY_NAME": "name"}
    assert {variable: f"{odd.get(variable, variable[7:].lower())}" for variable in VARIABLES} == VARIABLES
    assert OTHER_VARIABLES == ("OUTBOX_CONFIG", "OUTBOX_POSTGRES_BIN", "OUTBOX_VALKEY_BIN")
    page = (ROOT / "docs" / "reference.md").read_text()
    assert set(re.findall(r"^\| `(OUTBOX_\w+)` \|", page, re.M)) == set(VARIABLES)


def test_the_commands_are_these() -> None:
    assert sorted(commands.commands) == "config demo migrate pause prune relay resume status version".split()


def test_the_command_line_is_installed_under_both_names() -> None:
    [script] = entry_points(group="console_scripts", name="outbox")
    [plugin] = entry_points(group="celery.commands", name="outbox")
    assert (script.value, plugin.value) == ("relay.cli:main", "relay.cli:commands")
    assert plugin.load() is commands


@pytest.mark.parametrize("error", EXIT_CODES, ids=lambda error: error.__name__)
def test_an_error_has_its_exit_code(error: type[OutboxError]) -> None:
    made = DedupConflict("why", UUID(int=7)) if error is DedupConflict else error("why")
    assert exit_code(made) == EXIT_CODES[error]
    assert str(made) == "why"


def test_every_error_is_in_the_tree_and_has_an_exit_code() -> None:
    found = {value for value in vars(outbox.errors).values() if inspect.isclass(value) and value is not UUID}
    assert found == set(EXIT_CODES)
    assert all(issubclass(error, OutboxError) for error in found)


def test_errors_can_be_caught_as_their_builtin_kind() -> None:
    assert issubclass(InvalidMessage, ValueError)
    assert issubclass(ConfigurationError, ValueError)
    assert issubclass(Unreachable, ConnectionError)


def test_a_conflict_names_the_message_that_was_there() -> None:
    assert DedupConflict("why", UUID(int=7)).existing == UUID(int=7)

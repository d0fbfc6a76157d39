from typing import Any

import pytest

from outbox.errors import ConfigurationError
from relay.settings import VARIABLES, RelaySettings, read_environment

DATABASE = "postgresql://app:hunter2@db:5432/shop"
BROKER = "redis://:hunter2@broker:6379/0"
ENVIRONMENT = {"OUTBOX_DATABASE_URL": DATABASE, "OUTBOX_BROKER_URL": BROKER}


def settings(**changes: Any) -> RelaySettings:
    return RelaySettings(**({"database_url": DATABASE, "broker_url": BROKER} | changes))


def refusal(**changes: Any) -> str:
    with pytest.raises(ConfigurationError) as refused:
        settings(**changes)
    return str(refused.value)


def environment_refusal(environ: dict[str, str]) -> str:
    with pytest.raises(ConfigurationError) as refused:
        RelaySettings.from_env(environ)
    return str(refused.value)


def test_two_relays_are_never_the_same_holder() -> None:
    assert settings().holder != settings().holder


def test_no_password_is_shown() -> None:
    for shown in (repr(settings()), str(settings()), f"{settings()}"):
        assert "hunter2" not in shown
        assert "broker" not in shown.replace("broker_timeout", "")


@pytest.mark.parametrize("scheme", ["redis", "rediss", "valkey", "valkeys", "amqp", "amqps"])
def test_a_broker_is_accepted(scheme: str) -> None:
    assert settings(broker_url=f"{scheme}://h/0").broker_url == f"{scheme}://h/0"


@pytest.mark.parametrize(
    ("url", "named"), [("ftp://u:hunter2@h//", " of ftp"), ("", ""), ("u:hunter2@h", ""), ("hunter2!://h", "")]
)
def test_another_broker_is_refused(url: str, named: str) -> None:
    said = refusal(broker_url=url)
    assert said.startswith(f"the broker URL{named} is not supported; give OUTBOX_BROKER_URL=redis://host:6379/0")
    assert "hunter2" not in said


def test_b19_a_broker_that_nobody_tested_is_named_and_needs_a_word() -> None:
    assert "--i-know" in refusal(broker_url="sqs://u:hunter2@h")
    assert settings(broker_url="sqs://u:hunter2@h", i_know=True).i_know


@pytest.mark.parametrize("url", ["mysql://u:hunter2@h/d", "", "host=h password=hunter2", "postgresql:/u:hunter2@h"])
def test_another_database_is_refused_without_showing_it(url: str) -> None:
    assert refusal(database_url=url) == (
        "the database URL does not start with postgresql:// ; give OUTBOX_DATABASE_URL="
        "postgresql://user@host:5432/name (PostgreSQL is the only database supported)"
    )


@pytest.mark.parametrize(
    ("name", "variable", "low", "high", "shown"),
    [
        ("lease_ttl", "OUTBOX_LEASE_TTL", 0.5, 60, "between 0.5 and 60"),
        ("batch_size", "OUTBOX_BATCH_SIZE", 1, 10_000, "between 1 and 10000"),
        ("poll_seconds", "OUTBOX_POLL_SECONDS", 0.001, 10, "between 0.001 and 10"),
        ("broker_timeout", "OUTBOX_BROKER_TIMEOUT", 0.1, 60, "between 0.1 and 60"),
    ],
)
def test_a_number_has_its_range(name: str, variable: str, low: float, high: float, shown: str) -> None:
    assert getattr(settings(**{name: low}), name) == low
    assert getattr(settings(**{name: high}), name) == high
    for wrong in (low - 0.0005, high + 1, float("nan"), float("inf"), -1):
        assert refusal(**{name: wrong}) == f"{name} ({variable}) is {wrong:g}; it must be {shown}"


@pytest.mark.parametrize("queue", ["", "a b", "mail\x06\x163", "é"])
def test_a_wrong_default_queue_is_refused(queue: str) -> None:
    assert refusal(default_queue=queue) == f"default_queue (OUTBOX_DEFAULT_QUEUE) {queue!a} is not a queue name"


@pytest.mark.parametrize("name", ["", "a\nb", "\x1b[31m", "n" * 101])
def test_a_wrong_name_is_refused(name: str) -> None:
    assert refusal(name=name) == "name (OUTBOX_RELAY_NAME) must be 1 to 100 printable characters"


def test_a_wrong_schema_is_refused() -> None:
    assert refusal(schema="pg_x") == "schema name 'pg_x' is reserved by PostgreSQL; choose another name"


def test_every_variable_reaches_its_setting() -> None:
    found = RelaySettings.from_env(
        ENVIRONMENT
        | {
            "OUTBOX_SCHEMA": "shop",
            "OUTBOX_RELAY_NAME": "relay-1",
            "OUTBOX_LEASE_TTL": "2.5",
            "OUTBOX_BATCH_SIZE": "100",
            "OUTBOX_POLL_SECONDS": "0.2",
            "OUTBOX_DEFAULT_QUEUE": "orders",
            "OUTBOX_BROKER_TIMEOUT": "4",
        }
    )
    assert (found.database_url, found.broker_url, found.schema, found.name) == (DATABASE, BROKER, "shop", "relay-1")
    assert (found.lease_ttl, found.batch_size, found.poll_seconds) == (2.5, 100, 0.2)
    assert (found.default_queue, found.broker_timeout) == ("orders", 4.0)


def test_only_what_is_set_is_read() -> None:
    assert RelaySettings.from_env(ENVIRONMENT).lease_ttl == settings().lease_ttl
    assert read_environment(ENVIRONMENT | {"HOME": "/", "MY_OUTBOX_X": "1"}) == {
        "database_url": DATABASE,
        "broker_url": BROKER,
    }


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in ENVIRONMENT.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("OUTBOX_RELAY_NAME", "from here")
    assert RelaySettings.from_env().name == "from here"


def test_the_command_line_wins() -> None:
    found = RelaySettings.from_env(ENVIRONMENT | {"OUTBOX_RELAY_NAME": "a"}, overrides={"name": "b", "batch_size": "7"})
    assert (found.name, found.batch_size) == ("b", 7)


@pytest.mark.parametrize("empty", [{}, {"OUTBOX_DATABASE_URL": ""}])
def test_a_database_must_be_named(empty: dict[str, str]) -> None:
    assert environment_refusal({"OUTBOX_BROKER_URL": BROKER} | empty) == (
        "OUTBOX_DATABASE_URL is not set; the relay needs it, for example"
        " OUTBOX_DATABASE_URL=postgresql://user@host/name"
    )


def test_a_broker_must_be_named() -> None:
    assert environment_refusal({"OUTBOX_DATABASE_URL": DATABASE}) == (
        "OUTBOX_BROKER_URL is not set; the relay needs it, for example OUTBOX_BROKER_URL=redis://host:6379/0"
    )


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("OUTBOX_DATABSE_URL", "OUTBOX_DATABASE_URL"),
        ("OUTBOX_BROKER", "OUTBOX_BROKER_URL"),
        ("OUTBOX_LEASE_TTLS", "OUTBOX_LEASE_TTL"),
        ("OUTBOX_QUEUE_DEFAULT", "OUTBOX_DEFAULT_QUEUE"),
    ],
)
def test_a_misspelt_variable_is_an_error_with_a_suggestion(variable: str, meant: str) -> None:
    assert environment_refusal(ENVIRONMENT | {variable: "hunter2"}) == (
        f"unknown setting {variable}, did you mean {meant}?"
    )


def test_an_unknown_variable_lists_the_known_ones() -> None:
    unknown = "OUTBOX_KAFKA_BOOTSTRAP_SERVERS"
    assert environment_refusal({unknown: "hunter2"}) == f"unknown setting {unknown}; known are {', '.join(VARIABLES)}"


@pytest.mark.parametrize("variable", ["OUTBOX_POSTGRES_BIN", "OUTBOX_VALKEY_BIN", "OUTBOX_TEST_ANYTHING"])
def test_variables_read_elsewhere_are_no_mistake(variable: str) -> None:
    assert RelaySettings.from_env(ENVIRONMENT | {variable: "/x"}).schema == "public"


@pytest.mark.parametrize("variable", ["LEASE_TTL", "BATCH_SIZE", "POLL_SECONDS", "BROKER_TIMEOUT"])
@pytest.mark.parametrize("value", ["", "soon", "1,5", "é"])
def test_what_is_no_number_is_refused(variable: str, value: str) -> None:
    assert environment_refusal(ENVIRONMENT | {f"OUTBOX_{variable}": value}) == (
        f"{variable.lower()} (OUTBOX_{variable}) is {value!a}, which is not a number"
    )

"""Mistakes that an operator makes: one line that says what to do, the right exit code, no traceback, no password."""

import socket
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from relay.cli import commands

DATABASE = "postgresql://app:hunter2@127.0.0.1:1/shop"
BROKER = "redis://:hunter2@127.0.0.1:1/0"
BOTH = {"OUTBOX_DATABASE_URL": DATABASE, "OUTBOX_BROKER_URL": BROKER}


@pytest.fixture
def nowhere() -> Iterator[str]:
    """The URL of a database that refuses every connection at once."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"postgresql://app:hunter2@127.0.0.1:{taken.getsockname()[1]}/shop"


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATABASE_URL", "BROKER_URL", "SCHEMA", "RELAY_NAME"):
        monkeypatch.delenv(f"OUTBOX_{name}", raising=False)


def run(*arguments: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(commands, arguments, env=env, prog_name="outbox")


def assert_refused(result: Result, code: int, expected: str) -> None:
    assert result.exit_code == code
    assert result.stdout == ""
    [line] = result.stderr.splitlines()
    assert line.startswith(f"outbox: {expected}")
    assert "hunter2" not in line


@pytest.mark.parametrize("command", ["migrate", "status"])
def test_a_missing_database_is_a_configuration_error(command: str) -> None:
    assert_refused(run(command), 2, "OUTBOX_DATABASE_URL is not set; for example OUTBOX_DATABASE_URL=postgresql://")


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, "OUTBOX_DATABASE_URL is not set; the relay needs it"),
        ({"OUTBOX_DATABASE_URL": DATABASE}, "OUTBOX_BROKER_URL is not set; the relay needs it"),
        (BOTH | {"OUTBOX_DATABASE_URL": "mysql://u:hunter2@h/d"}, "the database URL does not start with postgresql://"),
        (BOTH | {"OUTBOX_BROKER_URL": "ftp://u:hunter2@h"}, "the broker URL of ftp is not supported"),
        (BOTH | {"OUTBOX_BROKER_URL": "redis://:hunter2@[::1"}, "OUTBOX_BROKER_URL is malformed"),
        (BOTH | {"OUTBOX_LEASE_TTL": "soon"}, "lease_ttl (OUTBOX_LEASE_TTL) is 'soon', which is not a number"),
        (BOTH | {"OUTBOX_LEASE_TTL": "0"}, "lease_ttl (OUTBOX_LEASE_TTL) is 0; it must be between"),
        (BOTH | {"OUTBOX_LEASE_TL": "3"}, "unknown setting OUTBOX_LEASE_TL, did you mean OUTBOX_LEASE_TTL?"),
        (BOTH | {"OUTBOX_SCHEMA": "pg_x"}, "schema name 'pg_x' is reserved by PostgreSQL"),
        (BOTH | {"OUTBOX_RELAY_NAME": "a\nb"}, "name (OUTBOX_RELAY_NAME) must be 1 to 100 printable characters"),
        (BOTH | {"OUTBOX_DEFAULT_QUEUE": "a b"}, "default_queue (OUTBOX_DEFAULT_QUEUE) 'a b' is not a queue name"),
    ],
)
def test_a_relay_does_not_start_on_a_bad_configuration(env: dict[str, str], expected: str) -> None:
    assert_refused(run("relay", env=env), 2, expected)


@pytest.mark.parametrize("command", ["migrate", "status"])
def test_a_misspelt_variable_stops_every_command(command: str) -> None:
    env = {"OUTBOX_DATABASE_URL": DATABASE, "OUTBOX_SHEMA": "hunter2"}
    assert_refused(run(command, env=env), 2, "unknown setting OUTBOX_SHEMA, did you mean OUTBOX_SCHEMA?")


def test_another_database_is_a_configuration_error() -> None:
    for command in ("migrate", "status"):
        env = {"OUTBOX_DATABASE_URL": "mysql://u:hunter2@h/d"}
        assert_refused(run(command, env=env), 2, "the database URL does not start with postgresql://")


@pytest.mark.parametrize("arguments", [("migrate",), ("migrate", "--status"), ("status",), ("status", "--json")])
def test_a_database_that_does_not_answer_has_its_own_exit_code(nowhere: str, arguments: tuple[str, ...]) -> None:
    result = run(*arguments, env={"OUTBOX_DATABASE_URL": nowhere})
    assert_refused(result, 5, "cannot connect to PostgreSQL at postgresql://127.0.0.1:")


@pytest.mark.parametrize("schema", ["pg_x", "x" * 64, "a\nb"])
def test_a_wrong_schema_is_a_configuration_error(schema: str) -> None:
    assert_refused(run("migrate", "--sql", "--schema", schema), 2, "schema name ")


def test_the_demo_on_other_servers_needs_their_addresses() -> None:
    result = run("demo", "--external")
    assert result.exit_code == 2
    assert result.stderr.startswith("outbox: --external needs OUTBOX_DATABASE_URL and OUTBOX_BROKER_URL")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [("nonsense",), ("relay", "--nonsense"), ("demo", "--orders", "1"), ("demo", "--rate", "fast")]
)
def test_a_usage_mistake_exits_2_and_says_where_help_is(arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Usage: outbox" in result.stderr
    assert "Traceback" not in result.stderr


def test_the_sql_of_a_migration_needs_no_server() -> None:
    result = run("migrate", "--sql", "--schema", 'my "outbox"')
    assert (result.exit_code, result.stderr) == (0, "")
    assert 'CREATE SCHEMA IF NOT EXISTS "my ""outbox"""' in result.stdout
    assert "CREATE TABLE outbox_message (" in result.stdout


def test_the_version_is_one_line() -> None:
    result = run("version")
    assert result.exit_code == 0
    assert result.stdout.startswith("celery-outbox-relay ")
    assert result.stdout.count("\n") == 1


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_lists_every_command(option: str) -> None:
    result = run(option)
    assert result.exit_code == 0
    assert all(f"  {name} " in result.stdout for name in commands.commands)


@pytest.mark.parametrize("command", ["migrate", "relay", "status"])
def test_help_shows_the_default_schema(command: str) -> None:
    assert "default: (public)" in run(command, "--help").stdout

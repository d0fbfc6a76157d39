"""What cannot work ends in one clear line with the right exit code: no traceback, no password."""

from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
import pytest
from click.testing import CliRunner

from relay import migrate
from relay.cli import commands
from relay.embedded import Postgres, free_port
from tests.migrations.catalog import object_names
from tests.support.processes import Programs, wait_for_exit

SECRET = "s3cret-word"


@dataclass(frozen=True)
class Guarded:
    """A server with a database `shop` and roles of several powers; `locked` needs a password."""

    port: int

    def url(self, role: str, database: str = "shop", password: str = SECRET) -> str:
        return f"postgresql://{role}:{password}@127.0.0.1:{self.port}/{database}"


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    with Postgres(settings={"fsync": False}) as postgres:
        rules = postgres.data / "pg_hba.conf"
        rules.write_text("host all locked 127.0.0.1/32 scram-sha-256\n" + rules.read_text())
        with psycopg.connect(postgres.url(), autocommit=True) as admin:
            admin.execute("CREATE DATABASE shop")
            admin.execute("CREATE ROLE weak LOGIN")
            admin.execute("CREATE ROLE owner LOGIN")
            admin.execute("CREATE ROLE locked LOGIN PASSWORD 'the-right-one'")
            admin.execute("SELECT pg_reload_conf()")
        with psycopg.connect(postgres.url("shop")) as admin:
            admin.execute("CREATE SCHEMA owned AUTHORIZATION owner")
        yield Guarded(postgres.port)


def refused(url: str, *options: str) -> tuple[int, str]:
    """Exit code and the one line on stderr."""
    result = CliRunner().invoke(commands, ["migrate", *options], env={"OUTBOX_DATABASE_URL": url})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert SECRET not in result.output
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1
    return result.exit_code, lines[0]


def test_a_role_that_may_not_create_is_told_what_it_lacks(guarded: Guarded) -> None:
    fix = "run it as the schema's owner, or GRANT CREATE ON SCHEMA to this role"
    assert refused(guarded.url("weak")) == (
        4,
        f"outbox: this role may not create the tables: permission denied for schema public; {fix}",
    )
    code, line = refused(guarded.url("weak"), "--schema", "brand_new")
    assert (code, "permission denied for database shop" in line) == (4, True)
    assert object_names(guarded.url("postgres"), "public") == set()


def test_the_owner_of_a_schema_needs_no_other_right(guarded: Guarded) -> None:
    migrate.upgrade(guarded.url("owner"), "owned")
    assert not migrate.status(guarded.url("owner"), "owned").pending


@pytest.mark.parametrize("options", [(), ("--status",)])
def test_a_wrong_password(guarded: Guarded, options: tuple[str, ...]) -> None:
    code, line = refused(guarded.url("locked"), *options)
    assert code == 5
    assert line.startswith(f"outbox: cannot connect to PostgreSQL at postgresql://127.0.0.1:{guarded.port}/shop: ")
    assert line.endswith('password authentication failed for user "locked"')
    with psycopg.connect(guarded.url("locked", password="the-right-one")):
        pass  # so it was the password


def test_an_unknown_database(guarded: Guarded) -> None:
    code, line = refused(guarded.url("owner", database="nowhere"))
    assert code == 5
    assert line.endswith('database "nowhere" does not exist')


def test_a_server_that_is_not_there() -> None:
    port = free_port()
    code, line = refused(f"postgresql://user:{SECRET}@127.0.0.1:{port}/shop")
    assert code == 5
    assert line.startswith(f"outbox: cannot connect to PostgreSQL at postgresql://127.0.0.1:{port}/shop: ")
    assert line.endswith("Connection refused")


def test_a_host_that_does_not_exist() -> None:
    code, line = refused(f"postgresql://user:{SECRET}@no-such-host.invalid/shop")
    assert code == 5
    assert "no-such-host.invalid" in line


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", "OUTBOX_DATABASE_URL is not set"),
        (f"mysql://user:{SECRET}@host/shop", "does not start with postgresql://"),
        (f"user:{SECRET}@host/shop", "does not start with postgresql://"),
        (f"postgresql://user:{SECRET}@host:abc/shop", "is malformed"),
        (f"postgresql://user:{SECRET}@host:0/shop", "is malformed"),
        (f"postgresql://user:{SECRET}@host/shop?wat=1", "is malformed"),
        (f"postgresql://user:{SECRET}@[::1/shop", "is malformed"),
    ],
)
def test_a_url_that_is_none(url: str, why: str) -> None:
    code, line = refused(url)
    assert code == 2
    assert line.startswith("outbox: ")
    assert why in line


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ("", "is empty"),
        ("x" * 64, "is over 63 bytes"),
        ("é" * 32, "is over 63 bytes"),
        ("pg_x", "is reserved by PostgreSQL"),
        ("$user", "is reserved by PostgreSQL"),
        ("information_schema", "is reserved by PostgreSQL"),
        ("line\nbreak", "has control characters"),
        ("nul\0", "has control characters"),
        ("escape\x1b[2J", "has control characters"),
        ("invisible\u200b", "has control characters"),
        ("lone\udc80", "has control characters"),
    ],
)
def test_a_schema_name_that_is_none(template: str, schema: str, why: str) -> None:
    code, line = refused(template, "--schema", schema)
    assert code == 2
    assert why in line
    assert line.isascii()
    assert line.isprintable()


def test_the_real_program_says_it_the_same_way(guarded: Guarded, programs: Programs) -> None:
    process = programs.outbox("migrate", env={"OUTBOX_DATABASE_URL": guarded.url("weak")})
    assert wait_for_exit(process) == 4
    assert process.output() == refused(guarded.url("weak"))[1] + "\n"

"""deploy/roles.sql on a real PostgreSQL: each role can do its work, and what it must not do is denied (A01-A04)."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from click.testing import CliRunner
from psycopg import conninfo
from sqlalchemy.orm import sessionmaker

from consumers import Inbox
from outbox import Outbox
from relay import migrate
from relay.cli import commands
from tests.support.processes import Programs, wait_for_exit

SQL = (Path(__file__).parents[3] / "deploy" / "roles.sql").read_bytes()
ROLES = ("owner", "writer", "relay", "consumer", "viewer", "operator")


@pytest.fixture
def secured(database: str) -> Iterator[str]:
    """Twice: it is safe to run again. Each role gets an account, for roles belong to the cluster."""
    with psycopg.connect(database, autocommit=True) as connection:
        for _ in range(2):
            connection.execute(SQL)
        connection.execute("CREATE TABLE shop_order (id int)")
        for role in ROLES:
            connection.execute(f"DROP ROLE IF EXISTS login_{role}".encode())
            connection.execute(f"CREATE ROLE login_{role} LOGIN IN ROLE outbox_{role}".encode())
    yield database
    with psycopg.connect(database, autocommit=True) as connection:
        for role in ROLES:
            connection.execute(f"DROP ROLE login_{role}".encode())
            connection.execute(f"DROP OWNED BY outbox_{role}".encode())
            connection.execute(f"DROP ROLE outbox_{role}".encode())


def as_role(url: str, role: str) -> str:
    """The URL of the same database for the account of this role."""
    found = conninfo.conninfo_to_dict(url)
    return f"postgresql://login_{role}@{found['host']}:{found['port']}/{found['dbname']}"


DENIED = {
    "writer": [
        "SELECT kwargs FROM outbox_message",
        "UPDATE outbox_message SET task = 'a.b'",
        "DELETE FROM outbox_message",
        "TRUNCATE outbox_message",
        "INSERT INTO outbox_message (id, task, xid) VALUES (gen_random_uuid(), 'a.b', '1')",
        "INSERT INTO outbox_message (id, task, seq) VALUES (gen_random_uuid(), 'a.b', 1)",
        "UPDATE outbox_leader SET epoch = 99",
        "INSERT INTO inbox_receipt (message_id, consumer, status) VALUES (gen_random_uuid(), 'a', 'applied')",
    ],
    "relay": [
        "CREATE TABLE trap ()",
        "DROP TABLE outbox_message",
        "ALTER TABLE outbox_leader ADD x int",
        "UPDATE outbox_message SET task = 'a.b'",
        "INSERT INTO outbox_message (id, task) VALUES (gen_random_uuid(), 'a.b')",
        "SELECT FROM shop_order",
        "COPY outbox_message TO PROGRAM 'true'",
        "UPDATE inbox_receipt SET status = 'dead'",
        "UPDATE outbox_audit SET who = 'x'",
        "DELETE FROM inbox_consumer",
    ],
    "consumer": [
        "SELECT kwargs FROM outbox_message",
        "DELETE FROM inbox_receipt",
        "UPDATE inbox_receipt SET status = 'dead'",
        "DELETE FROM inbox_consumer",
        "UPDATE outbox_leader SET epoch = 99",
        "SELECT FROM outbox_due",
    ],
    "viewer": [
        "SELECT kwargs FROM outbox_message",
        "SELECT result FROM inbox_receipt",
        "SELECT message FROM inbox_dead_letter",
        "INSERT INTO outbox_pause (queue, paused_by, why) VALUES ('q', 'x', 'y')",
        "SELECT outbox_cancel(gen_random_uuid())",
    ],
    "operator": [
        "SELECT args FROM outbox_message",
        "DELETE FROM outbox_audit",
        "UPDATE outbox_audit SET who = 'x'",
        "UPDATE outbox_leader SET epoch = 99",
        "DELETE FROM outbox_message",
    ],
}


def test_what_each_role_must_not_do(secured: str) -> None:
    for role, statements in DENIED.items():
        with psycopg.connect(as_role(secured, role), autocommit=True) as connection:
            for statement in statements:
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(statement.encode())


def test_each_role_can_do_its_work(secured: str, broker_url: str, programs: Programs) -> None:
    with psycopg.connect(as_role(secured, "writer")) as connection:
        added = Outbox().add(connection, "shop.charge", kwargs={"id": 1})
        Outbox().add(connection, "shop.charge", ordering_key="a")
        Outbox().add(connection, "shop.charge", delay=timedelta(milliseconds=1))
    engine = sa.create_engine(as_role(secured, "consumer").replace("postgresql:", "postgresql+psycopg:"))
    Inbox(sessionmaker(engine)).register("shop.charge")
    engine.dispose()
    relay = programs.relay(as_role(secured, "relay"), broker_url, "--once", "-v", env={"OUTBOX_HTTP": ""})
    assert wait_for_exit(relay) == 0
    assert "permission denied" not in relay.output()
    with psycopg.connect(as_role(secured, "viewer")) as connection:
        assert Outbox().state(connection, added.id) == "published"
    for role, arguments, code in (
        ("viewer", ("status",), 0),
        ("viewer", ("pause", "mail", "--reason", "x"), 4),
        ("operator", ("pause", "mail", "--reason", "x"), 0),
        ("operator", ("status", "--json"), 0),
        ("operator", ("resume", "mail"), 0),
        ("writer", ("status",), 4),
    ):
        env = {"OUTBOX_DATABASE_URL": as_role(secured, role)}
        result = CliRunner().invoke(commands, arguments, env=env)
        assert (role, arguments, result.exit_code) == (role, arguments, code), result.output


def test_whoever_else_may_create_in_the_schema_is_named(database: str) -> None:
    assert migrate.creators(database) == ()
    with psycopg.connect(database) as connection:
        connection.execute("GRANT CREATE ON SCHEMA public TO PUBLIC")
    assert migrate.creators(database) == ("PUBLIC",)
    result = CliRunner().invoke(commands, ["migrate"], env={"OUTBOX_DATABASE_URL": database})
    assert result.exit_code == 0
    assert "REVOKE CREATE ON SCHEMA public FROM PUBLIC" in result.stderr

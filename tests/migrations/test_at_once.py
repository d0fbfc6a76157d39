"""Several migrations at once, and migrations that are cut off in the middle."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from relay import migrate
from relay.embedded import wait_until
from tests.migrations.catalog import object_names, whole_catalog
from tests.support.postgres import Cluster
from tests.support.processes import Programs, wait_for_exit

CREATED = "schema public: tables created, revision outbox_0001\n"
ALREADY = "schema public: nothing to do, already outbox_0001\n"
WAITING = """
    SELECT l.pid FROM pg_locks l JOIN pg_database d ON d.oid = l.database
    WHERE d.datname = current_database() AND NOT l.granted AND l.locktype = %(kind)s"""


@contextmanager
def migration_lock_held(url: str) -> Iterator[psycopg.Connection]:
    """Everybody who migrates the schema `public` of this database waits meanwhile."""
    with psycopg.connect(url) as connection:
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('outbox migrate public', 0))")
        yield connection


@contextmanager
def version_table_held(url: str) -> Iterator[psycopg.Connection]:
    """A migration comes as far as its last step, the bookkeeping, and waits there for a table lock."""
    migrate.upgrade(url)
    migrate.downgrade(url)
    with psycopg.connect(url) as connection:
        connection.execute("LOCK TABLE outbox_alembic_version IN SHARE MODE")
        yield connection


def waiting(url: str, kind: str) -> list[int]:
    with psycopg.connect(url) as connection:
        return [pid for (pid,) in connection.execute(WAITING, {"kind": kind})]


def test_five_at_once_make_one_set_of_tables(
    each_empty_database: str, each_cluster: Cluster, programs: Programs
) -> None:
    with migration_lock_held(each_empty_database) as connection:
        started = [
            programs.outbox("migrate", name=f"migrate-{number}", env={"OUTBOX_DATABASE_URL": each_empty_database})
            for number in range(5)
        ]
        wait_until(lambda: len(waiting(each_empty_database, "advisory")) == 5, 30, "five migrations at the lock")
        connection.commit()
    ended = sorted((wait_for_exit(each, 30), each.output()) for each in started)
    assert ended == [*[(0, ALREADY)] * (5 - 1), (0, CREATED)]
    with psycopg.connect(each_empty_database) as connection:
        assert connection.execute("SELECT count(*) FROM outbox_leader").fetchone() == (1,)
        assert connection.execute("SELECT version_num FROM outbox_alembic_version").fetchall() == [("outbox_0001",)]
    with each_cluster.database("alone") as alone:
        migrate.upgrade(alone)
        assert whole_catalog(each_empty_database, "public") == whole_catalog(alone, "public")


def test_another_outbox_does_not_wait_for_the_lock(empty_database: str) -> None:
    with migration_lock_held(empty_database):
        migrate.upgrade(empty_database, "other")
    assert not migrate.status(empty_database, "other").pending
    assert migrate.status(empty_database).pending


def test_a_killed_migration_leaves_nothing_half_done(empty_database: str, programs: Programs) -> None:
    with version_table_held(empty_database):
        before = object_names(empty_database, "public")
        process = programs.outbox("migrate", env={"OUTBOX_DATABASE_URL": empty_database})
        wait_until(lambda: waiting(empty_database, "relation"), 30, "the migration at its last step")
        process.kill()
    wait_until(lambda: not others_connected(empty_database), 15, "the end of the dead process's session")
    assert object_names(empty_database, "public") == before
    migrate.upgrade(empty_database)
    assert not migrate.status(empty_database).pending


def test_a_terminated_session_leaves_nothing_half_done(empty_database: str, programs: Programs) -> None:
    with version_table_held(empty_database):
        before = object_names(empty_database, "public")
        process = programs.outbox("migrate", env={"OUTBOX_DATABASE_URL": empty_database})
        (pid,) = wait_until(lambda: waiting(empty_database, "relation"), 30, "the migration at its last step")
        with psycopg.connect(empty_database) as admin:
            admin.execute("SELECT pg_terminate_backend(%s)", [pid])
        assert wait_for_exit(process) == 5
    assert process.output().startswith("outbox: cannot connect to PostgreSQL at postgresql://127.0.0.1:")
    assert "terminating connection due to administrator command" in process.output()
    assert len(process.output().splitlines()) == 1
    assert object_names(empty_database, "public") == before
    migrate.upgrade(empty_database)
    assert not migrate.status(empty_database).pending


def test_a_lock_that_does_not_come_is_reported_in_one_line(empty_database: str, programs: Programs) -> None:
    with psycopg.connect(empty_database) as connection:
        connection.execute(f"ALTER DATABASE {connection.info.dbname} SET lock_timeout = '50ms'".encode())
    with migration_lock_held(empty_database):
        process = programs.outbox("migrate", env={"OUTBOX_DATABASE_URL": empty_database})
        assert wait_for_exit(process) == 4
    assert re.fullmatch(r"outbox: .* locked by another .*; end it and run this again\n", process.output())
    migrate.upgrade(empty_database)


def others_connected(url: str) -> list[int]:
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        return [pid for (pid,) in found]


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_two_at_once_whatever_the_default_isolation(empty_database: str, programs: Programs, level: str) -> None:
    """A snapshot older than the lock would not see what the one before has made."""
    with psycopg.connect(empty_database) as connection:
        name = connection.info.dbname
        connection.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = '{level}'".encode())
    env = {"OUTBOX_DATABASE_URL": empty_database}
    with migration_lock_held(empty_database) as connection:
        started = [programs.outbox("migrate", name=f"migrate-{number}", env=env) for number in range(2)]
        wait_until(lambda: len(waiting(empty_database, "advisory")) == 2, 30, "two migrations at the lock")
        connection.commit()
    ended = sorted((wait_for_exit(each, 30), each.output()) for each in started)
    assert ended == [*[(0, ALREADY)] * (2 - 1), (0, CREATED)]


def test_a_read_only_database_is_refused_in_one_line(empty_database: str, programs: Programs) -> None:
    with psycopg.connect(empty_database) as connection:
        connection.execute(f"ALTER DATABASE {connection.info.dbname} SET default_transaction_read_only = on".encode())
    refused = programs.outbox("migrate", env={"OUTBOX_DATABASE_URL": empty_database})
    assert wait_for_exit(refused) == 4
    assert refused.output() == "outbox: this PostgreSQL is read-only; give the address of the primary\n"

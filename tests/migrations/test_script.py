"""The script that `outbox migrate --sql` prints does what the migration does."""

import shutil
import subprocess
from typing import LiteralString

import psycopg
import pytest
from psycopg import sql

from relay import migrate
from relay.embedded import find_postgres
from tests.migrations.catalog import whole_catalog
from tests.support.processes import Programs, wait_for_exit

LEADER: LiteralString = "SELECT row::text FROM {}.outbox_leader row"
FLAG: LiteralString = "SELECT last_value, is_called FROM {}.outbox_wake"


@pytest.mark.parametrize("schema", ["public", 'Odd "schema"', "Odd % schema", "x-:y"])
def test_the_script_does_what_the_migration_does(each_empty_database: str, schema: str) -> None:
    migrate.upgrade(each_empty_database, "migrated")
    with psycopg.connect(each_empty_database, autocommit=True) as connection:
        connection.execute(migrate.script(schema).encode())
    assert whole_catalog(each_empty_database, schema) == whole_catalog(each_empty_database, "migrated")
    # It keeps the same books, so the next `outbox migrate` takes over from it.
    assert not migrate.status(each_empty_database, schema).pending
    before = whole_catalog(each_empty_database, schema)
    migrate.upgrade(each_empty_database, schema)
    assert whole_catalog(each_empty_database, schema) == before


def test_psql_runs_the_printed_script(empty_database: str, programs: Programs) -> None:
    # The system may have no client, but every PostgreSQL that we start brings one.
    program = shutil.which("psql") or str(find_postgres().folder / "psql")
    printed = programs.outbox("migrate", "--sql", "--schema", "by_hand")
    assert wait_for_exit(printed) == 0
    psql = [program, "--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1", "--output", "/dev/null", empty_database]
    ran = subprocess.run(psql, input=printed.output(), capture_output=True, text=True, timeout=30, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    migrate.upgrade(empty_database, "migrated")
    assert whole_catalog(empty_database, "by_hand") == whole_catalog(empty_database, "migrated")
    with psycopg.connect(empty_database) as connection:
        for question in (LEADER, FLAG):
            by_hand, migrated = (
                connection.execute(sql.SQL(question).format(sql.Identifier(schema))).fetchall()
                for schema in ("by_hand", "migrated")
            )
            assert len(by_hand) == 1
            assert by_hand == migrated

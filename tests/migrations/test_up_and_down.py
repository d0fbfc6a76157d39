"""Up, down and up again; what the hot tables are given; what `--status` says."""

import psycopg
import pytest
from click.testing import CliRunner

from relay import migrate
from relay.cli import commands
from tests.migrations.catalog import VERSION_TABLE, object_names, whole_catalog

READERS = (
    "relay",
    "writer and CLI",
    "prune",
    "consumer",
    "CLI",
    "metrics",
)  # an index comment begins with who needs it
VERSION_OBJECTS = {VERSION_TABLE, f"_{VERSION_TABLE}", f"{VERSION_TABLE}_pkc"}


def test_up_down_up(each_empty_database: str) -> None:
    before = object_names(each_empty_database, "public")
    migrate.upgrade(each_empty_database)
    first = whole_catalog(each_empty_database, "public")
    with psycopg.connect(each_empty_database) as connection:
        connection.execute("INSERT INTO outbox_message (id, task) VALUES (gen_random_uuid(), 'billing.charge')")
    migrate.downgrade(each_empty_database)
    assert object_names(each_empty_database, "public") == before | VERSION_OBJECTS
    assert migrate.status(each_empty_database).current is None
    migrate.upgrade(each_empty_database)
    assert whole_catalog(each_empty_database, "public") == first
    with psycopg.connect(each_empty_database) as connection:
        assert connection.execute("SELECT count(*) FROM outbox_message").fetchone() == (0,)
        assert connection.execute("SELECT count(*), max(epoch) FROM outbox_leader").fetchone() == (1, 0)


def test_down_leaves_the_tables_of_others_alone(empty_database: str) -> None:
    with psycopg.connect(empty_database) as connection:
        connection.execute("CREATE TABLE orders (id bigint PRIMARY KEY)")
        connection.execute("INSERT INTO orders VALUES (7)")
    migrate.upgrade(empty_database)
    migrate.downgrade(empty_database)
    with psycopg.connect(empty_database) as connection:
        assert connection.execute("SELECT id FROM orders").fetchall() == [(7,)]


def test_twice_in_a_row_changes_nothing(database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("INSERT INTO outbox_message (id, task) VALUES (gen_random_uuid(), 'billing.charge')")
        connection.execute("UPDATE outbox_leader SET epoch = 5")
    before = whole_catalog(database, "public")
    migrate.upgrade(database)
    assert whole_catalog(database, "public") == before
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT count(*) FROM outbox_message").fetchone() == (1,)
        assert connection.execute("SELECT epoch FROM outbox_leader").fetchall() == [(5,)]


def test_status_exits_6_while_something_is_pending(empty_database: str) -> None:
    def run(*options: str) -> tuple[int, str]:
        result = CliRunner().invoke(commands, ["migrate", *options], env={"OUTBOX_DATABASE_URL": empty_database})
        return result.exit_code, result.output

    assert run("--status") == (6, "schema public: no outbox tables, newest outbox_0001\n")
    assert object_names(empty_database, "public") == set()
    assert run() == (0, "schema public: tables created, revision outbox_0001\n")
    assert run("--status") == (0, "schema public: revision outbox_0001, newest outbox_0001\n")
    assert run("--status", "--schema", "other") == (6, "schema other: no outbox tables, newest outbox_0001\n")


def test_the_first_position_sees_a_message_of_the_migration_itself(database: str) -> None:
    with psycopg.connect(database) as connection:
        row = connection.execute(
            "SELECT prev::text, next, reconciled::text, system_id = system_identifier, holder"
            " FROM outbox_leader, pg_control_system()"
        ).fetchone()
        assert row == ("3:3:", None, "3:3:", True, None)
        assert connection.execute("SELECT last_value, is_called FROM outbox_wake").fetchone() == (1, True)


@pytest.mark.parametrize(
    ("table", "wanted"),
    [
        ("outbox_message", {"autovacuum_vacuum_insert_scale_factor": "0.02", "autovacuum_vacuum_scale_factor": "0.02"}),
        ("outbox_leader", {"fillfactor": "10", "autovacuum_vacuum_scale_factor": "0"}),
        ("outbox_due", {"fillfactor": "70", "autovacuum_vacuum_scale_factor": "0.01"}),
        ("outbox_key", {"autovacuum_vacuum_scale_factor": "0.02"}),
        ("outbox_relay", {"fillfactor": "50", "autovacuum_vacuum_scale_factor": "0"}),
        ("inbox_receipt", {"autovacuum_vacuum_insert_scale_factor": "0.02", "autovacuum_vacuum_scale_factor": "0.02"}),
        ("inbox_retry", {"fillfactor": "70", "autovacuum_vacuum_scale_factor": "0.01"}),
        ("inbox_claim", {"fillfactor": "70", "autovacuum_vacuum_scale_factor": "0.01"}),
    ],
)  # fmt: skip
def test_hot_tables_are_vacuumed_early(template: str, table: str, wanted: dict[str, str]) -> None:
    with psycopg.connect(template) as connection:
        row = connection.execute(
            "SELECT reloptions, relpersistence FROM pg_class WHERE oid = %s::regclass", [table]
        ).fetchone()
    assert row is not None
    options = dict(option.split("=", 1) for option in row[0])
    assert wanted.items() <= options.items()
    assert row[1] == "p", "an unlogged table is empty after a crash"


def test_every_table_and_every_index_says_what_it_is_for(template: str) -> None:
    """A primary key needs no comment: the constraint says it."""
    with psycopg.connect(template) as connection:
        found = connection.execute(
            """SELECT c.relname, obj_description(c.oid, 'pg_class') FROM pg_class c
            WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'i') AND c.relname !~ 'alembic'
              AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conindid = c.oid AND k.contype = 'p')"""
        ).fetchall()
    assert len(found) > 20
    assert [name for name, comment in found if not comment] == []
    indexed = {name for name, comment in found if comment and comment.split(":")[0] in READERS}
    assert {"outbox_message_log", "outbox_due_at", "inbox_receipt_applied_at", "inbox_retry_waits_for"} <= indexed


def test_no_session_keeps_numbers_of_a_sequence_to_itself(template: str) -> None:
    with psycopg.connect(template) as connection:
        found = connection.execute("SELECT sequencename, cache_size, cycle FROM pg_sequences ORDER BY 1").fetchall()
    names = ("outbox_audit_id_seq", "outbox_message_seq", "outbox_rejected_id_seq", "outbox_wake")
    assert found == [(name, 1, False) for name in names]

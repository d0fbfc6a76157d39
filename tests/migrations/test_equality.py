"""The metadata and the migration make the same tables, to the letter."""

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy.dialects.postgresql.base import PGDialect

from consumers.schema import make_inbox_tables
from outbox.schema import Snapshot, Xid8, make_outbox_tables
from relay import migrate
from tests.migrations.catalog import VERSION_TABLE, shared_catalog

# The migration alone makes the wake-up flag, which belongs to no table, and the one CHECK of the messages with the
# function that it calls; a row by row comparison of what that refuses is in test_checks.py.
MIGRATION_ONLY = {"sequences": {"outbox_wake"}, "constraints": {"outbox_message_check"}}
NAME_AT = {"sequences": 0, "constraints": 1}


def all_tables(schema: str | None) -> sa.MetaData:
    metadata = sa.MetaData()
    make_outbox_tables(metadata, schema)
    make_inbox_tables(metadata, schema)
    return metadata


def engine_of(url: str) -> sa.Engine:
    return sa.create_engine(sa.make_url(url).set(drivername="postgresql+psycopg"), poolclass=sa.NullPool)


def differences(context: MigrationContext, metadata: sa.MetaData) -> list[object]:
    """Without one that Alembic invents: it takes a column that owns its sequence for SERIAL, and forgets the default
    it has read. That default is compared by the test of the catalogs."""
    found: list[object] = []
    for each in compare_metadata(context, metadata):
        changes = each if isinstance(each, list) else [each]
        found += [c for c in changes if (c[0], *c[2:4]) != ("modify_default", "outbox_message", "seq")]
    return found


def test_metadata_makes_what_the_migration_makes(each_empty_database: str) -> None:
    migrate.upgrade(each_empty_database, "migrated")
    with engine_of(each_empty_database).begin() as connection:
        connection.execute(sa.schema.CreateSchema("created"))
        all_tables("created").create_all(connection)

    created = shared_catalog(each_empty_database, "created")
    migrated = shared_catalog(each_empty_database, "migrated")
    for what, names in MIGRATION_ONLY.items():
        kept = [row for row in migrated[what] if row[NAME_AT[what]] not in names]
        assert len(kept) == len(migrated[what]) - len(names), f"the migration no longer makes {names}"
        migrated[what] = kept
    for what in migrated:
        assert migrated[what], f"no {what}: the comparison would prove nothing"
        assert created[what] == migrated[what], what


@pytest.mark.parametrize("schema", ["public", 'Odd % "schema"'])
def test_alembic_finds_no_difference(each_empty_database: str, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PGDialect.ischema_names, "xid8", Xid8)
    monkeypatch.setitem(PGDialect.ischema_names, "pg_snapshot", Snapshot)
    migrate.upgrade(each_empty_database, schema)

    def ours(name: str | None, kind: str, parents: object) -> bool:
        return name == schema if kind == "schema" else name != VERSION_TABLE

    with engine_of(each_empty_database).connect() as connection:
        options = {
            "compare_type": True,
            "compare_server_default": True,
            "include_schemas": True,
            "include_name": ours,
        }
        # Reflection leaves out the schema that is the default one, so put another one there.
        connection.execute(sa.text("SET search_path TO pg_catalog"))
        connection.dialect.default_schema_name = "pg_catalog"
        context = MigrationContext.configure(connection, opts=options)
        assert differences(context, all_tables(schema)) == []
        # The comparison must be able to see something, or the line above proves nothing.
        strange = all_tables(schema)
        sa.Index("strange", strange.tables[f"{schema}.outbox_due"].c.reason)
        strange.tables[f"{schema}.outbox_due"].c.due_at.nullable = True
        strange.tables[f"{schema}.outbox_due"].c.attempt.server_default = sa.DefaultClause("1")
        assert len(differences(context, strange)) == 3

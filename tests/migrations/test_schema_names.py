"""Whatever a schema is called, it stays one name: quoted, never read as SQL, never as a parameter."""

from datetime import timedelta
from uuid import uuid4

import psycopg
import pytest
import sqlalchemy as sa
from psycopg import sql

from outbox import Added, Message, Outbox
from relay import migrate
from relay.queries import queries_for
from tests.migrations.catalog import object_names, whole_catalog

ODD = [
    'a";drop table x;--',
    "it's",
    "{schema}",
    "UPPER and lower",
    "dotted.name",
    "colon:name",
    "back\\slash",
    "Größe",
    "日本語",
    "select",
    "x" * 63,
    "é" * 31 + "x",
]
WITH_PERCENT = ["100%", "%s", "%(id)s"]


def add(url: str, schema: str) -> Added:
    engine = sa.create_engine(sa.make_url(url).set(drivername="postgresql+psycopg"), poolclass=sa.NullPool)
    with engine.begin() as connection:
        return Outbox(schema).add(connection, Message("billing.charge", kwargs={"order_id": 7}))


@pytest.mark.parametrize("schema", [*ODD, *WITH_PERCENT], ids=ascii)
def test_an_odd_schema_is_migrated_and_written(empty_database: str, schema: str) -> None:
    with psycopg.connect(empty_database) as connection:
        connection.execute("CREATE TABLE x (survives boolean)")
        connection.execute(sql.SQL("SET search_path TO {}").format(sql.Identifier(schema)))
    migrate.upgrade(empty_database, schema)
    migrate.upgrade(empty_database, schema)
    assert not migrate.status(empty_database, schema).pending

    added = add(empty_database, schema)
    with psycopg.connect(empty_database) as connection:
        query = sql.SQL("SELECT id FROM {}.outbox_message").format(sql.Identifier(schema))
        assert connection.execute(query).fetchall() == [(added.id,)]

    assert {"x"} <= object_names(empty_database, "public")
    migrate.downgrade(empty_database, schema)
    assert not any(name.startswith(("outbox_message", "inbox_")) for name in object_names(empty_database, schema))


@pytest.mark.parametrize("schema", ODD, ids=ascii)
def test_the_relay_reads_an_odd_schema(empty_database: str, schema: str) -> None:
    migrate.upgrade(empty_database, schema)
    added = add(empty_database, schema)
    queries, holder = queries_for(schema), uuid4()
    with psycopg.connect(empty_database, autocommit=True) as relay:
        relay.execute(queries.acquire, {"holder": holder, "ttl": timedelta(seconds=3)})
        opened = relay.execute(queries.open, {"holder": holder, "epoch": 1, "page": 10}).fetchone()
        assert opened is not None
        page = {"prev": opened[2], "next": opened[3], "low": 0, "high": 2**63 - 1, "first_xid": "0"}
        rows = relay.execute(queries.page, page | {"last_xid": str(2**63 - 1)}).fetchall()
    assert [row[0] for row in rows] == [str(added.id)]


def test_two_outboxes_in_one_database_do_not_disturb_each_other(empty_database: str) -> None:
    for schema in ("one", "two"):
        migrate.upgrade(empty_database, schema)
    assert whole_catalog(empty_database, "one") == whole_catalog(empty_database, "two")
    with psycopg.connect(empty_database, autocommit=True) as connection:
        connection.execute("SET search_path TO pg_catalog")
        connection.execute("LISTEN outbox")
        connection.execute("SELECT setval('two.outbox_wake', 2)")
        for schema in ("one", "one", "two"):
            connection.execute(
                sql.SQL("INSERT INTO {}.outbox_message (id, task) VALUES (gen_random_uuid(), 'billing.charge')").format(
                    sql.Identifier(schema)
                )
            )
        # Each numbers its own messages, and only the one whose relay sleeps is woken.
        found = connection.execute(
            "SELECT (SELECT array_agg(seq) FROM one.outbox_message), (SELECT array_agg(seq) FROM two.outbox_message)"
        ).fetchone()
        assert found == ([1, 2], [1])
        woken = [notice.payload for notice in connection.notifies(timeout=5, stop_after=1)]
        assert woken == ["two"]
        assert list(connection.notifies(timeout=0)) == []

    before = whole_catalog(empty_database, "two")
    migrate.downgrade(empty_database, "one")
    assert whole_catalog(empty_database, "two") == before
    with psycopg.connect(empty_database) as connection:
        assert connection.execute("SELECT count(*) FROM two.outbox_message").fetchone() == (1,)
    assert migrate.status(empty_database, "one").pending
    assert not migrate.status(empty_database, "two").pending

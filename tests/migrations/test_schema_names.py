"""Whatever a schema is called, it stays one name: quoted, never read as SQL, never as a parameter."""

from collections.abc import Iterator
from datetime import timedelta
from uuid import uuid4

import psycopg
import pytest
import sqlalchemy as sa
from psycopg import sql

from outbox import Message, Outbox
from relay import migrate
from relay.queries import queries_for
from tests.migrations.catalog import object_names, whole_catalog
from tests.support.postgres import Cluster

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
    "100%",
    "%s",
    "%(id)s",
]


@pytest.fixture(scope="module")
def crowded(cluster: Cluster) -> Iterator[str]:
    """One database for all of them, with a table that one of the names is out to drop."""
    with cluster.database("names") as url:
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE x (survives boolean)")
        yield url


@pytest.mark.parametrize("schema", ODD, ids=ascii)
def test_an_odd_schema_is_migrated_written_and_read(crowded: str, schema: str) -> None:
    migrate.upgrade(crowded, schema)
    migrate.upgrade(crowded, schema)
    assert not migrate.status(crowded, schema).pending

    engine = sa.create_engine(sa.make_url(crowded).set(drivername="postgresql+psycopg"), poolclass=sa.NullPool)
    with engine.begin() as connection:
        added = Outbox(schema).add(connection, Message("billing.charge", kwargs={"order_id": 7}))

    queries, holder = queries_for(schema), uuid4()
    with psycopg.connect(crowded, autocommit=True) as relay:
        relay.execute(
            queries.acquire, {"seen": 0, "lock": False, "dead": None, "holder": holder, "ttl": timedelta(seconds=3)}
        )
        opened = relay.execute(queries.open, {"holder": holder, "epoch": 1, "page": 10}).fetchone()
        assert opened is not None
        page = {"prev": opened[2], "next": opened[3], "low": 0, "high": 2**63 - 1, "first_xid": "0",
                "xids": [], "most": 10}  # fmt: skip
        rows = relay.execute(queries.page, page | {"last_xid": str(2**63 - 1)}).fetchall()
    assert [row[0] for row in rows] == [str(added.id)]

    assert "x" in object_names(crowded, "public")
    assert not any(name.startswith("outbox") for name in object_names(crowded, "public"))
    migrate.downgrade(crowded, schema)
    assert not any(name.startswith(("outbox_message", "inbox_")) for name in object_names(crowded, schema))


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

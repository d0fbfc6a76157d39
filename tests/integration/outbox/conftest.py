"""Fixtures of the writer's tests. They are many and small, so those of a file share a database, emptied each time."""

from collections.abc import Iterator

import psycopg
import pytest
import sqlalchemy as sa

from tests.integration.outbox.storage import Base, engine_of
from tests.support.postgres import Cluster


@pytest.fixture(scope="module")
def shared_database(cluster: Cluster, template: str) -> Iterator[str]:
    """A migrated database with one business table."""
    with cluster.database("outbox", template) as url:
        Base.metadata.create_all(engine_of(url, poolclass=sa.NullPool))
        yield url


@pytest.fixture
def database(shared_database: str) -> str:
    """The same without a row in it."""
    with psycopg.connect(shared_database) as connection:
        connection.execute("TRUNCATE outbox_message, shop_order RESTART IDENTITY")
    return shared_database


@pytest.fixture
def engine(database: str) -> Iterator[sa.Engine]:
    """An ordinary application's engine."""
    made = engine_of(database)
    yield made
    made.dispose()

"""Fixtures of the writer's tests. They are many and small, so those of a file share a database, emptied each time."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import psycopg
import pytest
import sqlalchemy as sa
from psycopg import sql

from outbox.migrations import TABLES
from tests.integration.outbox.storage import Base, Postgres, engine_of
from tests.support.postgres import Cluster

KEPT = {"outbox_alembic_version", "outbox_leader"}
FRESH_LEADER = (
    "UPDATE outbox_leader SET prev = '3:3:', next = NULL, last_seq = 0, window_no = 0, holder = NULL, epoch = 0"
)


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
        tables = sql.SQL(", ").join(map(sql.Identifier, sorted({*TABLES, "shop_order"} - KEPT)))
        connection.execute(sql.SQL("TRUNCATE {} RESTART IDENTITY").format(tables))
        connection.execute(FRESH_LEADER)
    return shared_database


@pytest.fixture
def engine(database: str) -> Iterator[sa.Engine]:
    """An ordinary application's engine."""
    made = engine_of(database)
    yield made
    made.dispose()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Threads for writers that have to wait."""
    with ThreadPoolExecutor(8) as made:
        yield made


@pytest.fixture
def opened(database: str, pool: ThreadPoolExecutor) -> Iterator[Callable[[], Postgres]]:
    """Opens psycopg connections. They are closed before the threads are joined: a failed test must not hang."""
    with ExitStack() as undo:

        def open_one() -> Postgres:
            return undo.enter_context(closing(psycopg.connect(database)))

        yield open_one

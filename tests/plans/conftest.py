"""A log of 200,000 messages in each version of PostgreSQL, loaded once; every test rolls back what it does."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from relay.migrate import upgrade
from relay.queries import Queries, queries_for
from tests.plans.explained import Explained, explained
from tests.support.postgres import Cluster

TRANSACTIONS, EACH = 400, 500
PAGE = 500
TASK = "billing.charge"

# A commit every 500 rows, as a busy application would leave them; the payload has an ordinary size.
_MESSAGES = f"""
DO $$ BEGIN
    FOR number IN 1..{TRANSACTIONS} LOOP
        INSERT INTO outbox_message (id, task, kwargs)
            SELECT gen_random_uuid(), '{TASK}', json_build_object('order_id', n, 'note', repeat('x', 150))
            FROM generate_series(1, {EACH}) n;
        COMMIT;
    END LOOP;
END $$
"""  # noqa: S608
_RECEIPTS = """
INSERT INTO inbox_receipt (message_id, consumer, status, applied_at)
    SELECT id, task, 'applied', clock_timestamp() - interval '1 hour' FROM outbox_message ORDER BY seq
"""


@dataclass(frozen=True)
class Log:
    """The loaded database: the transaction ids in order of writing, and a lease on it."""

    url: str
    xids: tuple[int, ...]
    holder: UUID
    queries: Queries

    @property
    def fence(self) -> dict[str, Any]:
        return {"holder": self.holder, "epoch": 1}

    def after(self, transactions: int) -> str:
        """The snapshot in which the first so many transactions of the load are visible, and nothing later."""
        xmax = self.xids[transactions] if transactions < len(self.xids) else self.xids[-1] + 1
        return f"{xmax}:{xmax}:"


@pytest.fixture(scope="session")
def log(each_cluster: Cluster) -> Iterator[Log]:
    holder, queries = uuid4(), queries_for("public")
    with each_cluster.database("plans") as url:
        upgrade(url)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(_MESSAGES)
            connection.execute(_RECEIPTS)
            connection.execute("INSERT INTO inbox_consumer (task, receipt_timeout) VALUES (%s, '30 s')", [TASK])
            connection.execute("VACUUM ANALYZE")
            connection.execute(
                queries.acquire, {"seen": 0, "lock": False, "dead": None, "holder": holder, "ttl": timedelta(hours=1)}
            )
            found = connection.execute("SELECT xid::text::bigint FROM outbox_message GROUP BY 1 ORDER BY min(seq)")
            yield Log(url, tuple(xid for (xid,) in found), holder, queries)


@pytest.fixture(params=[False, True], ids=["custom", "generic"])
def session(log: Log, request: pytest.FixtureRequest) -> Iterator[Explained]:
    """A connection that tells its plans: the ones made for the parameters, and the ones made for any."""
    with explained(log.url, generic=request.param) as told:
        yield told

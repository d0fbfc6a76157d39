"""Under somebody's open snapshot every version of the leader's row stays: it must be found by its place.

By key, or by reading the table, each write would walk over all dead versions, and the relay would slow down for as
long as that snapshot is open.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from relay.migrate import upgrade
from relay.queries import queries_for
from tests.plans.explained import explained
from tests.support.postgres import Cluster

HOLDER = uuid4()
FENCE = {"holder": HOLDER, "epoch": 1}
QUERIES = queries_for("public")
WEAR = b"DO $$ BEGIN FOR n IN 1..3000 LOOP UPDATE outbox_leader SET last_seq = n; COMMIT; END LOOP; END $$"


@pytest.fixture(scope="module")
def worn(each_cluster: Cluster) -> Iterator[tuple[str, str]]:
    """A leader's row with thousands of dead versions that an open snapshot keeps; gives URL and ctid."""
    with each_cluster.database("leader") as url:
        upgrade(url)
        with psycopg.connect(url, autocommit=True) as connection, psycopg.connect(url) as snapshot:
            snapshot.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            snapshot.execute("SELECT FROM outbox_leader")
            connection.execute(
                QUERIES.acquire, {"holder": HOLDER, "ttl": timedelta(hours=1), "lock": False, "seen": 0, "dead": None}
            )
            connection.execute("UPDATE outbox_leader SET prev = '10:10:', next = '20:20:', window_no = 4")
            connection.execute(WEAR)
            row = connection.execute("SELECT ctid::text FROM outbox_leader").fetchone()
            assert row is not None
            yield url, row[0]


@pytest.mark.parametrize("generic", [False, True], ids=["custom", "generic"])
@pytest.mark.parametrize("name", ["turn_at", "close_at", "advance_at"])
def test_the_leader_row_is_found_by_its_place(worn: tuple[str, str], name: str, generic: bool) -> None:
    url, ctid = worn
    parameters: dict[str, Any] = {"window_no": 4, "last_seq": 3001, "page": 500, "ctid": ctid}
    with explained(url, generic=generic) as session:
        plan = session.run(getattr(QUERIES, name), FENCE | parameters)
    assert plan.kinds("outbox_leader") == {"Tid Scan"}
    assert plan.touched("outbox_leader") == 1
    assert plan.blocks < 40


def test_by_key_it_would_walk_over_every_version(worn: tuple[str, str]) -> None:
    """The reason for the tests above: should this ever become cheap, the remembered place can go."""
    url, _ = worn
    with explained(url) as session:
        plan = session.run(QUERIES.advance, FENCE | {"window_no": 4, "last_seq": 3001})
    assert plan.blocks > 60

"""A relay that dies at a chosen event, by the product's own observer seam: no message is lost to the broker.

There is no consumer here, so nothing repairs a loss: what reaches the broker is what windows and position deliver.
"""

import json

import psycopg
import pytest
import redis

from outbox import Message
from relay.embedded import wait_until
from tests.support.processes import Programs
from tests.support.writers import Writer

# A relay whose observer kills it with kill -9 at the N-th event of one kind.
DYING = """
import os, signal, sys
from relay import Relay, RelaySettings
kind, count = sys.argv[1], int(sys.argv[2])
def observe(event):
    global count
    if type(event).__name__ == kind:
        count -= 1
        if count == 0:
            os.kill(os.getpid(), signal.SIGKILL)
Relay(RelaySettings.from_env(), observer=observe).run()
"""
POINTS = ["LeadershipGained", "WindowOpened", "PageRead", "PagePublished", "PositionAdvanced"]
BATCH = 10


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("kind", POINTS)
def test_no_loss_when_a_relay_dies_at(
    kind: str, count: int, programs: Programs, database: str, broker_url: str
) -> None:
    if kind in ("LeadershipGained", "WindowOpened"):
        count = 1  # one window holds everything that was written before the relay started
    writer = Writer(database)
    written = [writer.add(Message("a.task")) for _ in range(60)]
    writer.close()
    env = {
        "OUTBOX_DATABASE_URL": database,
        "OUTBOX_BROKER_URL": broker_url,
        "OUTBOX_BATCH_SIZE": str(BATCH),
        "OUTBOX_LEASE_TTL": "0.5",
    }
    dying = programs.python("-c", DYING, kind, str(count), name="dying", env=env)
    assert dying.wait(15) == -9
    programs.relay(database, broker_url, name="heir", env=env)
    with redis.Redis.from_url(broker_url) as broker:

        def arrived() -> list[str]:
            return [json.loads(each)["headers"]["id"] for each in reversed(broker.lrange("celery", 0, -1))]

        wait_until(lambda: set(written) <= set(arrived()), 15, "every message at the broker")
        copies = arrived()
    assert len(copies) - len(written) <= BATCH, "at most the batch in flight is repeated"
    assert list(dict.fromkeys(copies)) == written, "in order, apart from the repeated batch"
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT epoch FROM outbox_leader").fetchone() == (2,)

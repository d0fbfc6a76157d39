"""The relay to Redis against the relay people write by hand, and against Redis itself."""

import threading
import time
from uuid import uuid4

import redis
from celery import Celery

from benchmarks.figures import Figure, at_least, in_turn, ratio
from benchmarks.scene import PAYLOAD, Scene
from relay.cycle import Cycle
from relay.database import connect
from relay.encode import Encoder
from relay.events import ignore
from relay.lease import Term
from relay.publish.redis import RedisPublisher
from relay.publishing import Publishing
from relay.queries import queries_for
from relay.read import Log

OURS, NAIVE, RAW = 40_000, 2_000, 100_000
BATCH = 500
MESSAGE_BYTES = 1_600


def figures(scene: Scene) -> dict[str, Figure]:
    ours, naive, raw = in_turn(3, lambda: relay(scene), lambda: by_hand(scene), lambda: raw_pushes(scene))
    return {
        "relay_redis_x_naive": at_least(ratio(ours, naive), 60),
        "relay_redis_of_limit": at_least(ratio(ours, raw), 0.25),
    }


def relay(scene: Scene) -> float:
    """Messages a second, from the log to the list, position advanced."""
    scene.fill_outbox(OURS)
    term = Term(_take_lease(scene), _HOLDER, trusted_until=float("inf"))
    publisher = RedisPublisher(scene.broker_url, 5.0, Encoder("bench"))
    publishing = Publishing(
        publisher,
        term,
        relay="bench",
        holds=lambda _: True,
        stop=threading.Event(),
        observer=ignore,
    )
    with connect(scene.database_url, 3.0, "bench") as connection:
        cycle = Cycle(Log(connection, queries_for("public"), term, BATCH), publishing)
        cycle.resume()
        started, published = time.perf_counter(), 0
        while published < OURS:
            published += cycle.step()
        elapsed = time.perf_counter() - started
    publisher.close()
    _forget(scene)
    return OURS / elapsed


def by_hand(scene: Scene) -> float:
    """SKIP LOCKED, apply_async, UPDATE."""
    scene.fill_naive(NAIVE)
    app = Celery("bench", broker=scene.broker_url)
    claim = "SELECT id, kwargs FROM naive WHERE published_at IS NULL ORDER BY id LIMIT 100 FOR UPDATE SKIP LOCKED"
    started = time.perf_counter()
    with scene.connect() as connection:
        while True:
            with connection.transaction():
                rows = connection.execute(claim).fetchall()
                for key, kwargs in rows:
                    app.send_task("bench.task", kwargs=kwargs, task_id=str(key), queue="bench")
                ids = [key for key, _ in rows]
                connection.execute("UPDATE naive SET published_at = now() WHERE id = ANY(%s)", [ids])
            if not rows:
                break
    elapsed = time.perf_counter() - started
    app.close()
    _forget(scene)
    return NAIVE / elapsed


def raw_pushes(scene: Scene) -> float:
    """Variadic LPUSH of ready bytes by redis-py: nothing can be faster without another client."""
    payload = (PAYLOAD * 4)[:MESSAGE_BYTES].encode()
    with redis.Redis.from_url(scene.broker_url) as client:
        started = time.perf_counter()
        for _ in range(RAW // BATCH):
            client.lpush("bench", *([payload] * BATCH))
        elapsed = time.perf_counter() - started
    _forget(scene)
    return RAW / elapsed


_HOLDER = uuid4()


def _take_lease(scene: Scene) -> int:
    with scene.connect() as connection:
        row = connection.execute(
            "UPDATE outbox_leader SET epoch = epoch + 1, holder = %s RETURNING epoch", [_HOLDER]
        ).fetchone()
    return int(row[0]) if row else 0


def _forget(scene: Scene) -> None:
    with redis.Redis.from_url(scene.broker_url) as client:
        client.flushall()

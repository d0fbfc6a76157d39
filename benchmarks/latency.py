"""From the writer's commit to the broker, at 50 messages a second: woken, beside an open write, and by hand.

"Polling at 100 ms" is the relay by hand that sleeps so long when it found nothing. Our own poll mode is no measure of
it: it looks more often while messages come.
"""

import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import LiteralString
from uuid import uuid4

from benchmarks import processes
from benchmarks.figures import Figure, at_most, ratio
from benchmarks.scene import TASK, Scene
from relay.embedded import wait_until

SAMPLES = 400
PERIOD = 0.02
FOREIGN_SECONDS = 4.0
REPEATS = 3
_INSERT: LiteralString = """\
INSERT INTO outbox_message (id, task, kwargs, body_hash) VALUES (%(key)s, %(task)s, '{"order_id": 7}', %(digest)s)"""
_BY_HAND: LiteralString = "INSERT INTO naive (id, kwargs) VALUES (%(key)s, '{\"order_id\": 7}')"

NAMES = ("latency_p99_ms", "latency_foreign_writer_p99_ms", "latency_of_polling")


def figures(scene: Scene) -> dict[str, Figure]:
    with scene.connect() as connection:
        connection.execute("CREATE TABLE foreign_work (at timestamptz)")
    woken, foreign, polled = list[float](), list[float](), list[float]()
    for _ in range(REPEATS):
        woken.append(p99_ms(scene, {"OUTBOX_WAKEUP": "gate"}))
        foreign.append(p99_ms(scene, {"OUTBOX_WAKEUP": "gate"}, foreign_writer=True))
        polled.append(p99_ms(scene, None))
    print(f"  p99 in ms: woken {woken}, foreign writer {foreign}, polling {polled}")
    return {
        "latency_p99_ms": at_most(statistics.median(woken), 5, "ms"),
        "latency_foreign_writer_p99_ms": at_most(statistics.median(foreign), 5, "ms"),
        "latency_of_polling": at_most(ratio(woken, polled), 1 / 10),
    }


def p99_ms(scene: Scene, settings: dict[str, str] | None, *, foreign_writer: bool = False) -> float:
    """Without settings: the relay by hand, which looks every 100 ms."""
    scene.clear()
    insert = _INSERT if settings else _BY_HAND
    by_hand = ["-m", "benchmarks.naive", scene.database_url, scene.broker_url, "--poll", "0.1"]
    relay = processes.relay(scene, settings) if settings else processes.start(scene, "by-hand", by_hand)
    consumer = processes.start(scene, f"arrivals-{uuid4()}", ["-m", "benchmarks.arrivals", scene.broker_url])
    try:
        consumer.wait_ready(lambda: "ready" in consumer.output(), 20, "the consumer")
        _write(scene, insert, 20)  # the relay leads, plans are made
        relay.wait_ready(lambda: consumer.output().count("\n") > 20, 20, "the first messages")
        with _foreign_writer(scene) if foreign_writer else nullcontext():
            committed = _write(scene, insert, SAMPLES)
        wait_until(lambda: consumer.output().count("\n") > 20 + SAMPLES, 20, "the last message")
        arrived = dict(line.split() for line in consumer.output().splitlines()[1:])
    finally:
        processes.stop(consumer)
        processes.stop(relay)
    waits = sorted((int(arrived[key]) - at) / 1e6 for key, at in committed.items())
    return round(waits[int(len(waits) * 0.99) - 1], 3)


def _write(scene: Scene, insert: LiteralString, count: int) -> dict[str, int]:
    """Message id → when its commit returned."""
    committed = {}
    digest = bytes(32)
    with scene.connect() as connection:
        start = time.monotonic()
        for number in range(count):
            time.sleep(max(0.0, start + number * PERIOD - time.monotonic()))
            key = uuid4()
            connection.execute(insert, {"key": key, "task": TASK, "digest": digest})
            committed[str(key)] = time.monotonic_ns()
    return committed


@contextmanager
def _foreign_writer(scene: Scene) -> Iterator[None]:
    """Somebody who always has a write transaction open, each for four seconds."""
    done = threading.Event()

    def work() -> None:
        with scene.connect() as connection:
            while not done.is_set():
                with connection.transaction():
                    connection.execute("INSERT INTO foreign_work VALUES (now())")
                    done.wait(FOREIGN_SECONDS)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()

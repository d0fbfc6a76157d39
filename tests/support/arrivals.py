"""What has arrived at a Redis broker from which nobody takes anything: every copy, in order, and when it was seen.

Without a consumer nothing repairs a fault of the relay, and nothing hides one.
"""

import json
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import psycopg
import redis

from relay.embedded import wait_until


@dataclass(frozen=True)
class Verdict:
    """Committed intents against arrivals."""

    written: int
    lost: set[str]
    phantom: set[str]
    out_of_order: list[str]
    repeats: int

    @property
    def sound(self) -> bool:
        """Whether no rule is broken; repeats break none."""
        return not (self.lost or self.phantom or self.out_of_order)

    def __str__(self) -> str:
        return (
            f"written {self.written}, lost {len(self.lost)}, phantom {len(self.phantom)}, "
            f"out of order {len(self.out_of_order)}, repeats {self.repeats}"
        )


class Arrivals:
    """The list of one queue, read on from where it was read last.

    With `take` it is emptied meanwhile, for more messages than a small broker holds.
    """

    def __init__(self, broker_url: str, queue: str = "celery", *, take: bool = False) -> None:
        self._client = redis.Redis.from_url(broker_url, socket_timeout=2, socket_connect_timeout=2)
        self._queue = queue
        self._take = take
        self._lock = threading.Lock()
        self.copies: list[str] = []
        """Ids in the order of their arrival."""
        self.seen: dict[str, float] = {}
        """When the first copy was seen, on the monotonic clock."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def look(self) -> set[str]:
        """All that have arrived. A broker that does not answer tells nothing new."""
        with self._lock:
            fresh = self._fresh()
            now = time.monotonic()
            for payload in fresh:
                name = json.loads(payload)["headers"]["id"]
                self.copies.append(name)
                self.seen.setdefault(name, now)
            return set(self.seen)

    def _fresh(self) -> list[Any]:
        try:
            if self._take:
                taken: Any = self._client.rpop(self._queue, 20_000)
                return list(taken or ())
            # New ones are pushed on the left: everything but the right end that is known already.
            return self._client.lrange(self._queue, 0, -len(self.copies) - 1)[::-1]
        except redis.RedisError:
            return []

    def wait_for(self, wanted: Iterable[str], deadline: float = 15.0) -> None:
        """Wait until each of them has arrived."""
        missing = set(wanted)
        what = f"{len(missing)} messages at the broker"
        wait_until(lambda: missing <= self.look(), deadline, what)

    def wait_for_more(self, count: int = 1, deadline: float = 15.0) -> None:
        """Wait for so many messages that are not known yet."""
        target = len(self.look()) + count
        wait_until(lambda: len(self.look()) >= target, deadline, f"{count} more messages at the broker")

    @contextmanager
    def watching(self, every: float = 0.005) -> Iterator[None]:
        """Look all the time, on a thread of its own, so that `seen` tells when a message came."""
        stop = threading.Event()

        def watch() -> None:
            while not stop.wait(every):
                self.look()

        thread = threading.Thread(target=watch, name="arrivals", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def committed(database: str) -> set[str]:
    """The messages whose intents have committed."""
    with psycopg.connect(database) as connection:
        return {str(name) for (name,) in connection.execute("SELECT message_id FROM ledger_intent")}


def judge(database: str, arrivals: Arrivals) -> Verdict:
    """Lost and phantom messages, and pairs of one ordering key that came in the wrong order (by first arrival)."""
    arrivals.look()
    with psycopg.connect(database) as connection:
        rows = connection.execute("SELECT message_id::text, ordering_key, position FROM ledger_intent").fetchall()
    places = {name: (key, position) for name, key, position in rows}
    firsts = list(dict.fromkeys(arrivals.copies))
    wrong, last = list[str](), dict[str, int]()
    for name in firsts:
        key, position = places.get(name, (None, None))
        if key is not None:
            if position < last.get(key, 0):
                wrong.append(name)
            last[key] = position
    return Verdict(
        written=len(places),
        lost=set(places) - set(firsts),
        phantom=set(firsts) - set(places),
        out_of_order=wrong,
        repeats=len(arrivals.copies) - len(firsts),
    )


def settle(database: str, arrivals: Arrivals, deadline: float = 20.0) -> Verdict:
    """Wait until every committed message has arrived, then demand that nothing else has, and that order was kept."""
    try:
        wait_until(lambda: committed(database) <= arrivals.look(), deadline, "every committed message at the broker")
    except TimeoutError as error:
        raise AssertionError(f"{error} {judge(database, arrivals)}") from None
    verdict = judge(database, arrivals)
    assert verdict.sound, str(verdict)
    return verdict

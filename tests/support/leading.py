"""The work of one term in the test's own process, with a database, a broker and everything between them real."""

import json
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import psycopg
import redis
from psycopg import sql

from relay.bell import Bell
from relay.database import connect
from relay.encode import Encoder
from relay.events import Event
from relay.lease import LeaseLost, Term
from relay.publication import Copy, Refused, Stamp
from relay.publish.redis import RedisPublisher
from relay.queries import queries_for
from relay.routing import AllowedTasks, DefaultQueue
from relay.settings import RelaySettings
from relay.work import Surroundings, Work
from tests.support.leases import take_lease

QUERIES = queries_for("public")


class Recorder:
    """A publisher that notes what the real one behind it got accepted, in order, whatever the queue."""

    def __init__(self, behind: RedisPublisher, *, keeps_order: bool) -> None:
        self.keeps_order = keeps_order
        self.accepted: list[Copy] = []
        self.before: Callable[[Sequence[Copy]], None] = lambda _: None
        self._behind = behind

    def publish(self, copies: Sequence[Copy], stamp: Stamp) -> Sequence[Refused]:
        self.before(copies)
        refused = self._behind.publish(copies, stamp)
        gone = {one.index for one in refused}
        self.accepted += [copy for index, copy in enumerate(copies) if index not in gone]
        return refused

    def ping(self) -> None:
        self._behind.ping()

    def close(self) -> None:
        self._behind.close()


class Leading:
    """One relay's terms. `drain` is `outbox relay --once`; `running` leads until the block ends."""

    def __init__(
        self, database: str, broker_url: str, undo: ExitStack, *, keeps_order: bool = True, **settings: Any
    ) -> None:
        self.settings = RelaySettings(database_url=database, broker_url=broker_url, **settings)
        self.routing = AllowedTasks(DefaultQueue("celery"), tuple(filter(None, self.settings.tasks.split(","))))
        encoder = Encoder(self.routing.queue_for)
        self.publisher = Recorder(RedisPublisher(broker_url, 1.0, encoder), keeps_order=keeps_order)
        self.events: list[Event] = []
        self.broker = redis.Redis.from_url(broker_url)
        self.stop = threading.Event()
        self.bell = Bell()
        self._database = database
        self._undo = undo
        undo.callback(self.broker.close)
        undo.callback(self.publisher.close)
        undo.callback(self.bell.close)
        self.connection = undo.enter_context(connect(database, 3.0, "test"))
        self.term = take_lease(database)

    def work(self, holds: Callable[[Term], bool] = lambda _: True) -> Work:
        around = Surroundings(
            settings=self.settings,
            queries=QUERIES,
            publisher=self.publisher,
            queue_for=self.routing.queue_for,
            holds=holds,
            stop=self.stop,
            bell=self.bell,
            observer=self.events.append,
            moved=lambda: None,
        )
        return Work(around, self.term, self.connection)

    def drain(self) -> list[str]:
        """Publish all there is, as a leader that has just begun; gives the ids in order of publication."""
        before = len(self.publisher.accepted)
        self.work().run(once=True)
        return [copy.row.id for copy in self.publisher.accepted[before:]]

    @contextmanager
    def running(self) -> Iterator[None]:
        raised: list[BaseException] = []

        def lead() -> None:
            try:
                self.work(lambda _: not self.stop.is_set()).run()
            except LeaseLost:
                pass
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=lead)
        thread.start()
        try:
            yield
        finally:
            self.stop.set()
            self.bell.ring()
            thread.join()
            self.stop.clear()
        assert not raised, raised

    def published(self) -> list[str]:
        return [copy.row.id for copy in self.publisher.accepted]

    def at_broker(self, queue: str = "celery") -> list[str]:
        """The ids in the queue, oldest first."""
        return [each["headers"]["id"] for each in self.copies(queue)]

    def copies(self, queue: str = "celery") -> list[dict[str, Any]]:
        return [json.loads(each) for each in reversed(self.broker.lrange(queue, 0, -1))]

    def with_settings(self, **changed: Any) -> None:
        self.settings = replace(self.settings, **changed)


Make = Callable[..., Leading]


class Outbox:
    """What an application and an operator do to the tables, one commit each."""

    def __init__(self, database: str) -> None:
        self.client = psycopg.connect(database, autocommit=True)

    def add(self, queue: str | None = None, key: str | None = None, task: str = "a.b", **columns: Any) -> str:
        found = {"id": str(uuid.uuid4()), "queue": queue, "ordering_key": key, "task": task, **columns}
        names = sql.SQL(", ").join(map(sql.Identifier, found))
        values = sql.SQL(", ").join(map(sql.Placeholder, found))
        self.client.execute(sql.SQL("INSERT INTO outbox_message ({}) VALUES ({})").format(names, values), found)
        return str(found["id"])

    def add_many(self, count: int, queue: str | None = None, key: str | None = None) -> list[str]:
        insert = """INSERT INTO outbox_message (id, task, queue, ordering_key)
            SELECT gen_random_uuid(), 'a.b', %s, %s FROM generate_series(1, %s) RETURNING id::text, seq"""
        rows = self.client.execute(insert, [queue, key, count]).fetchall()
        return [row[0] for row in sorted(rows, key=lambda row: row[1])]

    def pause(self, queue: str, seconds: float | None = None) -> None:
        self.client.execute(
            "INSERT INTO outbox_pause (queue, paused_by, why, paused_until)"
            " VALUES (%s, 'test', 'a test', clock_timestamp() + make_interval(secs => %s))",
            [queue, seconds],
        )

    def resume(self, queue: str) -> None:
        self.client.execute("DELETE FROM outbox_pause WHERE queue = %s", [queue])

    def register(self, task: str = "a.b", seconds: float = 60) -> None:
        self.client.execute("INSERT INTO inbox_consumer VALUES (%s, make_interval(secs => %s))", [task, seconds])

    def receipt(self, message: str, status: str, task: str = "a.b") -> None:
        insert = "INSERT INTO inbox_receipt (message_id, consumer, status) VALUES (%s, %s, %s)"
        self.client.execute(insert, [message, task, status])

    def receipts(self) -> dict[str, str]:
        return dict(self.client.execute("SELECT message_id::text, status FROM inbox_receipt").fetchall())

    def plan(self, message: str, due: str, reason: str, publication: int = 0) -> None:
        insert = """INSERT INTO outbox_due (message_id, due_at, reason, publication)
            VALUES (%s, clock_timestamp() + %s::interval, %s, %s)"""
        self.client.execute(insert, [message, due, reason, publication])

    def plans(self) -> dict[str, str | None]:
        """Message → what blocks it."""
        return dict(self.client.execute("SELECT message_id::text, blocked_by FROM outbox_due").fetchall())

    def one(self, query: str) -> Any:
        return self.client.execute(query.encode()).fetchall()[0][0]

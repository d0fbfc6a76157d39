"""Dump and restore into another cluster while the application already writes: nothing skipped, nothing old repeated."""

import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from relay.database import ForeignPosition, connect, identify
from relay.embedded import Postgres, wait_until
from relay.events import ClusterAdopted, ClusterMoved, Event, HistoryLost
from relay.migrate import upgrade
from relay.queries.rebase import RebaseQueries, rebase_queries_for
from relay.rebase import Admission, rebase
from relay.settings import RelaySettings
from tests.support.postgres import VERSIONS, postgres_of
from tests.support.restore import QUERIES, Client, Reader, burn, counter, move, other_cluster

TASK = "own.task"


class Clusters:
    """An old and a new cluster of one version; each test has a database of its own in both."""

    def __init__(self, old: Postgres, new: Postgres) -> None:
        self.old, self.new = old, new
        self._number = 0

    def databases(self) -> tuple[str, str]:
        self._number += 1
        name = f"moved_{self._number}"
        for each in (self.old, self.new):
            with psycopg.connect(each.url(), autocommit=True) as admin:
                admin.execute(f"CREATE DATABASE {name}".encode())
        upgrade(self.old.url(name))
        # Far enough ahead that the restore itself does not catch up.
        burn(self.old.url(), counter(self.new.url()) + 20_000)
        return self.old.url(name), self.new.url(name)


@pytest.fixture(scope="module", params=VERSIONS, ids=lambda major: f"postgres-{major}")
def clusters(request: pytest.FixtureRequest) -> Iterator[Clusters]:
    binaries = postgres_of(request.param)
    with other_cluster(binaries) as old, other_cluster(binaries) as new:
        yield Clusters(old, new)


def add(client: Client, key: str = "", count: int = 1) -> list[str]:
    made = [str(uuid4()) for _ in range(count)]
    for each in made:
        client.execute(
            "INSERT INTO outbox_message (id, task, ordering_key) VALUES (%s, %s, %s)", [each, TASK, key or None]
        )
    return made


def ended(client: Client, messages: list[str]) -> None:
    for each in messages:
        client.execute(
            "INSERT INTO inbox_receipt (message_id, consumer, status) VALUES (%s, %s, 'applied')", [each, TASK]
        )


class Story:
    """What the old cluster had published, swept and received when it was dumped."""

    def __init__(self, url: str) -> None:
        with ExitStack() as stack:
            client = stack.enter_context(psycopg.connect(url, autocommit=True))
            slow = stack.enter_context(psycopg.connect(url))
            client.execute("INSERT INTO inbox_consumer (task, receipt_timeout) VALUES (%s, '30 s')", [TASK])
            reader = Reader(url)
            stack.callback(reader.close)
            swept = add(client, count=5)
            reader.drain()
            client.execute("UPDATE outbox_leader SET reconciled = prev")
            late = add(slow, "late", 2)
            received, self.owed = add(client, count=5), add(client, count=3)
            reader.drain()
            ended(client, received)
            slow.commit()
            with client.transaction():
                window = late + add(client, "k", 20)
            reader.look(stop=lambda: len(reader.ids) > 20)
            self.published = list(reader.ids)
            self.half = [each for each in window if each not in self.published]
            self.owed += [each for each in window if each in self.published]
            self.waiting = self.half + add(client, "k", 6)
            assert len(self.half) > 5
            assert set(swept + received) <= set(self.published)


def settings(url: str, adopt: str) -> RelaySettings:
    return RelaySettings(database_url=url, broker_url="redis://localhost:1/0", adopt=adopt, name="test")


def admitted(url: str, adopt: str, events: list[Event]) -> bool:
    with connect(url, 3.0, "test") as connection:
        return Admission(settings(url, adopt), QUERIES, events.append).admit(connection)


@contextmanager
def busy(url: str) -> Iterator[None]:
    """Others use up transaction ids all the time, also while writers wait: ids between any two statements."""
    stop = threading.Event()

    def work() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            while not stop.is_set():
                connection.execute(
                    "DO $$ BEGIN FOR n IN 1..20 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$"
                )

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@contextmanager
def writing(url: str, keys: int = 3) -> Iterator[dict[str, list[str]]]:
    """Writers, each with an ordering key of its own; gives what they have committed, by key, in order."""
    stop, written = threading.Event(), {f"w{number}": list[str]() for number in range(keys)}

    def work(key: str) -> None:
        with psycopg.connect(url) as connection:
            while not stop.wait(0.002):
                made = add(connection, key, 2)
                connection.commit()
                written[key] += made

    threads = [threading.Thread(target=work, args=[key]) for key in written]
    for thread in threads:
        thread.start()
    try:
        yield written
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("lower_by", [None, 60], ids=["lower", "slightly-lower"])
def test_a_restored_outbox_goes_on_without_loss_and_without_repeats(clusters: Clusters, lower_by: int | None) -> None:
    old, new = clusters.databases()
    story = Story(old)
    move(clusters.old.binaries, old, new)
    passed = counter(old)
    assert counter(new) < passed
    if lower_by:
        burn(new, passed - lower_by)
    with psycopg.connect(new, autocommit=True) as client, psycopg.connect(new) as slow:
        slow.execute("SELECT pg_current_xact_id()")  # has an id before the re-base, and writes after it
        before = add(client, "k", 10)
        with writing(new) as written:
            if lower_by:
                wait_until(lambda: counter(new) > passed, 10, "the counter passes the old one")
            told: list[Event] = []
            assert not admitted(new, "ask", told)
            assert isinstance(told[0], ClusterMoved)
            with busy(new):
                assert admitted(new, "auto", told)
            assert isinstance(told[-1], ClusterAdopted)
            reader = Reader(new)
            reader.drain()
            late = add(slow, "k", 2)
            slow.commit()
            reader.drain()
            wait_until(lambda: all(len(each) > 20 for each in written.values()), 10, "everybody writes")
        if not lower_by:
            burn(new, passed + 10)
        last = add(client, "k", 2)
        reader.drain()
        reader.close()
        expected = [*story.waiting, *before, *late, *last, *(each for made in written.values() for each in made)]
        assert sorted(reader.ids) == sorted(expected), "each once, and nothing that was published before"
        for line in (story.waiting[len(story.half) :] + before + late + last, *written.values()):
            assert [each for each in reader.ids if each in set(line)] == line, "order of a key"
        assert [each for each in reader.ids if each in set(story.waiting)] == story.waiting
        planned = {row[0] for row in client.execute("SELECT message_id::text FROM outbox_due")}
        assert planned == set(story.owed), "published, and not yet looked for"


def test_the_sweep_behind_a_rebase_neither_loses_nor_repeats(clusters: Clusters) -> None:
    old, new = clusters.databases()
    story = Story(old)
    move(clusters.old.binaries, old, new)
    with psycopg.connect(new, autocommit=True) as client:
        assert admitted(new, "auto", [])
        assert client.execute(
            "SELECT count(*) FROM outbox_states(%s::uuid[]) WHERE state <> 'queued'", [story.waiting]
        ).fetchone() == (0,)
        reader = Reader(new)
        reader.drain()
        fresh = add(client, count=3)
        burn(new, counter(old) + 10)
        fresh += add(client, count=3)
        reader.drain()
        client.execute("DELETE FROM outbox_due")
        upto = client.execute("SELECT prev::text FROM outbox_leader").fetchall()[0][0]
        fence = {"epoch": reader.term.epoch, "holder": reader.term.holder}
        client.execute(QUERIES.sweep, fence | {"upto": upto, "age": "0 s"})
        planned = {row[0] for row in client.execute("SELECT message_id::text FROM outbox_due")}
        assert planned == {*story.waiting, *fresh}, "old ids lie in the new range, but were swept before"
        states = client.execute(
            "SELECT DISTINCT state FROM outbox_states(%s::uuid[])", [story.published + story.waiting]
        ).fetchall()
        assert {state for (state,) in states} <= {"published", "applied"}
        reader.close()


def test_two_relays_adopt_once_and_it_is_audited(clusters: Clusters) -> None:
    old, new = clusters.databases()
    story = Story(old)
    move(clusters.old.binaries, old, new)
    events: list[Event] = []
    start = threading.Barrier(2)

    def run() -> None:
        with connect(new, 3.0, "test") as connection:
            admission = Admission(settings(new, "auto"), QUERIES, events.append)
            start.wait()
            assert admission.admit(connection)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [type(each) for each in events] == [ClusterAdopted]
    with psycopg.connect(new) as client:
        rows = client.execute("SELECT who, action, affected, detail->>'followed_up' FROM outbox_audit").fetchall()
    assert rows == [("test", "adopt", len(story.waiting), str(len(story.owed)))]
    reader = Reader(new)
    reader.drain()
    assert reader.ids == story.waiting
    reader.close()


def test_a_leader_that_does_not_know_finds_its_epoch_gone(clusters: Clusters) -> None:
    old, new = clusters.databases()
    story = Story(old)
    move(clusters.old.binaries, old, new)
    with psycopg.connect(new, autocommit=True) as client, connect(new, 3.0, "zombie") as connection:
        client.execute("UPDATE outbox_leader SET epoch = epoch + 1, holder = %s", [uuid4()])
        epoch, holder = client.execute("SELECT epoch, holder FROM outbox_leader").fetchall()[0]
        assert admitted(new, "auto", [])
        before = client.execute("SELECT xmin::text, p::text FROM outbox_leader p").fetchall()
        fence = {"epoch": epoch, "holder": holder, "page": 10, "window_no": 1, "last_seq": 10**9}
        for statement in (QUERIES.open, QUERIES.advance, QUERIES.close, QUERIES.turn):
            assert connection.execute(statement, fence).rowcount == 0
        assert client.execute("SELECT xmin::text, p::text FROM outbox_leader p").fetchall() == before
    reader = Reader(new)
    reader.drain()
    assert reader.ids == story.waiting
    reader.close()


@pytest.mark.parametrize("step", [field.name for field in fields(RebaseQueries)])
def test_a_rebase_interrupted_anywhere_has_not_happened(database: str, step: str) -> None:
    with psycopg.connect(database, autocommit=True) as client:
        waiting = add(client, "k", 5)
        client.execute("UPDATE outbox_leader SET system_id = system_id - 1")
        everything = (
            "SELECT (SELECT array_agg(p::text) FROM outbox_leader p),"
            " (SELECT array_agg(m::text) FROM outbox_message m),"
            " (SELECT array_agg(w::text) FROM outbox_window w), (SELECT count(*) FROM outbox_audit)"
        )
        before = client.execute(everything).fetchall()
        broken = replace(rebase_queries_for("public"), **{step: b"SELECT 1 / 0"})
        with pytest.raises(psycopg.errors.DivisionByZero), connect(database, 3.0, "test") as connection:
            rebase(connection, broken, schema_sequence="public.outbox_message_seq", who="test", why="")
        assert client.execute(everything).fetchall() == before
        assert admitted(database, "auto", [])
        reader = Reader(database)
        reader.drain()
        assert reader.ids == waiting
        reader.close()


def test_a_rebase_gives_way_to_a_long_writer_and_tries_again(clusters: Clusters) -> None:
    old, new = clusters.databases()
    story = Story(old)
    move(clusters.old.binaries, old, new)
    events: list[Event] = []
    with psycopg.connect(new) as slow:
        late = add(slow, "k")
        assert not admitted(new, "auto", events)
        assert "waiting for transactions" in str(events)
        with pytest.raises(ForeignPosition), connect(new, 3.0, "test") as connection:
            identify(connection, QUERIES)
        slow.commit()
    assert admitted(new, "auto", events)
    reader = Reader(new)
    reader.drain()
    assert reader.ids == story.waiting + late
    reader.close()


def test_a_sequence_that_was_left_behind_loses_nothing(clusters: Clusters) -> None:
    """Logical replication carries no sequences: numbers of new rows are among those of old ones."""
    old, new = clusters.databases()
    story = Story(old)
    move(clusters.old.binaries, old, new)
    with psycopg.connect(new, autocommit=True) as client:
        client.execute("UPDATE outbox_leader SET system_id = (SELECT system_identifier FROM pg_control_system())")
        burn(new, counter(old))
        client.execute("ALTER SEQUENCE outbox_message_seq RESTART")
        fresh = add(client, "k", 4)
        with pytest.raises(ForeignPosition, match="its sequence is behind"), connect(new, 3.0, "test") as connection:
            identify(connection, QUERIES)
        assert admitted(new, "auto", [])
        reader = Reader(new)
        reader.drain()
        again = set(reader.ids) - {*story.waiting, *fresh}
        assert {*story.waiting, *fresh} <= set(reader.ids)
        assert len(again) <= 4, "only those whose number a new row may have had"
        assert [each for each in reader.ids if each in {*story.waiting, *fresh}] == story.waiting + fresh
        reader.close()


def test_an_older_physical_copy_repeats_nothing_that_it_had_published() -> None:
    """Same identifier, consistent inside: only a relay that has seen more can tell, and it does."""
    with Postgres() as postgres:
        url = postgres.url()
        upgrade(url)
        with psycopg.connect(url, autocommit=True) as client:
            published = add(client, count=5)
            reader = Reader(url)
            reader.drain()
            assert reader.ids == published
            survivors = add(client, count=3)
        reader.close()
        events: list[Event] = []
        admission = Admission(settings(url, "ask"), QUERIES, events.append)
        postgres.stop()
        copy = postgres.folder / "copy"
        _copy(postgres.data, copy)
        postgres.start()
        with psycopg.connect(url, autocommit=True) as client:
            add(client, count=5)
        Reader(url).close()
        with connect(url, 3.0, "test") as connection:
            assert admission.admit(connection)
        postgres.stop()
        postgres.data.rename(postgres.folder / "lost")
        copy.rename(postgres.data)
        postgres.start()
        with connect(url, 3.0, "test") as connection:
            assert admission.admit(connection)
        assert [type(each) for each in events] == [HistoryLost]
        reader = Reader(url)
        reader.drain()
        assert reader.ids == survivors
        reader.close()


def _copy(source: Path, target: Path) -> None:
    subprocess.run(["cp", "-a", source, target], check=True)  # noqa: S607  (owner and modes must stay)

"""Windows on a real log: late commits, rollbacks, savepoints and prepared transactions in any order."""

import random
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from relay.database import connect
from relay.lease import LeaseLost
from relay.queries import queries_for
from relay.read import Log
from relay.window import Window
from tests.support.leases import take_lease

QUERIES = queries_for("public")
INSERT = "INSERT INTO outbox_message (id, task, kwargs) VALUES (%s, 'a.b', %s)"
Client = psycopg.Connection[tuple[Any, ...]]


class Reader:
    """Reads every window and remembers what came, without a broker."""

    def __init__(self, url: str, page_size: int) -> None:
        self.term = take_lease(url)
        self.connection = connect(url, 3.0, "test")
        self.log = Log(self.connection, QUERIES, self.term, page_size)
        self.window: Window | None = self.log.resume()
        self.ids: list[str] = []
        self.seqs: list[list[int]] = []
        if self.window is not None:
            self._read(self.window)

    def look(self) -> int:
        """One turn of the relay's loop; returns how many rows it had."""
        finished, before = self.window, len(self.ids)
        self.window = self.log.turn(finished) if finished else self.log.open()
        if self.window is not None:
            self._read(self.window)
        elif finished is not None:
            self.log.close(finished)
        return len(self.ids) - before

    def _read(self, window: Window) -> None:
        seqs: list[int] = []
        for last_seq, rows, _ in self.log.batches(window):
            self.ids += [row.id for row in rows]
            seqs += [row.seq for row in rows]
            self.log.advance(window, last_seq)
        self.seqs.append(seqs)


Readers = Callable[[int], Reader]


@pytest.fixture
def readers(database: str) -> Iterator[Readers]:
    """Relays reading the log, given a page size; each new one takes the lease from the one before."""
    with ExitStack() as undo:

        def make(page_size: int) -> Reader:
            reader = Reader(database, page_size)
            undo.callback(reader.connection.close)
            return reader

        yield make


@pytest.fixture
def connections(database: str) -> Iterator[list[Client]]:
    made = [psycopg.connect(database) for _ in range(3)]
    yield list(made)
    for each in made:
        each.close()


def insert(connection: Client) -> str:
    key = str(uuid.uuid4())
    connection.execute(INSERT, [key, "{}"])
    return key


def read_all(reader: Reader) -> list[str]:
    while reader.look():
        pass
    return reader.ids


def test_a_late_commit_is_in_a_later_window(readers: Readers, connections: list[Client]) -> None:
    slow, fast, _ = connections
    reader = readers(10)
    late = insert(slow)
    early = insert(fast)
    fast.commit()
    assert read_all(reader) == [early]
    assert reader.look() == 0, "an open transaction does not stall the log"
    slow.commit()
    assert read_all(reader) == [early, late]
    assert reader.look() == 0


def test_rolled_back_work_never_appears(readers: Readers, connections: list[Client]) -> None:
    one, two, _ = connections
    reader = readers(10)
    insert(one)
    one.rollback()
    with two.transaction():
        kept = insert(two)
        try:
            with two.transaction():
                insert(two)
                raise psycopg.Rollback
        except psycopg.Rollback:
            pass
    two.commit()
    assert read_all(reader) == [kept]


def test_order_inside_a_window_is_seq_with_late_rows_merged(readers: Readers, connections: list[Client]) -> None:
    first, second, third = connections
    reader = readers(10)
    marker = insert(third)
    third.commit()
    first.execute("SELECT pg_current_xact_id()")  # takes its transaction id before the others insert
    assert read_all(reader) == [marker]
    a = insert(second)
    second.commit()
    b = insert(first)  # a lower transaction id, but a higher seq: it inserted after the other had committed
    first.commit()
    assert read_all(reader)[1:] == [a, b]


@pytest.mark.parametrize("page_size", [1, 3, 7, 1000])
def test_a_large_window_is_paged_and_resumed(readers: Readers, connections: list[Client], page_size: int) -> None:
    slow, fast, _ = connections
    opening = insert(fast)
    fast.commit()
    late = [insert(slow) for _ in range(5)]
    before = readers(page_size)
    assert read_all(before) == [opening]
    fresh = [insert(fast) for _ in range(20)]
    slow.commit()
    fast.commit()
    window = before.log.open()
    assert window is not None
    batches = before.log.batches(window)
    last_seq, rows, _ = next(batches)
    before.log.advance(window, last_seq)
    resumed = readers(page_size)  # another relay takes over in the middle
    assert [row.id for row in rows] + read_all(resumed) == late + fresh
    with pytest.raises(LeaseLost):
        before.log.advance(window, last_seq + 1)


def test_a_zombie_can_neither_open_turn_advance_nor_close(
    database: str, readers: Readers, connections: list[Client]
) -> None:
    zombie = readers(10)
    insert(connections[0])
    connections[0].commit()
    window = zombie.log.open()
    assert window is not None
    heir = readers(10)
    position = "SELECT p.xmin::text, p.ctid::text, p::text FROM outbox_leader p"
    with psycopg.connect(database) as connection:
        before = connection.execute(position).fetchall()
        assert zombie.log.turn(window) is None
        assert zombie.log.open() is None
        with pytest.raises(LeaseLost):
            zombie.log.advance(window, 10**9)
        with pytest.raises(LeaseLost):
            zombie.log.close(window)
        with pytest.raises(LeaseLost):
            zombie.log.resume()
        assert connection.execute(position).fetchall() == before
    assert len(heir.ids) == 1


class Storm:
    """Writers that commit, roll back, prepare and dawdle, each transaction after its own fashion."""

    def __init__(self, url: str, seed: int, writers: int, transactions: int) -> None:
        self._url = url
        self.committed: list[str] = []
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._write, args=(random.Random(seed * 100 + number), transactions))
            for number in range(writers)
        ]

    def __enter__(self) -> "Storm":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.join()

    @property
    def over(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)

    def _write(self, dice: random.Random, transactions: int) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            for _ in range(transactions):
                self._transaction(connection, dice)

    def _transaction(self, connection: Client, dice: random.Random) -> None:
        connection.execute("BEGIN" if dice.random() < 0.8 else "BEGIN ISOLATION LEVEL REPEATABLE READ")
        if dice.random() < 0.3:
            connection.execute("SELECT pg_current_xact_id()")
        ids = [insert(connection) for _ in range(dice.randint(1, 4))]
        if dice.random() < 0.2:
            connection.execute("SAVEPOINT s")
            insert(connection)
            connection.execute("ROLLBACK TO SAVEPOINT s")
        # Somebody else's statement decides how long this transaction stays open, not the clock.
        if dice.random() < 0.3:
            connection.execute("SELECT count(*) FROM generate_series(1, %s)", [dice.randint(1, 200_000)])
        ending = dice.random()
        if ending < 0.15:
            connection.execute("ROLLBACK")
            return
        if ending < 0.3:
            gid = uuid.uuid4().hex
            connection.execute(f"PREPARE TRANSACTION '{gid}'")
            connection.execute(f"COMMIT PREPARED '{gid}'")
        else:
            connection.execute("COMMIT")
        with self._lock:
            self.committed += ids


def weather(database: str, readers: Readers, seed: int) -> None:
    reader = readers(random.Random(seed).choice([2, 5, 50]))
    windows = 0
    with Storm(database, seed, writers=6, transactions=25) as storm:
        while not storm.over:
            windows += bool(reader.look())
            if windows and windows % 10 == 0:
                # Another relay takes over; what it is told is only what the database remembers.
                reader_ids, reader_seqs = reader.ids, reader.seqs
                reader = readers(5)
                reader.ids, reader.seqs, windows = reader_ids + reader.ids, reader_seqs + reader.seqs, windows + 1
    read_all(reader)
    assert sorted(reader.ids) == sorted(storm.committed), f"seed {seed}: each committed message exactly once"
    assert all(seqs == sorted(seqs) for seqs in reader.seqs), f"seed {seed}: by seq inside a window"


@pytest.mark.parametrize("seed", range(6))
def test_every_committed_message_is_read_once_whatever_the_weather(database: str, readers: Readers, seed: int) -> None:
    weather(database, readers, seed)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(1000, 1200))
def test_every_committed_message_is_read_once_in_all_weathers(database: str, readers: Readers, seed: int) -> None:
    weather(database, readers, seed)

"""A database that crashes, restarts, is full, is locked or has no room: the relay lives on and nothing is lost.

There is no consumer here, so nothing repairs a loss: what reaches the broker is what the relay delivers.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg import sql

from outbox import Message, Outbox
from relay.embedded import Postgres, wait_until
from tests.support import ledger
from tests.support.arrivals import Arrivals, committed
from tests.support.postgres import empty_disk, fill_disk, keep_commits_in_memory, role, url_of
from tests.support.processes import Programs, wait_for_line
from tests.support.scene import Scene, opened, peak_megabytes
from tests.support.writers import load

OURS = "SELECT pid, application_name FROM pg_stat_activity WHERE application_name LIKE 'outbox %'"
TERMINATE_ALL = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE pid <> pg_backend_pid() AND backend_type = 'client backend' AND datname = current_database()
"""
# As few commits of the relay's own as can be: each takes everybody's log to the disk, and would hide a window that is
# not on it.
RARE_COMMITS = {"OUTBOX_WAKEUP": "poll", "OUTBOX_LEASE_TTL": "10"}
WAL_SEGMENT = 16 * 1024 * 1024


class AsyncWriter:
    """An application that does not wait for the disk: what PostgreSQL has told it may be gone after a crash."""

    def __init__(self, database: str) -> None:
        self.told: set[str] = set()
        self._database = database

    def wait_for(self, more: int) -> None:
        target = len(self.told) + more
        wait_until(lambda: len(self.told) >= target, 10, f"{more} more commits")

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Until the database crashes, which ends it, or the block is left."""
        stop = threading.Event()
        thread = threading.Thread(target=self._write, args=[stop], name="async writer", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(30)  # it may hang with a database that hangs, which must not hide why

    def _write(self, stop: threading.Event) -> None:
        try:
            with psycopg.connect(self._database) as connection:
                connection.execute("SET synchronous_commit = off")
                connection.commit()
                while not stop.wait(0.001):
                    added = Outbox().add(connection, Message("a.task"))
                    ledger.intend(connection, added.id)
                    connection.commit()
                    self.told.add(str(added.id))
        except psycopg.OperationalError:
            pass


def crash_with_commits_in_memory(scene: Scene, cluster: Postgres, rounds: int) -> None:
    """The relay has published some of them, and is stopped short of asking for the disk on behalf of the others."""
    application = AsyncWriter(scene.database)
    scene.start_relay()
    for _ in range(rounds):
        keep_commits_in_memory(cluster)
        with application.writing():
            scene.arrivals.wait_for_more(20)
            scene.relay.freeze()
            application.wait_for(20)
            cluster.crash()
        cluster.start()
        phantom = scene.arrivals.look() - committed(scene.database)
        assert not phantom, f"{len(phantom)} messages were published and are gone"
        scene.relay.thaw()
        scene.require_flow(5, "after the database came back")
    assert application.told - committed(scene.database), "the crashes took commits with them, or nothing was tried"


def test_no_phantom_when_a_crash_takes_asynchronous_commits(
    programs: Programs, own_cluster: Postgres, own_database: str, broker_url: str
) -> None:
    with opened(programs, own_database, broker_url, RARE_COMMITS) as scene:
        crash_with_commits_in_memory(scene, own_cluster, 2)


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_no_phantom_when_many_crashes_take_asynchronous_commits(
    programs: Programs, own_cluster: Postgres, own_database: str, broker_url: str
) -> None:
    with opened(programs, own_database, broker_url, RARE_COMMITS) as scene:
        crash_with_commits_in_memory(scene, own_cluster, 20)


def storm(scene: Scene, cluster: Postgres, seconds: float) -> None:
    scene.start_relay()
    with scene.writer.writing():
        scene.arrivals.wait_for_more(20)
        for _ in range(round(seconds * 5)):
            scene.query(TERMINATE_ALL)
            time.sleep(0.2)  # the storm's own rhythm
        cluster.restart()
        scene.arrivals.wait_for_more(20)
    scene.require_flow(5, "after the storm")


def test_no_loss_when_connections_are_ended_and_the_server_restarts(
    programs: Programs, own_cluster: Postgres, own_database: str, broker_url: str
) -> None:
    with opened(programs, own_database, broker_url) as scene:
        storm(scene, own_cluster, 2)


@pytest.mark.chaos
@pytest.mark.timeout(300)
def test_no_loss_in_a_long_storm_of_ended_connections(
    programs: Programs, own_cluster: Postgres, own_database: str, broker_url: str
) -> None:
    with opened(programs, own_database, broker_url) as scene:
        storm(scene, own_cluster, 60)


def test_a_full_disk_stops_the_application_and_not_the_relay(
    programs: Programs, own_cluster: Postgres, own_database: str, broker_url: str
) -> None:
    with opened(programs, own_database, broker_url) as scene:
        scene.start_relay()
        load(own_database, 10_000, size=1800)
        (size,) = scene.query("SELECT pg_relation_size('outbox_message')")[0]
        assert size > WAL_SEGMENT, "else it is the log that has no space"
        fill_disk(own_cluster, size)
        with pytest.raises(psycopg.Error, match=r"could not (extend|write)"):
            load_until_refused(own_database)
        scene.settle()
        empty_disk(own_cluster)
        scene.require_flow(10, "after there was space again")


def load_until_refused(database: str) -> None:
    """What is committed before stays, what is refused leaves nothing."""
    for _ in range(1000):
        load(database, 20, size=1800)


def test_no_loss_when_the_log_of_the_database_has_no_space(
    programs: Programs, own_cluster: Postgres, own_database: str, broker_url: str
) -> None:
    """PostgreSQL gives up when it cannot write its log, and comes back when it is started with space."""
    with opened(programs, own_database, broker_url) as scene:
        scene.start_relay()
        with scene.writer.writing():
            scene.arrivals.wait_for_more(20)
            said = len(scene.relay.output())
            fill_disk(own_cluster, 65536)
            wait_until(lambda: not own_cluster.running, 20, "PostgreSQL to give up")
            wait_for_line(scene.relay, "database_unavailable", since=said)
            own_cluster.start()
        scene.require_flow(10, "after there was space again")


def test_no_connection_left_is_an_outage(programs: Programs, database: str, broker_url: str) -> None:
    with opened(programs, database, broker_url) as scene, role(database) as name:
        scene.start_relay(database=url_of(name, database))
        scene.require_flow(5, "at first")
        limit(database, name, 0)
        scene.query(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{name}'")  # noqa: S608
        said = len(scene.relay.output())
        scene.writer.write(20)
        wait_for_line(scene.relay, "database_unavailable.*too many connections", since=said)
        began = time.monotonic()
        wait_until(lambda: time.monotonic() >= began + 2, 3, "tries in vain")
        tries = scene.relay.output()[said:].count("database_unavailable")
        assert tries <= 30, f"{tries} tries in 2 s are a storm of their own"
        limit(database, name, -1)
        scene.require_flow(5, "after connections were to be had")


def limit(database: str, name: str, connections: int) -> None:
    with psycopg.connect(database, autocommit=True) as admin:
        statement = sql.SQL("ALTER ROLE {} CONNECTION LIMIT {}")
        admin.execute(statement.format(sql.Identifier(name), sql.Literal(connections)))


def lock_out(scene: Scene, seconds: float) -> None:
    """A migration of somebody else holds the table, and the relay's role has a statement_timeout made for web pages."""
    with role(scene.database) as name:
        with psycopg.connect(scene.database, autocommit=True) as admin:
            admin.execute(sql.SQL("ALTER ROLE {} SET statement_timeout = '50ms'").format(sql.Identifier(name)))
        scene.start_relay(database=url_of(name, scene.database))
        scene.require_flow(5, "at first")
        before = scene.position()
        with psycopg.connect(scene.database) as migration, scene.writer.writing():
            migration.execute("LOCK outbox_message IN ACCESS EXCLUSIVE MODE")
            end = time.monotonic() + seconds
            wait_until(lambda: time.monotonic() >= end, seconds + 1, "a long migration")
            assert scene.position().held
            migration.commit()
            released = time.monotonic()
            scene.arrivals.wait_for_more()
            assert max(scene.arrivals.seen.values()) - released <= 2
        scene.settle()
        assert scene.position().epoch == before.epoch, "waiting for a lock costs no lease"
        assert "database_unavailable" not in scene.relay.output()


def test_a_locked_table_is_waited_for(programs: Programs, database: str, broker_url: str) -> None:
    with opened(programs, database, broker_url) as scene:
        lock_out(scene, 3)


@pytest.mark.chaos
def test_a_table_locked_for_long_is_waited_for(programs: Programs, database: str, broker_url: str) -> None:
    with opened(programs, database, broker_url) as scene:
        lock_out(scene, 20)


def test_polling_takes_over_when_nobody_wakes_the_relay(programs: Programs, database: str, broker_url: str) -> None:
    with opened(programs, database, broker_url) as scene, scene.arrivals.watching():
        scene.start_relay()
        scene.require_flow(5, "at first")
        # A flag that says awake while the relay sleeps: no writer notifies.
        scene.query("SELECT setval('outbox_wake', 1)")
        scene.require_flow(1.5, "without a notification")
        for label in sorted({name for _, name in scene.query(OURS)}):
            for pid, name in scene.query(OURS):
                if name == label:
                    scene.query(f"SELECT pg_terminate_backend({pid})")
            scene.require_flow(1.5, f"after the end of the connection {label!r}")


def work_off(programs: Programs, database: str, broker_url: str, backlog: int, deadline: float) -> None:
    with opened(programs, database, broker_url) as scene, Arrivals(broker_url, take=True) as taken:
        load(database, backlog)
        scene.start_relay()
        wait_until(lambda: len(taken.look()) >= backlog, deadline, f"a backlog of {backlog} to be worked off")
        assert taken.look() == committed(database)
        assert len(taken.copies) == backlog, "nothing is repeated"
        assert peak_megabytes(scene.relay) < 256


def test_a_backlog_is_worked_off_in_bounded_memory(programs: Programs, database: str, broker_url: str) -> None:
    work_off(programs, database, broker_url, 100_000, 60)


@pytest.mark.chaos
@pytest.mark.timeout(400)
def test_a_large_backlog_is_worked_off_in_bounded_memory(programs: Programs, database: str, broker_url: str) -> None:
    work_off(programs, database, broker_url, 1_000_000, 300)

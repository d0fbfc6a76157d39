"""PostgreSQL as a child: it starts, dies, comes back with its data and leaves nothing behind."""

import socket
from collections.abc import Iterator
from functools import partial

import psycopg
import pytest

from relay.embedded import EmbeddedError, Postgres, ProcessDied, free_port, wait_until
from relay.embedded.guardian import family, living, shared_segments

SSL_REQUEST = b"\x00\x00\x00\x08\x04\xd2\x16\x2f"


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    """One for all tests of this file: each leaves it running."""
    with Postgres() as started:
        yield started


def execute(postgres: Postgres, statement: str) -> None:
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        connection.execute(statement.encode())


def rows(postgres: Postgres, query: str) -> list[tuple[object, ...]]:
    with psycopg.connect(postgres.url(), autocommit=True) as connection:
        return connection.execute(query.encode()).fetchall()


def test_it_serves_with_the_promised_settings(postgres: Postgres) -> None:
    wanted = {
        "dynamic_shared_memory_type": "mmap",
        "fsync": "on",
        "jit": "off",
        "listen_addresses": "127.0.0.1",
        "max_connections": "200",
        "max_prepared_transactions": "20",
        "server_encoding": "UTF8",
        "unix_socket_directories": "",
    }
    found = rows(postgres, "SELECT name, setting FROM pg_settings")
    assert {name: value for name, value in found if name in wanted} == wanted


def test_committed_rows_survive_each_kind_of_end(postgres: Postgres) -> None:
    execute(postgres, "CREATE TABLE kept (at timestamptz DEFAULT now())")
    port = postgres.port
    for end in (postgres.crash, postgres.stop, partial(postgres.stop, "immediate")):
        execute(postgres, "INSERT INTO kept DEFAULT VALUES")
        processes = family(postgres.process.pid)
        end()
        assert living(processes) == []
        assert not postgres.running
        postgres.start()
    assert postgres.port == port
    assert rows(postgres, "SELECT count(*) FROM kept") == [(3,)]


def test_a_frozen_cluster_keeps_its_connections_and_answers_after_the_thaw(postgres: Postgres) -> None:
    with psycopg.connect(postgres.url()) as before:
        postgres.freeze()
        with socket.create_connection(("127.0.0.1", postgres.port), timeout=0.1) as line:
            line.sendall(SSL_REQUEST)
            with pytest.raises(TimeoutError):
                line.recv(1)
            postgres.thaw()
            line.settimeout(10)
            assert line.recv(1) == b"N"
        assert before.execute("SELECT 1").fetchone() == (1,)


def test_a_restart_ends_connections_and_keeps_the_port(postgres: Postgres) -> None:
    with psycopg.connect(postgres.url()) as connection:
        postgres.restart()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    assert rows(postgres, "SELECT 1") == [(1,)]


def test_closing_leaves_nothing_behind_and_allows_a_fresh_start() -> None:
    another = Postgres(settings={"fsync": False})
    for crashed_before in (False, True):
        another.start()
        folder, processes = another.folder, family(another.process.pid)
        assert rows(another, "SELECT 1") == [(1,)]
        if crashed_before:
            another.crash()
        another.close()
        assert not folder.exists()
        assert living(processes) == []
        assert shared_segments(processes) == []


def test_starting_twice_is_refused(postgres: Postgres) -> None:
    with pytest.raises(EmbeddedError, match="already running on port"):
        postgres.start()
    assert postgres.running


def test_a_wrong_setting_is_reported_with_the_servers_own_words() -> None:
    with pytest.raises(ProcessDied, match=r"(?s)ended with code 1 before: serving clients.*shared_buffers"):
        Postgres(settings={"fsync": False, "shared_buffers": "a lot"}).start()


def test_a_taken_port_is_reported_when_it_was_asked_for(postgres: Postgres) -> None:
    with pytest.raises(EmbeddedError, match=f"cannot listen on port {postgres.port}: somebody else does"):
        Postgres(port=postgres.port).start()


def test_a_port_taken_meanwhile_is_replaced(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    free = free_port()
    ports = iter([postgres.port, free])
    monkeypatch.setattr("relay.embedded.server.free_port", lambda: next(ports))
    with Postgres(settings={"fsync": False}) as another:
        assert another.port == free


def test_a_killed_backend_is_not_the_end_of_the_cluster(postgres: Postgres) -> None:
    with psycopg.connect(postgres.url(), autocommit=True) as victim, pytest.raises(psycopg.OperationalError):
        victim.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    wait_until(lambda: rows(postgres, "SELECT 1"), 5, "the cluster to serve again")

"""Each way of hurting the wire, seen from a client."""

import socket
import socketserver
import threading
from collections.abc import Callable, Iterator

import psycopg
import pytest

from relay.embedded import free_port, wait_until
from tests.support.postgres import Cluster
from tests.support.proxy import Proxy

ProxyTo = Callable[[int], Proxy]


class Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while data := self.request.recv(1024):
            self.server.heard.append(data)  # type: ignore[attr-defined]
            self.request.sendall(data.upper())


class EchoServer(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", free_port()), Echo)
        self.heard: list[bytes] = []


@pytest.fixture
def echo() -> Iterator[EchoServer]:
    with EchoServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(echo: EchoServer, proxy_to: ProxyTo) -> Proxy:
    return proxy_to(echo.server_address[1])


def dial(proxy: Proxy, timeout: float = 5.0) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=timeout)


def ask(line: socket.socket, words: bytes) -> bytes:
    line.sendall(words)
    return line.recv(1024)


def test_a_healthy_wire_passes_everything(proxy: Proxy) -> None:
    with dial(proxy) as line:
        assert ask(line, b"one") == b"ONE"
        assert proxy.connections == 1
    wait_until(lambda: proxy.connections == 0, 5, "the closed connection to go")


def test_the_end_of_one_side_reaches_the_other(proxy: Proxy) -> None:
    with dial(proxy) as line:
        line.sendall(b"last words")
        line.shutdown(socket.SHUT_WR)
        assert line.recv(1024) == b"LAST WORDS"
        assert line.recv(1024) == b""


def test_a_cut_resets_living_connections_and_accepts_new_ones(proxy: Proxy) -> None:
    with dial(proxy) as line:
        ask(line, b"one")
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            line.recv(1024)
    with dial(proxy) as line:
        assert ask(line, b"two") == b"TWO"


def test_refusing_ends_with_healing(proxy: Proxy) -> None:
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        dial(proxy)
    proxy.heal()
    with dial(proxy) as line:
        assert ask(line, b"one") == b"ONE"


def test_swallowed_replies_leave_the_request_done(proxy: Proxy, echo: EchoServer) -> None:
    with dial(proxy, timeout=0.05) as line:
        proxy.swallow_replies()
        with pytest.raises(TimeoutError):
            ask(line, b"one")
        wait_until(lambda: echo.heard == [b"one"], 5, "the request to arrive")
        proxy.heal()
        with pytest.raises(ConnectionResetError):
            line.recv(1024)


def test_a_partition_holds_back_both_ways_until_healed(proxy: Proxy, echo: EchoServer) -> None:
    with dial(proxy, timeout=0.05) as line:
        proxy.partition()
        with pytest.raises(TimeoutError):
            ask(line, b"one")
        assert echo.heard == []
        proxy.heal()
        line.settimeout(5)
        assert line.recv(1024) == b"ONE"


def test_a_delay_holds_each_chunk_back(proxy: Proxy) -> None:
    with dial(proxy, timeout=0.05) as line:
        proxy.delay(0.1)
        with pytest.raises(TimeoutError):
            ask(line, b"one")
        line.settimeout(5)
        assert line.recv(1024) == b"ONE"


@pytest.mark.parametrize(("forwarded", "heard"), [(True, b"xCOMMIT"), (False, b"xCOM")])
def test_a_trap_cuts_at_a_pattern_across_chunks(proxy: Proxy, echo: EchoServer, forwarded: bool, heard: bytes) -> None:
    trap = proxy.cut_at(b"COMMIT", forwarded=forwarded)
    with dial(proxy) as line:
        assert ask(line, b"xCOM") == b"XCOM"
        with pytest.raises(ConnectionResetError):
            ask(line, b"MIT")
    trap.wait()
    assert b"".join(echo.heard) == heard
    with dial(proxy) as line:
        assert ask(line, b"COMMIT") == b"COMMIT"


@pytest.mark.parametrize("forwarded", [True, False])
def test_an_ambiguous_commit(cluster: Cluster, empty_database: str, proxy_to: ProxyTo, forwarded: bool) -> None:
    with psycopg.connect(empty_database, autocommit=True) as direct:
        direct.execute("CREATE TABLE written (id int)")
        proxy = proxy_to(int(direct.info.port))
        trap = proxy.cut_at(b"COMMIT", forwarded=forwarded)
        with psycopg.connect(proxy.url(empty_database)) as connection:
            connection.execute("INSERT INTO written VALUES (1)")
            with pytest.raises(psycopg.OperationalError):
                connection.commit()
        trap.wait()
        assert direct.execute("SELECT count(*) FROM written").fetchone() == (int(forwarded),)

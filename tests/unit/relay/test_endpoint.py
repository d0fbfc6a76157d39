"""A small HTTP server that nobody can hold up: slow callers, many callers, wrong callers."""

import http.client
import socket
import threading
from collections.abc import Iterator

import pytest

from outbox.errors import ConfigurationError
from relay.endpoint import Answer, Endpoint, Remembered, listening, shown
from relay.events import EndpointOpened, EndpointUnavailable, Event
from relay.monitor import Monitor


def broken() -> Answer:
    raise RuntimeError("the secret")


@pytest.fixture
def port() -> Iterator[int]:
    listener = listening("127.0.0.1", 0)
    endpoint = Endpoint(listener, {"/livez": lambda: Answer(200, b"ok\n"), "/broken": broken})
    endpoint.start()
    yield listener.getsockname()[1]
    endpoint.stop()


def ask(port: int, method: str = "GET", path: str = "/livez") -> tuple[int, bytes, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=3)  # less than an unfinished request may take
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.headers
    finally:
        connection.close()


def test_get_and_head_are_answered(port: int) -> None:
    assert ask(port)[:2] == (200, b"ok\n")
    assert ask(port, path="/livez?full=1")[0] == 200
    status, body, headers = ask(port, "HEAD")
    assert (status, body, headers["Content-Length"]) == (200, b"", "3")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_else_is(port: int, method: str) -> None:
    status, _, headers = ask(port, method)
    assert (status, headers["Allow"]) == (405, "GET, HEAD")


def test_an_unknown_path_is_told_which_there_are(port: int) -> None:
    assert ask(port, path="/")[:2] == (404, b"there are /metrics, /livez and /readyz\n")


def test_a_page_that_fails_tells_no_secrets(port: int) -> None:
    assert ask(port, path="/broken")[:2] == (500, b"RuntimeError\n")


@pytest.mark.parametrize(
    "said", [b"nonsense\r\n\r\n", b"GET /livez\r\n\r\n", b"\x16\x03\x01\r\n\r\n", b"GET " + b"x" * 20_000]
)
def test_a_wrong_request_is_refused_and_harms_nobody(port: int, said: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as line:
        line.sendall(said)
        assert line.recv(100).startswith(b"HTTP/1.1 400 ")
    assert ask(port)[0] == 200


def ended(line: socket.socket) -> bool:
    """Whether the other side has closed it."""
    line.setblocking(False)
    try:
        return line.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def test_callers_who_never_finish_take_no_thread_and_keep_nobody_out(port: int) -> None:
    """More than there is room for: the oldest make way, at once, not when their time is up."""
    threads = threading.active_count()
    lines = [socket.create_connection(("127.0.0.1", port), timeout=5) for _ in range(100)]
    try:
        for line in lines:
            line.sendall(b"GET /livez HTTP/1.1\r\nHost: ")
        assert [ask(port)[0] for _ in range(20)] == [200] * 20
        assert threading.active_count() <= threads + 8
        assert sum(ended(line) for line in lines) >= 100 - 32
    finally:
        for line in lines:
            line.close()


def test_a_page_is_rendered_at_most_once_a_second_however_many_ask() -> None:
    calls: list[int] = []

    def make() -> Answer:
        calls.append(1)
        return Answer(200, str(len(calls)).encode())

    page = Remembered(make, seconds=60)
    assert {page().body for _ in range(50)} == {b"1"}


def test_an_address_that_was_asked_for_and_is_taken_is_an_error_in_one_line() -> None:
    with listening("127.0.0.1", 0) as taken, pytest.raises(ConfigurationError) as caught:
        Monitor(shown(taken), "1")
    assert "Address already in use" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_default_address_that_is_taken_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Event] = []
    with listening("127.0.0.1", 0) as taken:
        monkeypatch.setattr("relay.monitor.DEFAULT_ADDRESS", shown(taken))
        with Monitor(shown(taken), "1", observer=told.append) as monitor:
            assert monitor.address is None
    assert [type(event) for event in told] == [EndpointUnavailable]


def test_no_address_means_no_endpoint() -> None:
    assert Monitor("", "1").address is None


def test_any_free_port_can_be_asked_for_and_is_told() -> None:
    told: list[Event] = []
    with Monitor("127.0.0.1:0", "1", observer=told.append) as monitor:
        assert monitor.address is not None
        assert told == [EndpointOpened(monitor.address)]
        status, body, headers = ask(int(monitor.address.rpartition(":")[2]), path="/metrics")
    assert (status, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert b"# TYPE outbox_relay_published_total counter" in body

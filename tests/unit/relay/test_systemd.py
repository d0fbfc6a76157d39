"""Words to systemd: a datagram each, to a path or an abstract name, and none when nobody listens."""

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from relay.embedded import wait_until
from relay.monitor import Monitor
from relay.systemd import Notifier


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, str]]:
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        path = str(Path(folder) / "notify")
        name = path if request.param == "path" else f"@{path}"
        listener.bind("\0" + name[1:] if name[0] == "@" else name)
        listener.settimeout(5)
        yield listener, name


def test_a_service_says_ready_alive_and_stopping(systemd: tuple[socket.socket, str]) -> None:
    listener, name = systemd
    environ = {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "100000", "WATCHDOG_PID": str(os.getpid())}
    with Monitor("", "1", notifier=Notifier(environ)):
        assert listener.recv(1000).startswith(b"READY=1\nSTATUS=")
        assert listener.recv(1000) == b"WATCHDOG=1"
    said = [listener.recv(1000)]
    while not said[-1].startswith(b"STOPPING=1"):
        said.append(listener.recv(1000))
    assert set(said[:-1]) <= {b"WATCHDOG=1"}


def test_a_loop_that_hangs_is_not_covered_up(systemd: tuple[socket.socket, str]) -> None:
    listener, name = systemd
    asked: list[int] = []

    def hangs() -> bool:
        asked.append(1)
        return False

    notifier = Notifier({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "20000"})
    notifier.feed(hangs)
    wait_until(lambda: len(asked) > 3, 5, "the watchdog to look")
    notifier.stop()
    listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        listener.recv(1000)


@pytest.mark.parametrize(
    "environ",
    [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:2:1"}, {"NOTIFY_SOCKET": "/no/such/socket"}],
    ids=str,
)
def test_where_nobody_listens_nothing_happens(environ: dict[str, str]) -> None:
    Notifier(environ).tell("READY=1")


@pytest.mark.parametrize(
    "given", [{"WATCHDOG_USEC": "x"}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "9", "WATCHDOG_PID": "1"}]
)
def test_a_watchdog_that_is_not_ours_is_not_fed(given: dict[str, str]) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": "/no/such/socket", **given})
    notifier.feed(lambda: pytest.fail("asked"))
    notifier.stop()

"""Tell systemd: ready, alive, stopping. A datagram to the socket named in NOTIFY_SOCKET; without it nothing is said.

The watchdog is fed only while the relay's loops move (health.py), so `WatchdogSec=` ends a process that hangs.
"""

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Mapping


class Notifier:
    """One service; `Type=notify` in its unit."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        given = os.environ if environ is None else environ
        name = given.get("NOTIFY_SOCKET", "")
        # A leading @ stands for the zero byte of an abstract name. Anything else that is no path is not for us.
        self._address = "\0" + name[1:] if name.startswith("@") else name if name.startswith("/") else ""
        self._every = _half_of(given.get("WATCHDOG_USEC", ""), given.get("WATCHDOG_PID", ""))
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def tell(self, *lines: str) -> None:
        """`READY=1`, `STATUS=...`; a systemd that does not listen is no reason to fail."""
        if not self._address:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
            line.settimeout(1.0)
            line.sendto("\n".join(lines).encode(), self._address)

    def feed(self, alive: Callable[[], bool]) -> None:
        """Feed the watchdog, twice as often as it asks, as long as this answers yes."""
        if not self._address or self._every is None:
            return
        every = self._every

        def run() -> None:
            while not self._stop.wait(every):
                if alive():
                    self.tell("WATCHDOG=1")

        self._thread = threading.Thread(target=run, name="outbox-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=2.0)


def _half_of(microseconds: str, pid: str) -> float | None:
    """Half of the watchdog's patience in seconds; None if there is none, or it watches another process."""
    if not microseconds.isdecimal() or not int(microseconds) or (pid and pid != str(os.getpid())):
        return None
    return int(microseconds) / 2_000_000

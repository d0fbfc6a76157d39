"""One child process: start it, watch it, freeze it, end it, and say why it ended.

Every child leads a session of its own, so it is ended together with everything it started, by number and never
by name. `wait_until` is the one place where time passes: everybody else waits for something, with a deadline.
"""

import errno
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from relay.embedded.account import Account
from relay.embedded.errors import DeadlineExceeded, EmbeddedError, ProcessDied
from relay.embedded.guardian import Guardian, family, freeze_family, kill_family, signal_all

Seen = TypeVar("Seen")

_FIRST_PAUSE = 0.001
_LONGEST_PAUSE = 0.05
_PORTS = (20000, 32000)


def wait_until(predicate: Callable[[], Seen], deadline: float, what: str) -> Seen:
    """Call `predicate` until it returns something true, and return that; `deadline` is in seconds from now."""
    end = time.monotonic() + deadline
    pause = _FIRST_PAUSE
    while not (seen := predicate()):
        left = end - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded(f"waited {deadline:g} s for {what}, in vain.")
        time.sleep(min(pause, left))
        pause = min(pause * 2, _LONGEST_PAUSE)
    return seen


def free_port() -> int:
    """A TCP port of the loopback interface that nobody uses now.

    Taken from below the range the kernel gives to outgoing connections: a client that keeps dialling a stopped
    server inside that range can end up connected to itself, and then the server cannot come back.
    """
    for port in random.SystemRandom().sample(range(*_PORTS), 100):
        if not port_taken(port):
            return port
    raise EmbeddedError(f"no free TCP port between {_PORTS[0]} and {_PORTS[1]}: end some local servers.")


def port_taken(port: int) -> bool:
    """Whether a server could not listen on this port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return True
            raise
    return False


class Process:
    """A running child process. Make one with `Process.start`."""

    def __init__(self, popen: "subprocess.Popen[bytes]", name: str, log: Path, guardian: Guardian, owned: bool):
        self.name = name
        self.log = log
        self._popen = popen
        self._guardian = guardian
        self._owns_guardian = owned
        self._released = False

    @classmethod
    def start(
        cls,
        argv: Sequence[str | Path],
        *,
        name: str,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        account: Account | None = None,
        guardian: Guardian | None = None,
        farewell: int = signal.SIGKILL,
    ) -> "Process":
        """Start a program with its output appended to `log`.

        Without `env` it gets ours. `farewell` is the signal the guardian sends first when we die.
        """
        keeper = guardian or Guardian()
        drop = {} if account is None else {"user": account.uid, "group": account.gid, "extra_groups": ()}
        try:
            with log.open("ab") as output:
                popen = subprocess.Popen(
                    [str(part) for part in argv],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=None if env is None else dict(env),
                    cwd=cwd,
                    start_new_session=True,
                    **drop,  # type: ignore[call-overload]
                )
        except OSError as error:
            if guardian is None:
                keeper.close()
            raise ProcessDied(f"{name} did not start: {error.strerror or error} ({argv[0]}).") from error
        keeper.watch(popen.pid, farewell)
        return cls(popen, name, log, keeper, owned=guardian is None)

    @property
    def pid(self) -> int:
        """The number of the process itself; its children have others."""
        return self._popen.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs (a frozen one does)."""
        if self._popen.poll() is None:
            return True
        self._release()
        return False

    @property
    def code(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return None if self.alive else self._popen.returncode

    def children(self) -> list[int]:
        """The numbers of the processes it started, and those they started."""
        return [pid for pid in family(self.pid) if pid != self.pid]

    def send(self, number: int) -> None:
        """Send a signal to the process itself, if it still runs."""
        if self.alive:
            signal_all([self.pid], number)

    def kill(self, *, children: bool = True) -> None:
        """SIGKILL. Without `children` only the process itself, as the kernel does when memory is short."""
        if self.alive:
            if children:
                kill_family(self.pid)
            else:
                signal_all([self.pid], signal.SIGKILL)
            self._popen.wait()
        if children:
            self._end_orphans()
        self._release()

    def terminate(self, deadline: float, number: int = signal.SIGTERM) -> int:
        """Ask it to end, and return its exit code. Whoever does not obey in time is killed, and that is an error."""
        if self.alive:
            self.thaw()  # a frozen process hears nothing
            signal_all([self.pid], number)
            try:
                self._popen.wait(deadline)
            except subprocess.TimeoutExpired:
                self.kill()
                raise DeadlineExceeded(
                    f"{self.name} did not end within {deadline:g} s of {signal.Signals(number).name} "
                    f"and was killed.{self.tail()}"
                ) from None
        self._end_orphans()
        self._release()
        return self._popen.returncode

    def freeze(self) -> None:
        """SIGSTOP the process and everything it started."""
        if self.alive:
            freeze_family(self.pid)

    def thaw(self) -> None:
        """SIGCONT, children first: a parent that wakes alone may take them for dead."""
        if self.alive:
            signal_all(reversed(family(self.pid)), signal.SIGCONT)

    def wait(self, deadline: float) -> int:
        """Wait for its end, and return the exit code."""
        try:
            code = self._popen.wait(deadline)
        except subprocess.TimeoutExpired:
            raise DeadlineExceeded(f"{self.name} still ran after {deadline:g} s.{self.tail()}") from None
        self._release()
        return code

    def wait_ready(self, ready: Callable[[], Seen], deadline: float, what: str) -> Seen:
        """Like `wait_until`, but a process that ends meanwhile is an error at once, with its log."""

        def look() -> Seen:
            seen = ready()
            if not seen and not self.alive:
                raise self.died(what)
            return seen

        try:
            return wait_until(look, deadline, f"{self.name}: {what}")
        except DeadlineExceeded as error:
            raise DeadlineExceeded(f"{error}{self.tail()}") from None

    def died(self, meanwhile: str) -> ProcessDied:
        """The error for a process that ended by itself."""
        return ProcessDied(f"{self.name} ended with code {self.code} before: {meanwhile}.{self.tail()}")

    def output(self) -> str:
        """Everything it wrote so far."""
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""

    def tail(self, lines: int = 15) -> str:
        """The end of the log, ready to be put behind an error message."""
        last = self.output().splitlines()[-lines:]
        return "".join(f"\n    {self.name}| {line}" for line in last)

    def _orphans(self) -> list[int]:
        """What the ended process left behind in its session."""
        found = [] if self._released else family(self.pid)
        return [] if self.pid in found else found  # it is reaped: its number already belongs to somebody else

    def _end_orphans(self) -> None:
        def gone() -> bool:
            orphans = self._orphans()
            signal_all(orphans, signal.SIGKILL)
            return not orphans

        wait_until(gone, 5, f"the children of {self.name} to end")

    def _release(self) -> None:
        """Once nothing of it is left the guardian must forget the number, as the kernel may give it away."""
        if self._released or self._orphans():
            return
        self._released = True
        self._guardian.forget(self.pid)
        if self._owns_guardian:
            self._guardian.close()

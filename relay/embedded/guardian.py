"""Nothing stays behind, even when we are killed with SIGKILL.

A killed process cannot clean up after itself, so each server has a guardian: a tiny process holding the other
end of a pipe. The kernel closes our end however we die; the guardian then ends the processes it was told of and
removes the folders it was told of. An orderly close is the same path: we just close the pipe and wait.

It detaches itself from us: whoever kills us together with all our children must not get the guardian too.

PR_SET_PDEATHSIG would be shorter but is bound to the *thread* that started the child, does not reach
grandchildren (PostgreSQL's backends, Celery's pool) and removes no folder.

This file is also run as a script (`python -I -S guardian.py`), hence: standard library only.
"""

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

_GRACE = 3.0  # a PostgreSQL told to quit is gone in a few ms; after this SIGKILL follows
_REMOVE_SEGMENT = 0  # IPC_RMID
_LOOK = 0.5  # a forked copy of the parent may hold the pipe open: also look whether the parent is still there


@dataclass(frozen=True)
class _Entry:
    pid: int
    parent: int
    session: int
    state: str


def family(pid: int) -> list[int]:
    """The living processes that descend from `pid` or are in the session it leads, `pid` itself first."""
    entries = _living()
    found = {entry.pid for entry in entries if pid in (entry.pid, entry.session)}
    grown = True
    while grown:
        more = {entry.pid for entry in entries if entry.parent in found} - found
        found |= more
        grown = bool(more)
    return sorted(found, key=lambda each: (each != pid, each))


def living(pids: Iterable[int]) -> list[int]:
    """Those that still run; one that only waits to be reaped does not."""
    wanted = set(pids)
    return [entry.pid for entry in _living() if entry.pid in wanted]


def signal_all(pids: Iterable[int], number: int) -> None:
    """Send a signal to each process that is still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def freeze_family(pid: int) -> list[int]:
    """Stop `pid` and all it started, and return when they stand still.

    Repeated until no new child appears, as a parent may fork until the signal reaches it.
    """
    stopped: list[int] = []
    while fresh := [each for each in family(pid) if each not in stopped]:
        signal_all(fresh, signal.SIGSTOP)
        stopped += fresh
    _poll(lambda: all(entry.state in "Tt" for entry in _living() if entry.pid in stopped))
    return stopped


def kill_family(pid: int) -> None:
    """SIGKILL `pid` and all it started, and return when they are dead.

    Frozen first: a child whose parent dies is no longer known as its child.
    """
    doomed = freeze_family(pid)
    signal_all(doomed, signal.SIGKILL)
    _poll(lambda: not living(doomed))


def shared_segments(creators: Iterable[int]) -> list[int]:
    """The System V shared memory segments that these processes made and to which nobody is attached any more."""
    table, wanted = Path("/proc/sysvipc/shm"), set(creators)
    lines = [line.split() for line in table.read_text(encoding="ascii").splitlines()[1:]] if table.exists() else []
    return [int(line[1]) for line in lines if int(line[4]) in wanted and line[6] == "0"]


def free_segments(creators: Iterable[int]) -> None:
    """A PostgreSQL ended by SIGKILL leaves one of 56 bytes; only the next start in the same folder would free it.

    Found by its maker, so that the segment of somebody else's crashed cluster is never touched.
    """
    for segment in shared_segments(creators):
        ctypes.CDLL(None).shmctl(segment, _REMOVE_SEGMENT, None)


def _poll(condition: Callable[[], bool], seconds: float = _GRACE) -> bool:
    end = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < end:
        time.sleep(0.002)
    return met


def _gone(pid: int) -> bool:
    return not family(pid)


def _living() -> list[_Entry]:
    return [entry for entry in _processes() if entry.state not in "ZX"]


def _processes() -> Iterable[_Entry]:
    if not Path("/proc/self/stat").exists():
        yield from _processes_from_ps()
        return
    for name in os.listdir("/proc"):  # noqa: PTH208  (a Path per process would cost more than reading it)
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
                state, parent, _group, session, *_ = file.read().rpartition(")")[2].split()
        except OSError:
            continue  # it ended while we looked
        yield _Entry(int(name), int(parent), int(session), state)


def _processes_from_ps() -> Iterable[_Entry]:
    command = ["ps", "-A", "-o", "pid=,ppid=,pgid=,stat="]
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        pid, parent, group, state = line.split()[:4]
        yield _Entry(int(pid), int(parent), int(group), state[0])


class Guardian:
    """Our end of the pipe."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,  # nothing is written: it closes when the work is done
            cwd="/",
            start_new_session=True,  # Ctrl-C is for us alone
        )

    def watch(self, pid: int, number: int = signal.SIGKILL) -> None:
        """End this process when we are gone: first with this signal, then with SIGKILL."""
        self._tell(f"watch {pid} {int(number)}")

    def forget(self, pid: int) -> None:
        """The process is reaped: its number may soon belong to somebody else."""
        self._tell(f"forget {pid}")

    def remove(self, folder: Path) -> None:
        """Remove this folder when we are gone."""
        self._tell(f"remove {folder}")

    def close(self) -> None:
        """End what is still watched, remove the folders, and wait until that is done."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        if self._process.stdout is not None and not self._process.stdout.closed:
            self._process.stdout.read()
            self._process.stdout.close()
        self._process.wait()

    def _tell(self, line: str) -> None:
        if self._process.stdin is not None and not self._process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(line.encode() + b"\n")
                self._process.stdin.flush()


class _Watch:
    """The guardian's side: what it was told so far."""

    def __init__(self) -> None:
        self.signals: dict[int, int] = {}
        self.folders: list[str] = []

    def hear(self, line: str) -> None:
        verb, _, rest = line.partition(" ")
        if verb == "watch":
            pid, _, number = rest.partition(" ")
            self.signals[int(pid)] = int(number)
        elif verb == "forget":
            self.signals.pop(int(rest), None)
        elif verb == "remove":
            self.folders.append(rest)

    def clean_up(self) -> None:
        for pid, number in self.signals.items():
            if number != signal.SIGKILL:
                signal_all(family(pid), signal.SIGCONT)  # a frozen process hears nothing
                signal_all([pid], number)
        for pid, number in self.signals.items():
            if number != signal.SIGKILL:
                _poll(partial(_gone, pid))
            kill_family(pid)
        if self.folders:  # what lives in a lasting folder may be started again, and frees its segment then
            free_segments(self.signals)
        for folder in self.folders:
            shutil.rmtree(folder, ignore_errors=True)


def main(parent: int) -> None:
    """Listen until the pipe closes or the parent is gone, then clean up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # whoever ends the parent politely must not end the clean-up first
    if os.fork():
        os._exit(0)
    watch, rest = _Watch(), b""
    while True:
        if not select.select([0], [], [], _LOOK)[0]:
            if living([parent]):
                continue
            break
        chunk = os.read(0, 65536)
        if not chunk:
            break
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            watch.hear(line.decode())
    watch.clean_up()


if __name__ == "__main__":
    main(int(sys.argv[1]))

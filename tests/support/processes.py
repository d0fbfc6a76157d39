"""Programs under test as real processes: relays, Celery workers and the command line, to be killed and frozen."""

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from relay.embedded import DeadlineExceeded, Process, wait_until
from relay.embedded.guardian import Guardian, family

ROOT = Path(__file__).resolve().parents[2]


class Programs:
    """Starts programs with their output in a log each, and ends them all at the end of the test."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.environment = dict(environment or {})
        self.started: list[Process] = []
        self._guardian = Guardian()

    def python(
        self, *arguments: str, name: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> Process:
        """This very interpreter with these arguments, e.g. `-m relay` or `-c ...`."""
        number = len(self.started) + 1
        process = Process.start(
            [sys.executable, "-u", *arguments],
            name=name,
            log=self.folder / f"{number:02}-{name}.log",
            env={
                **os.environ,
                "PYTHONPATH": _search_path(),
                "OUTBOX_HTTP": "",  # many relays on one host: all would want the same port
                "TMPDIR": str(self.folder),  # a killed program leaves its temporary files; they go with ours
                **self.environment,
                **(env or {}),
            },
            cwd=cwd or ROOT,
            guardian=self._guardian,
        )
        self.started.append(process)
        return process

    def outbox(self, *arguments: str, name: str = "outbox", env: Mapping[str, str] | None = None) -> Process:
        """The command line: `outbox <arguments>`."""
        return self.python("-m", "relay", *arguments, name=name, env=env)

    def relay(
        self,
        database_url: str,
        broker_url: str,
        *arguments: str,
        name: str = "relay",
        env: Mapping[str, str] | None = None,
    ) -> Process:
        """A relay between these two."""
        urls = {"OUTBOX_DATABASE_URL": database_url, "OUTBOX_BROKER_URL": broker_url}
        return self.outbox("relay", *arguments, name=name, env={**urls, **(env or {})})

    def worker(
        self,
        app: str,
        *arguments: str,
        name: str = "worker",
        concurrency: int = 2,
        env: Mapping[str, str] | None = None,
    ) -> Process:
        """A Celery worker of the application `module:attribute`."""
        options = ("--concurrency", str(concurrency), "--loglevel", "INFO", "--hostname", f"{name}@%h")
        return self.python("-m", "celery", "-A", app, "worker", *options, *arguments, name=name, env=env)

    def end(self) -> None:
        """Kill what still runs, and show every log: pytest prints it when the test failed."""
        for process in self.started:
            process.kill()
            sys.stderr.write(f"--- {process.name}: code {process.code}{process.tail(60)}\n")
        self._guardian.close()


def _search_path() -> str:
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


def wait_for_line(process: Process, pattern: str, deadline: float = 15.0, since: int = 0) -> re.Match[str]:
    """The first match of the regular expression in the log, from position `since` on (`len(process.output())`)."""

    def found() -> re.Match[str] | None:
        return re.search(pattern, process.output()[since:])

    match = process.wait_ready(found, deadline, f"a log line matching {pattern!r}")
    assert match is not None
    return match


def wait_for_exit(process: Process, deadline: float = 15.0) -> int:
    """The exit code of a program that ends by itself."""
    return process.wait(deadline)


@pytest.fixture
def programs() -> Iterator[Programs]:
    """Start relays, workers and commands; all are killed after the test."""
    folder = Path(tempfile.mkdtemp(prefix="outbox-programs-"))
    folder.chmod(0o711)  # servers started by a program as root run under another account
    started = Programs(folder)
    try:
        yield started
    finally:
        started.end()
        wait_until(lambda: _removed(folder), 10, f"the removal of {folder}")


@pytest.fixture(scope="session", autouse=True)
def _nothing_left_running() -> Iterator[None]:
    """Set up before every other fixture, hence checked after all of them are gone."""
    before = set(family(os.getpid()))
    yield
    try:
        wait_until(lambda: set(family(os.getpid())) <= before, 10, "the end of every process the tests started")
    except DeadlineExceeded as error:
        left = set(family(os.getpid())) - before
        pytest.fail(f"{error} Still running: {'; '.join(map(_command_line, sorted(left)))}", pytrace=False)


def _removed(folder: Path) -> bool:
    """Guardians of killed programs may be removing parts of it at the same time."""
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def _command_line(pid: int) -> str:
    file = Path(f"/proc/{pid}/cmdline")
    words = file.read_bytes().replace(b"\0", b" ").decode(errors="replace") if file.exists() else ""
    return f"{pid} {words}".strip()

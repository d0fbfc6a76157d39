"""What every embedded server has in common: a folder, a port, a guardian and the verbs that hurt it."""

import shutil
import signal
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from relay.embedded.account import Account, account_to_drop_to, hand_over, make_folder
from relay.embedded.errors import EmbeddedError, ProcessDied
from relay.embedded.guardian import Guardian
from relay.embedded.process import Process, free_port, port_taken

_PORT_TRIES = 3


class Server(ABC):
    """A server as our child process. Use it as a context manager, or call `start` and `close`.

    `stop` and `kill` keep folder and port, so that `start` brings the same server back; `close` ends it for good.
    Without a folder it lives in a temporary one that goes with it.
    """

    name: ClassVar[str]
    ready_within: ClassVar[float] = 30.0
    farewell: ClassVar[int]  # the signal for an end without delay that still leaves nothing behind

    def __init__(self, folder: Path | None, port: int | None) -> None:
        self.account: Account | None = account_to_drop_to()
        self._given_folder = folder
        self._given_port = port
        self._folder: Path | None = None
        self._port: int | None = port
        self._guardian: Guardian | None = None
        self._process: Process | None = None

    @abstractmethod
    def _prepare(self) -> None:
        """Make the folder ready, before each start."""

    @abstractmethod
    def _command(self) -> Sequence[str | Path]:
        """What to run."""

    @abstractmethod
    def _environment(self) -> Mapping[str, str]:
        """The whole environment of the server."""

    @abstractmethod
    def _is_ready(self) -> bool:
        """Whether it serves clients."""

    def _clean_up(self) -> None:  # noqa: B027  (most servers have nothing outside their folder)
        """Remove what it left outside its folder."""

    @property
    def folder(self) -> Path:
        """Where it keeps data and log."""
        if self._folder is None:
            raise EmbeddedError(f"{self.name} was not started yet: call start() first.")
        return self._folder

    @property
    def port(self) -> int:
        """The loopback port it listens on; stays the same over restarts."""
        if self._port is None:
            raise EmbeddedError(f"{self.name} was not started yet: call start() first.")
        return self._port

    @property
    def process(self) -> Process:
        """The running process."""
        if self._process is None:
            raise EmbeddedError(f"{self.name} is not running: call start() first.")
        return self._process

    @property
    def running(self) -> bool:
        """Whether its process is alive; a frozen one is."""
        return self._process is not None and self._process.alive

    def start(self) -> Self:
        """Start it, or start it again after `stop` or `kill`, and return when it serves clients."""
        if self.running:
            raise EmbeddedError(f"{self.name} is already running on port {self.port}: stop it first.")
        if self._port is not None and port_taken(self._port):
            raise EmbeddedError(
                f"{self.name} cannot listen on port {self._port}: somebody else does; give another port, or none."
            )
        first = self._folder is None
        try:
            self._open()
            self._prepare()
            self._start_on_a_free_port()
        except BaseException:
            if first:
                self.close()
            raise
        return self

    def stop(self) -> None:
        """End it in an orderly way."""
        if self._process is not None:
            self._process.terminate(self.ready_within)
            self._process = None

    def kill(self) -> None:
        """SIGKILL, with everything it started."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def restart(self) -> None:
        """Stop and start on the same port with the same data."""
        self.stop()
        self.start()

    def freeze(self) -> None:
        """Stop the clock of the whole server: connections stay open, nothing answers."""
        self.process.freeze()

    def thaw(self) -> None:
        """End a freeze."""
        self.process.thaw()

    def close(self) -> None:
        """End it and remove its temporary folder. A server in a given folder can be started there again."""
        if self._process is not None:
            self._process.terminate(self.ready_within, self.farewell)
            self._process = None
        self._clean_up()
        if self._guardian is not None:
            self._guardian.close()
            self._guardian = None
        if self._folder is not None and self._given_folder is None:
            shutil.rmtree(self._folder, ignore_errors=True)  # the guardian did it, unless it was killed
            self._folder, self._port = None, self._given_port

    def __enter__(self) -> Self:
        return self if self.running else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> None:
        if self._guardian is None:
            self._guardian = Guardian()
        if self._folder is not None:
            return
        if self._given_folder is None:
            self._folder = make_folder(self.account)
            self._guardian.remove(self._folder)
        else:
            self._folder = self._own(self._given_folder.resolve())

    def _own(self, folder: Path) -> Path:
        if not folder.exists():
            folder.mkdir(mode=0o700)
            hand_over(folder, self.account)
        if self.account is not None and not self.account.may_enter(folder):
            raise EmbeddedError(
                f"{self.name} runs as '{self.account.name}' when we are root, and that account may not enter "
                f"{folder}: give another folder, or none for a temporary one."
            )
        return folder

    def _start_on_a_free_port(self) -> None:
        """A free port may be taken by somebody else before the server has it; then it is worth another try."""
        tries = _PORT_TRIES if self._port is None else 1
        for left in reversed(range(tries)):
            port = self._port = self._port or free_port()
            try:
                self._process = self._run(self._command(), farewell=self.farewell)
                self._process.wait_ready(self._is_ready, self.ready_within, "serving clients")
                return
            except ProcessDied:
                self._process = None
                if not left or not port_taken(port):
                    raise
                self._port = None

    def _run(self, command: Sequence[str | Path], *, farewell: int = signal.SIGKILL) -> Process:
        return Process.start(
            command,
            name=self.name,
            log=self.folder / "log",
            env=self._environment(),
            cwd=self.folder,
            account=self.account,
            guardian=self._guardian,
            farewell=farewell,
        )

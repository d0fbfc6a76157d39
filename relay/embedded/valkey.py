"""A real Valkey (or Redis) in a folder of its own."""

import contextlib
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from relay.embedded.account import hand_over
from relay.embedded.binaries import ValkeyBinary, find_valkey, runnable
from relay.embedded.server import Server


class Valkey(Server):
    """A Valkey server on the loopback interface.

    With `append_only` it keeps what it acknowledged over a kill; without, a restart forgets everything.
    """

    name: ClassVar[str] = "Valkey"
    farewell: ClassVar[int] = signal.SIGKILL

    def __init__(
        self,
        binary: ValkeyBinary | None = None,
        folder: Path | None = None,
        port: int | None = None,
        append_only: bool = True,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(folder, port)
        self.binary = binary or find_valkey()
        self._program = self.binary
        self._settings = {
            "bind": "127.0.0.1",
            "save": "",
            "appendonly": "yes" if append_only else "no",
            "maxmemory-policy": "noeviction",  # a queue must never be evicted
            **(settings or {}),
        }

    def url(self, db: int = 0) -> str:
        """A Celery broker URL."""
        return f"redis://127.0.0.1:{self.port}/{db}"

    def _prepare(self) -> None:
        if self.account is not None and not runnable(self._program.path, self.account):
            target = self.folder / "programs"
            target.mkdir()
            hand_over(target, self.account)
            self._program = self.binary.copied_to(target, self.account)

    def _command(self) -> Sequence[str | Path]:
        settings = {"port": str(self.port), "dir": str(self.folder), **self._settings}
        return [self._program.path, *(part for name, value in settings.items() for part in (f"--{name}", value))]

    def _environment(self) -> Mapping[str, str]:
        return {"PATH": os.defpath, "LC_ALL": "C"}

    def _is_ready(self) -> bool:
        """It accepts connections while it still loads its data, so ask."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1) as line:
            line.sendall(b"PING\r\n")
            return line.recv(64).startswith(b"+PONG")
        return False

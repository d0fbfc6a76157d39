"""PgBouncer for tests: transaction pooling in front of a cluster."""

import contextlib
import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit, urlunsplit

import pytest

from relay.embedded.account import hand_over
from relay.embedded.binaries import copy_parts, runnable
from relay.embedded.server import Server
from tests.support.debian import Unavailable, library_folders, unpack
from tests.support.servers import missing

_SSL_REQUEST = b"\x00\x00\x00\x08\x04\xd2\x16\x2f"


def find_pgbouncer() -> tuple[Path, Path | None]:
    """The program, and the folder it was unpacked to, if it was."""
    if found := shutil.which("pgbouncer", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin"):
        return Path(found).resolve(), None
    try:
        root = unpack("pgbouncer")
        return next(root.glob("usr/sbin/pgbouncer")), root
    except (Unavailable, StopIteration) as error:
        missing("PgBouncer", f"install the package pgbouncer ({error!r})")


class PgBouncer(Server):
    """A PgBouncer that pools transactions; every client is the superuser of the cluster behind it.

    `settings` are lines of the section [pgbouncer], e.g. {"default_pool_size": "2"}.
    """

    name: ClassVar[str] = "PgBouncer"
    farewell: ClassVar[int] = signal.SIGKILL

    def __init__(self, server_url: str, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(None, None)
        self._server = urlsplit(server_url)
        self._settings = dict(settings or {})
        self._program, self._root = find_pgbouncer()

    def url(self, url: str) -> str:
        """The same database URL by way of this PgBouncer."""
        parts = urlsplit(url)
        return urlunsplit(parts._replace(netloc=f"{parts.username or 'postgres'}@127.0.0.1:{self.port}"))

    def _prepare(self) -> None:
        if self.account is not None and not runnable(self._program, self.account, self._environment()):
            self._copy_program()

    def _copy_program(self) -> None:
        assert self.account is not None
        base = self._root or self._program.parent
        parts = tuple(each.name for each in base.iterdir()) if self._root else (self._program.name,)
        target = self.folder / "programs"
        copy_parts(base, parts, target, self.account)
        self._program = target / self._program.relative_to(base)
        self._root = target if self._root else None

    def _command(self) -> Sequence[str | Path]:
        server = self._server
        lines = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(self.port),
            "unix_socket_dir": "",
            "pool_mode": "transaction",
            "auth_type": "any",
            "admin_users": server.username or "postgres",
            "max_client_conn": "500",
            "ignore_startup_parameters": "extra_float_digits",
            **self._settings,
        }
        target = f"host={server.hostname} port={server.port} user={server.username or 'postgres'}"
        text = f"[databases]\n* = {target}\n[pgbouncer]\n" + "".join(f"{k} = {v}\n" for k, v in lines.items())
        configuration = self.folder / "pgbouncer.ini"
        configuration.write_text(text)
        hand_over(configuration, self.account)
        return [self._program, configuration]

    def _environment(self) -> Mapping[str, str]:
        found = {"PATH": os.defpath, "LC_ALL": "C"}
        if self._root is not None:
            found["LD_LIBRARY_PATH"] = ":".join(map(str, library_folders(self._root)))
        return found

    def _is_ready(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=5) as line:
            line.sendall(_SSL_REQUEST)
            return line.recv(1) in (b"N", b"S")
        return False


@pytest.fixture
def pgbouncer_to() -> Iterator[Callable[[str], PgBouncer]]:
    """Put a PgBouncer in front of the cluster of this database URL."""
    started: list[PgBouncer] = []

    def start(server_url: str) -> PgBouncer:
        started.append(PgBouncer(server_url).start())
        return started[-1]

    yield start
    for server in started:
        server.close()


@pytest.fixture
def pooled_database(database: str, pgbouncer_to: Callable[[str], PgBouncer]) -> str:
    """The URL of `database` by way of a PgBouncer of this test alone."""
    return pgbouncer_to(database).url(database)

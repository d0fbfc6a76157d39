"""RabbitMQ for tests: the system's, or unpacked from its packages; one node a run, on the loopback interface."""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import amqp
import pytest
from kombu import Connection

from relay.embedded import Process, free_port
from relay.embedded.server import Server
from tests.support.debian import Unavailable, unpack
from tests.support.servers import missing

_GREETING = b"AMQP\x00\x00\x09\x01"
# One scheduler that does not spin, and no port open to others.
_ERLANG = "+S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none -kernel inet_dist_use_interface {127,0,0,1}"


@dataclass(frozen=True)
class RabbitBinaries:
    """Where RabbitMQ's scripts are, and Erlang when it is not at its usual place."""

    scripts: Path
    erlang: Path | None  # its root, when unpacked
    version: str


def find_rabbitmq() -> RabbitBinaries:
    """The installed one, else one unpacked from the system's package sources."""
    installed = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/sbin"))
    if installed and shutil.which("erl"):
        return _binaries(installed[-1], None)
    if (on_path := shutil.which("rabbitmq-server")) and shutil.which("erl"):
        return _binaries(Path(on_path).resolve().parent, None)
    try:
        root = unpack("rabbitmq-server")
        return _binaries(next(root.glob("usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin")), root / "usr/lib/erlang")
    except (Unavailable, StopIteration) as error:
        missing("RabbitMQ", f"install the package rabbitmq-server ({error!r})")


def _binaries(scripts: Path, erlang: Path | None) -> RabbitBinaries:
    return RabbitBinaries(scripts, erlang, version=scripts.parent.name.rpartition("-")[2])


class RabbitMQ(Server):
    """One RabbitMQ node with a name, a cookie and a port mapper of its own.

    `settings` are lines of rabbitmq.conf, e.g. {"consumer_timeout": "10000"}.
    """

    name: ClassVar[str] = "RabbitMQ"
    farewell: ClassVar[int] = signal.SIGKILL
    ready_within: ClassVar[float] = 60.0

    def __init__(self, binaries: RabbitBinaries | None = None, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(None, None)
        self.account = None  # Erlang has no objection to root, and the unpacked files may be in a private home
        self.binaries = binaries or find_rabbitmq()
        self.node = f"outbox-{secrets.token_hex(4)}@127.0.0.1"
        self._settings = dict(settings or {})
        self._mapper: Process | None = None
        self._mapper_port = 0
        self._node_port = 0

    def url(self, vhost: str = "") -> str:
        """A Celery broker URL; without a vhost the default one, `/`."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}/{vhost}"

    def control(self, *arguments: str, deadline: float = 60.0) -> str:
        """Run rabbitmqctl and return what it said."""
        command: list[str | Path] = [self.binaries.scripts / "rabbitmqctl", "-q", "-n", self.node, *arguments]
        said = subprocess.run(
            command,
            env=self._environment(),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=deadline,
            check=False,
        )
        assert said.returncode == 0, f"rabbitmqctl {' '.join(arguments)}: {said.stdout}{said.stderr}"
        return said.stdout

    def add_vhost(self) -> str:
        """A fresh vhost, as its URL. One call instead of two: rabbitmqctl takes a third of a second to start."""
        name = f"test-{secrets.token_hex(4)}"
        self.control(
            "eval",
            f'rabbit_vhost:add(<<"{name}">>, <<"test">>), '
            f'rabbit_auth_backend_internal:set_permissions(<<"guest">>, <<"{name}">>, '
            '<<".*">>, <<".*">>, <<".*">>, <<"test">>).',
        )
        return self.url(name)

    def _prepare(self) -> None:
        programs = self.folder / "bin"
        programs.mkdir(exist_ok=True)
        if self.binaries.erlang is not None:
            _write_erl(programs / "erl", self.binaries.erlang)
        (self.folder / "enabled_plugins").write_text("[].\n")
        lines = {"listeners.tcp.default": f"127.0.0.1:{self._settled_port()}", **self._settings}
        (self.folder / "rabbitmq.conf").write_text("".join(f"{name} = {value}\n" for name, value in lines.items()))
        self._start_mapper()

    def _settled_port(self) -> int:
        self._port = self._port or free_port()
        return self._port

    def _start_mapper(self) -> None:
        """epmd would otherwise be started as a daemon that outlives the node and serves everybody."""
        if self._mapper is not None and self._mapper.alive:
            return
        self._mapper_port, self._node_port = self._mapper_port or free_port(), self._node_port or free_port()
        mapper: list[str | Path] = [self._epmd(), "-port", str(self._mapper_port), "-address", "127.0.0.1"]
        self._mapper = self._run(mapper)
        self._mapper.wait_ready(lambda: _answers(self._mapper_port), 10, "the port mapper to listen")

    def _epmd(self) -> Path:
        if self.binaries.erlang is not None:
            return next(self.binaries.erlang.glob("erts-*/bin/epmd"))
        found = shutil.which("epmd") or next(Path("/usr/lib/erlang").glob("erts-*/bin/epmd"))
        return Path(found)

    def _command(self) -> Sequence[str | Path]:
        return [self.binaries.scripts / "rabbitmq-server"]

    def _environment(self) -> Mapping[str, str]:
        folder = self.folder
        return {
            "HOME": str(folder),  # the cookie
            "PATH": f"{folder / 'bin'}:{os.environ.get('PATH', os.defpath)}",
            "LC_ALL": "C.UTF-8",
            "ERL_EPMD_PORT": str(self._mapper_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RUNNING_UNDER_SYSTEMD": "true",  # the server replaces its shell script, and so hears our signals
            "RABBITMQ_NODENAME": self.node,
            "RABBITMQ_USE_LONGNAME": "true",  # an address needs no name resolution
            "RABBITMQ_DIST_PORT": str(self._node_port),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "logs"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "no-such-file"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": _ERLANG,
        }

    def _is_ready(self) -> bool:
        """It listens last, but only its greeting shows that it is the broker who answers."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=5) as line:
            line.sendall(_GREETING)
            return line.recv(1) == b"\x01"  # a method frame: connection.start
        return False

    def _clean_up(self) -> None:
        if self._mapper is not None:
            self._mapper.kill()
            self._mapper = None


def _write_erl(path: Path, root: Path) -> None:
    """The packaged `erl` knows only the place where the package is installed."""
    programs = next(root.glob("erts-*/bin"))
    path.write_text(
        f'#!/bin/sh\nexport ROOTDIR="{root}" BINDIR="{programs}" EMU=beam PROGNAME=erl\nexec "$BINDIR/erlexec" "$@"\n'
    )
    path.chmod(0o755)


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[RabbitMQ]:
    """The node of this run. It must not be killed: take `own_rabbitmq` for that."""
    with RabbitMQ() as server:
        yield server


@pytest.fixture
def amqp_url(rabbitmq: RabbitMQ) -> str:
    """The URL of an empty vhost of this test alone."""
    return rabbitmq.add_vhost()


@pytest.fixture
def own_rabbitmq() -> Iterator[RabbitMQ]:
    """A node of this test alone."""
    with RabbitMQ() as server:
        yield server


def drained(url: str, queue: str) -> list[amqp.Message]:
    """Take every message out of a queue, in the order in which a worker would get them."""
    found: list[amqp.Message] = []
    with Connection(url) as connection:
        channel: Any = connection.default_channel
        while (message := channel.basic_get(queue, no_ack=True)) is not None:
            found.append(message)
    return found


def queue_lengths(url: str, *queues: str, missing_ok: bool = False) -> list[int | None]:
    """How many messages are ready in each; None for a queue that is not there."""
    lengths: list[int | None] = []
    for queue in queues:
        with Connection(url) as connection:
            try:
                channel: Any = connection.default_channel
                lengths.append(channel.queue_declare(queue, passive=True).message_count)
            except amqp.NotFound:
                if not missing_ok:
                    raise
                lengths.append(None)
    return lengths

"""A wire that can be hurt: a TCP proxy in front of any server, run in a thread of its own."""

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit, urlunsplit

import pytest

from relay.embedded import free_port, wait_until

Result = TypeVar("Result")

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_CHUNK = 65536


@dataclass
class Trap:
    """Cuts the connection on which a request with `pattern` passes.

    Forwarded: the server gets the request, and the client loses the line instead of getting the reply.
    Not forwarded: the server never sees it. The client cannot tell the two apart.
    """

    pattern: bytes
    forwarded: bool
    left: int
    sprung: int = 0

    def wait(self, deadline: float = 10.0) -> None:
        """Wait until it has cut a connection."""
        wait_until(lambda: self.sprung, deadline, f"a request containing {self.pattern!r}")


@dataclass(eq=False)
class _Connection:
    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    tail: bytes = b""  # the end of the last request chunk: a pattern may lie across two
    trap: Trap | None = None
    damaged: bool = False  # bytes are missing: it cannot be healed
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def reset(self) -> None:
        """Close both sides with RST, as a crashed peer or a firewall does."""
        for side in (self.client, self.server):
            line = side.get_extra_info("socket")
            if line is not None and line.fileno() != -1:
                line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            side.transport.abort()


class Proxy:
    """Listens on `port` and forwards to a server; every verb works on the living connections too."""

    def __init__(self, target_port: int, target_host: str = "127.0.0.1") -> None:
        self.port = free_port()
        self._target = (target_host, target_port)
        self._delay = 0.0
        self._deaf = False
        self._traps: list[Trap] = []
        self._connections: set[_Connection] = set()
        self._listener: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"proxy {self.port}", daemon=True)

    def url(self, url: str) -> str:
        """The same URL by way of this proxy."""
        parts = urlsplit(url)
        user = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{user[0]}{user[1]}127.0.0.1:{self.port}"))

    @property
    def connections(self) -> int:
        """How many clients are connected now."""
        return len(self._connections)

    def start(self) -> Self:
        """Begin to listen."""
        self._thread.start()
        self._call(self._listen())
        return self

    def stop(self) -> None:
        """Reset every connection and end the thread."""
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def delay(self, seconds: float) -> None:
        """Hold back every chunk, in both directions, this long."""
        self._do(lambda: setattr(self, "_delay", seconds))

    def partition(self) -> None:
        """Let nothing through and close nothing: a half-open line. What is held back arrives after `heal`."""
        self._do(self._flowing.clear)

    def swallow_replies(self) -> None:
        """Forward requests and drop replies. Connections that lost a reply this way are reset by `heal`."""
        self._do(lambda: setattr(self, "_deaf", True))

    def cut(self) -> None:
        """Reset all connections; new ones are accepted."""
        self._do(self._reset_all)

    def refuse(self) -> None:
        """Reset all connections and refuse new ones, until `heal`."""
        self._call(self._close_listener())
        self.cut()

    def cut_at(self, pattern: bytes, *, forwarded: bool = True, times: int = 1) -> Trap:
        """Cut the next connections on which a request containing `pattern` passes, e.g. b"COMMIT"."""
        trap = Trap(pattern, forwarded, times)
        self._do(lambda: self._traps.append(trap))
        return trap

    def heal(self) -> None:
        """Be a plain wire again."""
        self._call(self._heal())

    def _do(self, action: Callable[[], object]) -> None:
        async def act() -> None:
            action()

        self._call(act())

    def _call(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def _close_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _heal(self) -> None:
        self._delay, self._deaf = 0.0, False
        self._traps.clear()
        for connection in [each for each in self._connections if each.damaged]:
            connection.reset()
        self._flowing.set()
        await self._listen()

    async def _end(self) -> None:
        await self._close_listener()
        self._flowing.set()
        self._reset_all()
        tasks = [task for connection in list(self._connections) for task in connection.tasks]
        for task in tasks:
            task.cancel()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)

    def _reset_all(self) -> None:
        for connection in list(self._connections):
            if connection.trap is not None:
                # Its request is with the server and its reply is not with the client: that is what the trap is for.
                self._spring(connection.trap, connection)
            else:
                connection.reset()

    async def _serve(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        try:
            answers, server = await asyncio.open_connection(*self._target)
        except OSError:
            client.transport.abort()
            return
        connection = _Connection(client, server)
        self._connections.add(connection)
        pumps = (self._pump_requests(connection, reader), self._pump_replies(connection, answers))
        connection.tasks = [asyncio.ensure_future(pump) for pump in pumps]
        await asyncio.wait(connection.tasks)
        self._connections.discard(connection)
        client.close()
        server.close()

    async def _pump_requests(self, connection: _Connection, source: asyncio.StreamReader) -> None:
        with suppress(ConnectionError, asyncio.CancelledError):
            while chunk := await source.read(_CHUNK):
                await self._hold_back()
                trap = self._trap_for(connection, chunk)
                if trap is not None and not trap.forwarded:
                    self._spring(trap, connection)
                    return
                connection.trap = trap or connection.trap
                connection.server.write(chunk)
                await connection.server.drain()
        _finish(connection.server)

    async def _pump_replies(self, connection: _Connection, source: asyncio.StreamReader) -> None:
        with suppress(ConnectionError, asyncio.CancelledError):
            while chunk := await source.read(_CHUNK):
                await self._hold_back()
                if connection.trap is not None:
                    self._spring(connection.trap, connection)
                    return
                if self._deaf:
                    connection.damaged = True
                    continue
                connection.client.write(chunk)
                await connection.client.drain()
        _finish(connection.client)

    async def _hold_back(self) -> None:
        if self._delay:
            await asyncio.sleep(self._delay)
        await self._flowing.wait()

    def _trap_for(self, connection: _Connection, chunk: bytes) -> Trap | None:
        seen = connection.tail + chunk
        connection.tail = seen[-128:]
        for trap in self._traps:
            if trap.left > 0 and trap.pattern in seen:
                trap.left -= 1
                connection.tail = b""
                return trap
        return None

    def _spring(self, trap: Trap, connection: _Connection) -> None:
        connection.reset()
        connection.trap = None
        trap.sprung += 1


def _finish(writer: asyncio.StreamWriter) -> None:
    """Pass on that one side has nothing more to say."""
    with suppress(OSError, RuntimeError):
        if not writer.transport.is_closing():
            writer.write_eof()


@pytest.fixture
def proxy_to() -> Iterator[Callable[[int], Proxy]]:
    """Put a proxy in front of the server on this loopback port."""
    started: list[Proxy] = []

    def start(port: int) -> Proxy:
        started.append(Proxy(port).start())
        return started[-1]

    yield start
    for proxy in started:
        proxy.stop()

"""The HTTP endpoint: /metrics, /livez, /readyz. Small on purpose, because it shares a process with the relay.

One thread serves all connections (asyncio), one more renders: however many callers there are, and however slowly they
send, no thread is added and no memory grows. A request is one head of at most 8 KB within 5 s, an answer, and the end
of the connection; of more than 32 connections the oldest unfinished one makes room. The metrics are rendered at most
once a second. GET and HEAD only, and nothing of a request is ever used but its method and its path.
"""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

_HEAD_BYTES = 8192
_HEAD_SECONDS = 5.0
_ANSWER_SECONDS = 10.0
_MOST_CONNECTIONS = 32
_STOP_SECONDS = 2.0
_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class Answer(NamedTuple):
    status: int
    body: bytes
    kind: str = "text/plain; charset=utf-8"


def listening(host: str, port: int) -> socket.socket:
    """Bound at once, so that a port in use is known before anything starts; raises OSError. No host: all of them."""
    family = socket.AF_INET6 if ":" in host or (not host and socket.has_dualstack_ipv6()) else socket.AF_INET
    return socket.create_server(
        (host, port), family=family, backlog=_MOST_CONNECTIONS, dualstack_ipv6=family is socket.AF_INET6 and not host
    )


def shown(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Endpoint:
    """Serves these pages until it is stopped. A page is asked for on a thread of its own and may take a while."""

    def __init__(self, listener: socket.socket, pages: Mapping[str, Callable[[], Answer]]) -> None:
        self._listener = listener
        self._pages = pages
        self._open: dict[asyncio.StreamWriter, None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._done: asyncio.Event | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="outbox-http", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._ready.wait(_STOP_SECONDS)

    def stop(self) -> None:
        if self._loop is not None and self._done is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended already
                self._loop.call_soon_threadsafe(self._done.set)
            self._thread.join(_STOP_SECONDS)
        self._listener.close()

    async def _serve(self) -> None:
        self._loop, self._done = asyncio.get_running_loop(), asyncio.Event()
        self._rendering = asyncio.Lock()
        async with await asyncio.start_server(self._talk, sock=self._listener, limit=_HEAD_BYTES):
            self._ready.set()
            await self._done.wait()
            for writer in list(self._open):
                writer.transport.abort()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= _MOST_CONNECTIONS:
            # Forgotten at once: its own task hears of it only later, and the next newcomer must not evict it again.
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.transport.abort()
        self._open[writer] = None
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _HEAD_SECONDS)
            method, answer = await self._answer(head)
            writer.write(_rendered(answer, with_body=method != b"HEAD"))
            await asyncio.wait_for(writer.drain(), _ANSWER_SECONDS)
            writer.close()
            await asyncio.wait_for(writer.wait_closed(), _ANSWER_SECONDS)
        except asyncio.LimitOverrunError:
            writer.write(_rendered(Answer(400, b"the request is too long\n"), with_body=True))
            writer.close()
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            writer.transport.abort()
        finally:
            self._open.pop(writer, None)
            if not writer.is_closing():
                writer.transport.abort()

    async def _answer(self, head: bytes) -> tuple[bytes, Answer]:
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return b"", Answer(400, b"not an HTTP/1.1 request\n")
        method, target, _ = words
        page = self._pages.get(target.split(b"?", 1)[0].decode("ascii", "replace"))
        if page is None:
            return method, Answer(404, b"there are /metrics, /livez and /readyz\n")
        if method not in (b"GET", b"HEAD"):
            return method, Answer(405, b"only GET and HEAD\n")
        async with self._rendering:  # one at a time: many callers never take more than one core's share
            try:
                return method, await asyncio.to_thread(page)
            except Exception as error:
                # The relay goes on whatever happens here, and the caller learns no more than that it happened.
                return method, Answer(500, f"{type(error).__name__}\n".encode())


def _rendered(answer: Answer, *, with_body: bool) -> bytes:
    lines = [
        f"HTTP/1.1 {answer.status} {_REASONS[answer.status]}",
        f"Content-Type: {answer.kind}",
        f"Content-Length: {len(answer.body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
        *(["Allow: GET, HEAD"] if answer.status == 405 else []),
    ]
    return "\r\n".join((*lines, "", "")).encode("ascii") + (answer.body if with_body else b"")


class Remembered:
    """A page that is made anew at most so often: a flood of callers costs one rendering a second."""

    def __init__(self, make: Callable[[], Answer], seconds: float = 1.0) -> None:
        self._make = make
        self._seconds = seconds
        self._lock = threading.Lock()
        self._until = float("-inf")
        self._answer = Answer(503, b"")

    def __call__(self) -> Answer:
        with self._lock:
            if time.monotonic() >= self._until:
                self._answer = self._make()
                self._until = time.monotonic() + self._seconds
            return self._answer

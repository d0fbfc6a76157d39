"""A wait that ends early: another thread calls, or a socket has something to read."""

import contextlib
import os
import select


class Watch:
    """Called by any thread, kept by one."""

    def __init__(self) -> None:
        self._heard, self._called = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def call(self) -> None:
        with contextlib.suppress(BlockingIOError):  # called so often that the pipe is full: it will be heard
            os.write(self._called, b"!")

    def keep(self, seconds: float, *sockets: int) -> bool:
        """Returns at once when called since the last time. True if a socket has something, be it its end."""
        poller = select.poll()
        for line in (self._heard, *sockets):
            poller.register(line, select.POLLIN)
        ready = {line for line, _ in poller.poll(max(0.0, seconds) * 1000)}
        if self._heard in ready:
            os.read(self._heard, 4096)
        return bool(ready & set(sockets))

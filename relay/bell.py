"""A bell that rings through a file descriptor, so that a thread can wait for it and for a socket at once."""

import contextlib
import os
import select


class Bell:
    """`ring` may be called from any thread, any number of times; `wait` hears it once."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def ring(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full: it has been ringing for a while
            os.write(self._write, b"!")

    def wait(self, seconds: float, *sockets: int) -> bool:
        """Until the bell rings, one of the sockets has something to read, or the time is over. True if a socket has."""
        poll = select.poll()
        for descriptor in (self._read, *sockets):
            poll.register(descriptor, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll(max(0.0, seconds) * 1000)}
        if self._read in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._read, 4096)
        return bool(ready & set(sockets))

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)

"""SIGTERM and SIGINT, heard by a thread of its own.

A Python signal handler runs on the main thread, in the middle of whatever it is doing. If that is `Event.wait()`, the
main thread holds the event's lock, and a handler that calls `Event.set()` waits for it for ever. So the signals are
blocked everywhere and one thread waits for them; it may call anything.
"""

import os
import signal
import threading
from collections.abc import Callable

_HEARD = {signal.SIGTERM, signal.SIGINT}
_INTERRUPTED = 130


def on_signals(stop: Callable[[], None]) -> None:
    """Call `stop` at the first signal; a second SIGINT ends the process at once. Call it before starting threads."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)

    def listen() -> None:
        signal.sigwait(_HEARD)
        stop()
        while signal.sigwait(_HEARD) is not signal.SIGINT:
            pass
        os._exit(_INTERRUPTED)

    threading.Thread(target=listen, name="outbox-signals", daemon=True).start()

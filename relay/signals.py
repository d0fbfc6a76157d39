"""SIGTERM and SIGINT, heard by a thread of its own; SIGHUP, and what a closed terminal leaves behind.

A Python signal handler runs on the main thread, in the middle of whatever it is doing. If that is `Event.wait()`, the
main thread holds the event's lock, and a handler that calls `Event.set()` waits for it for ever. So the signals are
blocked everywhere and one thread waits for them; it may call anything. As process 1 of a container this works too: the
kernel ignores a signal with default action there, but not one that is blocked and waited for.
"""

import os
import signal
import threading
from collections.abc import Callable

_HEARD = {signal.SIGTERM, signal.SIGINT}
_INTERRUPTED = 130


def hold_signals() -> None:
    """Before the first thread of the process, be it the log's: the kernel gives a signal to any thread that does not
    block it, and its default action ends the process without a hand-over."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)


def on_signals(stop: Callable[[], None]) -> None:
    """Call `stop` at the first signal; a second SIGINT ends the process at once. Call it before starting threads."""
    hold_signals()
    # The end of the session that started it is no reason to stop relaying. Settings are read at the start only.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def listen() -> None:
        signal.sigwait(_HEARD)
        stop()
        while signal.sigwait(_HEARD) is not signal.SIGINT:
            pass
        os._exit(_INTERRUPTED)

    threading.Thread(target=listen, name="outbox-signals", daemon=True).start()


def occupy_standard_files() -> None:
    """Started with stdin, stdout or stderr closed, the next socket would get that number, and whatever a library
    writes to "stderr" would go to PostgreSQL or the broker."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one

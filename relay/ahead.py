"""Read ahead of the publisher: a thread that takes the next items while the last ones are still being worked on.

The queue between them is short: what is read and not yet published is memory, and stale once the term is over.
"""

import contextlib
import queue
import threading
from collections.abc import Iterator
from typing import TypeVar

Item = TypeVar("Item")

_DEPTH = 2


class _End:
    """The last thing in the queue, with what ended the reading."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


@contextlib.contextmanager
def read_ahead(items: Iterator[Item]) -> Iterator[Iterator[Item]]:
    """The same items. What is raised while reading is raised here; leaving early ends the thread."""
    waiting: queue.Queue[Item | _End] = queue.Queue(_DEPTH)
    enough = threading.Event()
    thread = threading.Thread(target=_fill, args=(items, waiting, enough), name="outbox-read", daemon=True)
    thread.start()
    try:
        yield _drain(waiting)
    finally:
        enough.set()
        while thread.is_alive():
            with contextlib.suppress(queue.Empty):
                waiting.get(timeout=0.05)
        thread.join()


def _fill(items: Iterator[Item], waiting: "queue.Queue[Item | _End]", enough: threading.Event) -> None:
    error: BaseException | None = None
    try:
        for item in items:
            waiting.put(item)
            if enough.is_set():
                return
    except BaseException as raised:
        error = raised
    waiting.put(_End(error))


def _drain(waiting: "queue.Queue[Item | _End]") -> Iterator[Item]:
    while True:
        item = waiting.get()
        if not isinstance(item, _End):
            yield item
        elif item.error is None:
            return
        else:
            raise item.error

"""The relay's work during one term: read a page, publish it, advance; again until the term or the process ends.

The order of these three is the whole point. Advance comes only after the broker answered for the page, so a crash
between the two repeats the page; the other order would lose it. Before each publish the term must still be trusted.
"""

from collections.abc import Callable

from relay.dispatch import Dispatch
from relay.events import PageRead, PositionAdvanced, WindowOpened
from relay.lease import LeaseLost
from relay.publication import Copy
from relay.read import Log
from relay.window import Batch, Window


class Cycle:
    """One term's loop over the log."""

    def __init__(self, log: Log, dispatch: Dispatch, before_batch: Callable[[int], None] = lambda _: None) -> None:
        """`before_batch` is told how many messages come next; what it raises leaves the window where it is."""
        self._before_batch = before_batch
        self._log = log
        self._dispatch = dispatch
        self._publishing = dispatch.publishing
        self._window: Window | None = None

    def resume(self) -> None:
        """Take up the window that the last leader left open."""
        self._window = self._log.resume()
        if self._window is not None:
            self._publishing.observer(WindowOpened(self._window.number, resumed=True))
            self._publish_window(self._window)

    def step(self) -> int:
        """Publish the next window, if any. Returns how many messages it had; raises LeaseLost when the term is over."""
        self._publishing.require_trust()
        window = self._next_window()
        if window is None:
            return 0
        self._publishing.observer(WindowOpened(window.number, resumed=False))
        return self._publish_window(window)

    def _next_window(self) -> Window | None:
        finished = self._window
        if finished is None:
            self._window = self._log.open()
        else:
            self._window = self._log.turn(finished)
            if self._window is None:
                self._log.close(finished)
        return self._window

    def _publish_window(self, window: Window) -> int:
        done = 0
        for batch in self._log.batches(window):
            self._before_batch(len(batch.rows))
            self._publish_batch(window, batch)
            done += len(batch.rows)
            if self._publishing.stop.is_set():
                # The window stays open with its position: whoever leads next resumes after this page.
                raise LeaseLost
        return done

    def _publish_batch(self, window: Window, batch: Batch) -> None:
        last_seq, rows, read_at = batch
        self._publishing.observer(PageRead(len(rows)))
        copies = [Copy(row) for row in rows]
        keys = self._log.parked_keys(rows)
        waiting = {row.id for row in rows if row.ordering_key in keys} if keys else ()
        fates = self._dispatch.send(copies, window.number, read_at, self._log.now(), waiting)
        if fates:
            self._log.advance_past(window, last_seq, fates)
            self._dispatch.tell(fates)
        else:
            self._log.advance(window, last_seq)
        self._publishing.observer(PositionAdvanced(window.number, last_seq))

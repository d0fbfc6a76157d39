"""The relay's work during one term: read a page, publish it, advance; again until the term or the process ends.

The order of these three is the whole point. Advance comes only after the broker accepted the page, so a crash between
the two repeats the page; the other order would lose it. Before each publish the term must still be trusted.
"""

import threading
import time
from collections.abc import Callable, Sequence

from tenacity import RetryCallState, RetryError, Retrying, retry_if_exception_type, wait_exponential_jitter
from tenacity.nap import sleep_using_event

from relay.encode import Encoded, Encoder, Stamp
from relay.events import (
    BrokerRecovered,
    BrokerUnavailable,
    Observer,
    PagePublished,
    PageRead,
    PositionAdvanced,
    WindowOpened,
)
from relay.lease import Term
from relay.publish import BrokerOutage, Publisher
from relay.read import LeaseLost, Log, Row
from relay.window import Window


class Cycle:
    """One term's loop over the log."""

    def __init__(
        self,
        log: Log,
        publisher: Publisher,
        encoder: Encoder,
        term: Term,
        *,
        relay: str,
        holds: Callable[[Term], bool],
        stop: threading.Event,
        observer: Observer,
    ) -> None:
        self._log = log
        self._publisher = publisher
        self._encoder = encoder
        self._term = term
        self._relay = relay
        self._holds = holds
        self._stop = stop
        self._observer = observer
        self._window: Window | None = None

    def resume(self) -> None:
        """Take up the window that the last leader left open."""
        self._window = self._log.resume()
        if self._window is not None:
            self._observer(WindowOpened(self._window.number, resumed=True))
            self._publish_window(self._window)

    def step(self) -> int:
        """Publish the next window, if any. Returns how many messages it had; raises LeaseLost when the term is over."""
        if not self._holds(self._term):
            raise LeaseLost
        window = self._next_window()
        if window is None:
            return 0
        self._observer(WindowOpened(window.number, resumed=False))
        return self._publish_window(window)

    def _next_window(self) -> Window | None:
        finished = self._window
        if finished is None:
            self._window = self._log.open()
        else:
            self._window = self._log.turn(finished)
            if self._window is None:
                # A standby that takes over a closed window has nothing to plan anew.
                self._log.close(finished)
        return self._window

    def _publish_window(self, window: Window) -> int:
        published = 0
        for last_seq, rows in self._log.batches(window):
            self._observer(PageRead(len(rows)))
            self._publish(rows, window)
            self._log.advance(window, last_seq)
            self._observer(PositionAdvanced(window.number, last_seq))
            published += len(rows)
            if self._stop.is_set():
                # The window stays open with its position: whoever leads next resumes after this page.
                raise LeaseLost
        return published

    def _encoded(self, rows: Sequence[Row], window: Window) -> list[Encoded]:
        stamp = Stamp(self._log.now(), self._term.epoch, window.number, self._relay)
        return [self._encoder.encode(row, stamp) for row in rows]

    def _publish(self, rows: Sequence[Row], window: Window) -> None:
        """Until the broker accepts it. An outage costs no attempt of any message, however long it lasts."""
        started = time.monotonic()
        retrying = Retrying(
            retry=retry_if_exception_type(BrokerOutage),
            wait=wait_exponential_jitter(multiplier=0.1, max=5.0, jitter=0.2),
            stop=lambda _: self._stop.is_set() or not self._holds(self._term),
            sleep=sleep_using_event(self._stop),
            before_sleep=self._report_outage,
        )
        try:
            for attempt in retrying:
                with attempt:
                    if not self._holds(self._term):
                        raise LeaseLost
                    # Encoded anew each time: after a long outage the time of publication must not be the first try's.
                    self._publisher.publish(self._encoded(rows, window))
        except RetryError:
            raise LeaseLost from None
        if retrying.statistics["attempt_number"] > 1:
            self._observer(BrokerRecovered(retrying.statistics["attempt_number"]))
        self._observer(PagePublished(len(rows), time.monotonic() - started))

    def _report_outage(self, state: RetryCallState) -> None:
        error = state.outcome and state.outcome.exception()
        self._observer(BrokerUnavailable(str(error), state.attempt_number))

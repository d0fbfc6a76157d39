"""Publish a batch during one term: encode, hand over, and outlast a broker that is away.

An outage costs no message an attempt, however long it lasts. While it lasts the relay keeps its lease (that is
another thread's work) and tries again with growing, jittered pauses.
"""

import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime

from tenacity import RetryCallState, RetryError, Retrying, retry_if_exception_type, wait_exponential_jitter
from tenacity.nap import sleep_using_event

from relay.events import BrokerRecovered, BrokerUnavailable, Observer, PagePublished
from relay.lease import LeaseLost, Term
from relay.publication import Copy, Refused, Stamp
from relay.publish import BrokerOutage, Publisher


class Publishing:
    """What publishing needs to know of the term it happens in."""

    def __init__(
        self,
        publisher: Publisher,
        term: Term,
        *,
        relay: str,
        holds: Callable[[Term], bool],
        stop: threading.Event,
        observer: Observer,
    ) -> None:
        self.term = term
        self.stop = stop
        self.observer = observer
        self._publisher = publisher
        self._relay = relay
        self._holds = holds

    def require_trust(self) -> None:
        """Before anything is published: a relay that may have been replaced must be silent."""
        if not self._holds(self.term):
            raise LeaseLost

    def publish(self, copies: Sequence[Copy], window: int, read_at: datetime) -> Sequence[Refused]:
        """Returns when the broker has accepted all of them; raises LeaseLost when the term or the process ends."""
        started = time.monotonic()
        # Stamped with the time of the look, not of the sending: a relay that slept in between must not make an old
        # decision look fresh, or its copy could outlive the receipt.
        stamp = Stamp(read_at, self.term.epoch, window, self._relay)
        refused: Sequence[Refused] = ()
        retrying = Retrying(
            retry=retry_if_exception_type(BrokerOutage),
            wait=wait_exponential_jitter(multiplier=0.1, max=5.0, jitter=0.2),
            stop=lambda _: self.stop.is_set() or not self._holds(self.term),
            sleep=sleep_using_event(self.stop),
            before_sleep=self._report_outage,
        )
        try:
            for attempt in retrying:
                with attempt:
                    self.require_trust()
                    refused = self._publisher.publish(copies, stamp)
        except RetryError:
            raise LeaseLost from None
        if retrying.statistics["attempt_number"] > 1:
            self.observer(BrokerRecovered(retrying.statistics["attempt_number"]))
        self.observer(PagePublished(len(copies) - len(refused), time.monotonic() - started))
        return refused

    def _report_outage(self, state: RetryCallState) -> None:
        error = state.outcome and state.outcome.exception()
        self.observer(BrokerUnavailable(str(error), state.attempt_number))

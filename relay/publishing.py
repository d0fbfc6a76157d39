"""Publish a batch during one term: hand it over, and outlast a broker that is away.

An outage costs no message an attempt, however long it lasts. While it lasts the relay keeps its lease (that is
another thread's work) and tries again with growing, jittered pauses. The broker is asked first whether it is there
(half open), and only then given the batch again: a broker that is just starting is not met with everything at once.
"""

import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime

from tenacity import RetryCallState, RetryError, Retrying, retry_if_exception_type, wait_exponential_jitter

from relay.events import BrokerRecovered, BrokerUnavailable, Observer, PagePublished
from relay.lease import LeaseLost, Term
from relay.publication import Copy, Refused, Stamp
from relay.publish import BrokerOutage, Publisher
from relay.tally import tally

_LONGEST_PAUSE = 3.0
_LOOK_SECONDS = 0.25


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
        default_queue: str = "celery",
        outage: Callable[[bool], None] = lambda _: None,
    ) -> None:
        """`outage` is told when one begins (true) and when it is over."""
        self.term = term
        self.stop = stop
        self.observer = observer
        self.keeps_order = publisher.keeps_order
        self._publisher = publisher
        self._relay = relay
        self._holds = holds
        self._default_queue = default_queue
        self._outage = outage

    def require_trust(self) -> None:
        """Before anything is published: a relay that may have been replaced must be silent."""
        if not self._holds(self.term):
            raise LeaseLost

    def publish(
        self, copies: Sequence[Copy], window: int, read_at: datetime, waited_until: datetime | None = None
    ) -> Sequence[Refused]:
        """Returns when the broker has answered for all of them; raises LeaseLost when the term or the process ends.

        `waited_until`: now, for messages whose time since they were written says how quick we are; not for plans.
        """
        started = time.monotonic()
        # Stamped with the time of the look, not of the sending: a relay that slept in between must not make an old
        # decision look fresh, or its copy could outlive the receipt.
        stamp = Stamp(read_at, self.term.epoch, window, self._relay)
        try:
            self.require_trust()
            refused = self._publisher.publish(copies, stamp)
        except BrokerOutage as error:
            refused = self._outlast(error, copies, stamp)
        self._report(copies, refused, waited_until, started)
        return refused

    def _outlast(self, first: BrokerOutage, copies: Sequence[Copy], stamp: Stamp) -> Sequence[Refused]:
        self.observer(BrokerUnavailable(str(first), 1))
        self._outage(True)
        retrying = Retrying(
            retry=retry_if_exception_type(BrokerOutage),
            wait=wait_exponential_jitter(multiplier=0.1, max=_LONGEST_PAUSE, jitter=0.2),
            stop=lambda _: self._over(),
            sleep=self._sleep,
            before_sleep=self._report_outage,
        )
        self._sleep(0.1)
        try:
            for attempt in retrying:
                with attempt:
                    self.require_trust()
                    self._publisher.ping()
                    refused = self._publisher.publish(copies, stamp)
        except RetryError:
            raise LeaseLost from None
        self._outage(False)
        self.observer(BrokerRecovered(retrying.statistics["attempt_number"] + 1))
        return refused

    def _over(self) -> bool:
        return self.stop.is_set() or not self._holds(self.term)

    def _sleep(self, seconds: float) -> None:
        """In short naps: a term that is over has nothing to wait for."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self._over():
            self.stop.wait(min(left, _LOOK_SECONDS))

    def _report_outage(self, state: RetryCallState) -> None:
        error = state.outcome and state.outcome.exception()
        self.observer(BrokerUnavailable(str(error), state.attempt_number + 1))

    def _report(
        self, copies: Sequence[Copy], refused: Sequence[Refused], until: datetime | None, started: float
    ) -> None:
        gone = {one.index for one in refused}
        rows = [copy.row for index, copy in enumerate(copies) if index not in gone] if gone else [c.row for c in copies]
        elapsed = time.monotonic() - started
        at = until.timestamp() + elapsed if until else None
        self.observer(PagePublished(len(rows), elapsed, tally(rows, self._default_queue, at)))

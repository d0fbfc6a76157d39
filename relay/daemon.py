"""The relay process: puts the parts together, runs terms until it is told to stop."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import PackageNotFoundError, version

import psycopg

from outbox.errors import OutboxError, Unreachable
from relay.application import completed
from relay.bell import Bell
from relay.database import ForeignPosition, connect, first_line, identify, shown_url
from relay.events import (
    BrokerUnavailable,
    DatabaseConnected,
    DatabaseUnavailable,
    Event,
    Observer,
    PagePublished,
    RelayStarted,
    ignore,
)
from relay.lead import Leadership
from relay.lease import LeaseLost, Term
from relay.outage import Outage
from relay.prune import Pruner
from relay.publish import BrokerOutage, Publisher
from relay.publish.choice import make_publisher
from relay.queries import queries_for
from relay.registry import Registration
from relay.routing import Routing
from relay.settings import RelaySettings
from relay.signals import on_signals
from relay.work import Surroundings, Work

_RECONNECT_SECONDS = 0.2


class Relay:
    """`Relay(settings).run()` returns after `stop()` or SIGTERM: batch finished, position advanced, lease released."""

    def __init__(self, settings: RelaySettings, observer: Observer = ignore) -> None:
        settings = self._settings = completed(settings)
        self._outside = observer
        self._stop = threading.Event()
        self._queries = queries_for(settings.schema)
        self._registration = Registration(settings, self._queries, installed_version())
        self._leadership = Leadership(settings, self._queries, self._registration, self._observe)
        self._outage = Outage("work", self._observe)
        self._bell = Bell()
        self.beat = time.monotonic()
        """When a loop of this relay last moved, on the monotonic clock."""
        self._loop = threading.get_ident()

    @property
    def registered(self) -> float | None:
        """When its line in `outbox_relay` was last written, on the monotonic clock."""
        return self._registration.seen_at

    @property
    def trouble(self) -> str | None:
        return self._registration.last_error

    def stop(self) -> None:
        self._stop.set()
        self._bell.ring()

    def stop_on_signals(self) -> None:
        """SIGTERM and SIGINT drain and hand over. Call it from the main thread, before `run`."""
        on_signals(self.stop)

    def run(self, *, once: bool = False) -> None:
        """`once`: publish what is committed and due, then hand over and return."""
        self._loop = threading.get_ident()
        publisher, routing = make_publisher(self._settings)
        around = self._surroundings(publisher, routing)
        self._report_start(publisher)
        self._leadership.start()
        try:
            patience = time.monotonic() + 3 * self._settings.lease_ttl
            while not self._stop.is_set():
                self._moved()
                term = self._leadership.wait_for_term(timeout=0.2)
                if term is not None:
                    self._serve(term, around, once)
                elif self._registration.probe_due():
                    self._probe(publisher)
                if once and term is None and time.monotonic() > patience:
                    raise OutboxError("another relay leads this outbox and publishes; --once has nothing to do")
        finally:
            self._leadership.stop()
            publisher.close()

    def _report_start(self, publisher: Publisher) -> None:
        """A broker that is away is no reason not to start, but not to be learnt from the first message either."""
        try:
            publisher.ping()
            answers = True
            self._registration.broker_answered()
        except BrokerOutage as error:
            answers = False
            self._observe(BrokerUnavailable(str(error), 1))
        database, broker = shown_url(self._settings.database_url), shown_url(self._settings.broker_url)
        self._observe(RelayStarted(database, broker, answers))

    def _probe(self, publisher: Publisher) -> None:
        """A standby asks the broker now and then, so that others know whether it would be of use as a leader."""
        try:
            publisher.ping()
            self._registration.broker_answered()
        except BrokerOutage as error:
            self._registration.broker_failed(str(error))

    def _serve(self, term: Term, around: Surroundings, once: bool) -> None:
        """One term. A snapshot held in memory dies with its connection, so a broken connection ends the term."""
        try:
            holds = partial(self._leadership.holds, term)
            with connect(self._settings.database_url, self._settings.lease_ttl, "work", wanted=holds) as connection:
                identify(connection, self._queries)
                self._outage.over()
                self._observe(DatabaseConnected("work"))
                with self._retention(term, once):
                    Work(around, term, connection).run(once=once)
                self._stop.set()  # the loop ends only when it is told to, or when nothing is left to do
        except LeaseLost:
            self._leave(term)
        except (psycopg.Error, Unreachable, ForeignPosition) as error:
            self._outage.failed(first_line(error))
            self._leadership.end(term, "the work connection broke")
            # Without a pause a database that refuses this connection but serves the lease's would spin the epoch.
            self._stop.wait(_RECONNECT_SECONDS)

    @contextmanager
    def _retention(self, term: Term, once: bool) -> Iterator[None]:
        """On its own thread and connection: the loop never waits for it, and it ends with the term."""
        if once:
            yield
            return
        pruner = Pruner(self._settings, self._queries, term, self._observe, self._leadership.holds)
        pruner.start()
        try:
            yield
        finally:
            pruner.stop()

    def _surroundings(self, publisher: Publisher, routing: Routing) -> Surroundings:
        return Surroundings(
            settings=self._settings,
            queries=self._queries,
            publisher=publisher,
            queue_for=routing.queue_for,
            holds=self._leadership.holds,
            stop=self._stop,
            bell=self._bell,
            observer=self._observe,
            moved=self._moved,
        )

    def _moved(self) -> None:
        self.beat = time.monotonic()

    def _leave(self, term: Term) -> None:
        # While stopping the term stays, so that the lease thread can release it instead of letting it expire.
        if not self._stop.is_set():
            self._leadership.end(term, "another relay has taken the lease, or it could not be renewed in time")

    def _observe(self, event: Event) -> None:
        # The threads of the lease and of retention speak here too, but that they move says nothing about this loop.
        if threading.get_ident() == self._loop:
            self._moved()
        match event:
            case PagePublished():
                self._registration.broker_answered()
            case BrokerUnavailable():
                self._registration.broker_failed(event.error)
            case DatabaseUnavailable():
                self._registration.failed(event.error)
            case _:
                pass
        self._outside(event)


def installed_version() -> str:
    try:
        return version("celery-outbox-relay")
    except PackageNotFoundError:
        return "unknown"

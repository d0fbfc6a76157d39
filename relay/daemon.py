"""The relay process: puts the parts together, runs terms until it is told to stop."""

import threading
import time
from importlib.metadata import PackageNotFoundError, version

import psycopg

from outbox.errors import Unreachable
from relay.cycle import Cycle
from relay.database import Database, connect, first_line, identify, shown_url
from relay.due import Due
from relay.encode import Encoder
from relay.events import BrokerUnavailable, DatabaseUnavailable, Event, Observer, PagePublished, RelayStarted, ignore
from relay.lead import Leadership
from relay.lease import LeaseLost, Term
from relay.publish import BrokerOutage, Publisher
from relay.publish.redis import RedisPublisher
from relay.publishing import Publishing
from relay.queries import queries_for
from relay.read import Log
from relay.reconcile import Reconcile
from relay.registry import Registration
from relay.settings import RelaySettings
from relay.signals import on_signals

# An idle log is looked at ever less often, up to settings.poll_seconds; the first message makes it quick again.
_POLL_GROWTH = 1.5
_POLL_FIRST = 0.01
_DUE_SECONDS = 0.2
_RECONNECT_SECONDS = 0.2


class Relay:
    """`Relay(settings).run()` returns after `stop()` or SIGTERM: batch finished, position advanced, lease released."""

    def __init__(self, settings: RelaySettings, observer: Observer = ignore) -> None:
        self._settings = settings
        self._outside = observer
        self._stop = threading.Event()
        self._queries = queries_for(settings.schema)
        self._registration = Registration(settings, self._queries, installed_version())
        self._leadership = Leadership(settings, self._queries, self._registration, self._observe)
        self._encoder = Encoder(settings.default_queue)

    def stop(self) -> None:
        self._stop.set()

    def stop_on_signals(self) -> None:
        """SIGTERM and SIGINT drain and hand over. Call it from the main thread, before `run`."""
        on_signals(self.stop)

    def run(self) -> None:
        publisher = RedisPublisher(self._settings.broker_url, self._settings.broker_timeout, self._encoder)
        self._report_start(publisher)
        self._leadership.start()
        try:
            while not self._stop.is_set():
                term = self._leadership.wait_for_term(timeout=0.2)
                if term is not None:
                    self._serve(term, publisher)
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

    def _serve(self, term: Term, publisher: Publisher) -> None:
        """One term. A snapshot held in memory dies with its connection, so a broken connection ends the term."""
        try:
            with connect(self._settings.database_url, self._settings.lease_ttl, "work") as connection:
                identify(connection, self._queries)
                self._work(term, connection, publisher)
        except LeaseLost:
            self._leave(term)
        except (psycopg.Error, Unreachable) as error:
            self._observe(DatabaseUnavailable(first_line(error)))
            self._leadership.end(term, "the work connection broke")
            # Without a pause a database that refuses this connection but serves the lease's would spin the epoch.
            self._stop.wait(_RECONNECT_SECONDS)

    def _work(self, term: Term, connection: Database, publisher: Publisher) -> None:
        publishing = Publishing(
            publisher,
            term,
            relay=self._settings.name,
            holds=self._leadership.holds,
            stop=self._stop,
            observer=self._observe,
        )
        size = self._settings.batch_size
        log = Log(connection, self._queries, term, size)
        cycle = Cycle(log, publishing)
        due = Due(connection, self._queries, log, publishing, size)
        reconcile = Reconcile(connection, self._queries, log, term, self._observe, relay=self._settings.name)
        cycle.resume()
        pause = 0.0
        look_at_due = 0.0
        while not self._stop.wait(pause):
            published = cycle.step()
            if time.monotonic() >= look_at_due:
                published += due.step()
                reconcile.step()
                look_at_due = time.monotonic() + _DUE_SECONDS
            pause = 0.0 if published else self._longer(pause)

    def _longer(self, pause: float) -> float:
        longest = self._settings.poll_seconds
        return min(longest, pause * _POLL_GROWTH or longest * _POLL_FIRST)

    def _leave(self, term: Term) -> None:
        # While stopping the term stays, so that the lease thread can release it instead of letting it expire.
        if not self._stop.is_set():
            self._leadership.end(term, "another relay has taken the lease, or it could not be renewed in time")

    def _observe(self, event: Event) -> None:
        match event:
            case PagePublished():
                self._registration.broker_answered()
            case BrokerUnavailable() | DatabaseUnavailable():
                self._registration.failed(event.error)
            case _:
                pass
        self._outside(event)


def installed_version() -> str:
    try:
        return version("celery-outbox-relay")
    except PackageNotFoundError:
        return "unknown"

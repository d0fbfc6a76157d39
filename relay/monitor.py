"""What a relay process shows of itself: metrics, health, and its word to systemd; for any number of outboxes.

    monitor = Monitor("127.0.0.1:9464", version)
    relay = Relay(settings, observer=observers(log, monitor.observe(outbox, settings)))
    monitor.watch(outbox, relay)          # again for a new relay of the same outbox
    with monitor: relay.run()

The default address is a courtesy: where it is taken (several relays on one host) the relay warns and does without. Any
other address is a demand: if it cannot be had, nothing starts.
"""

import time
from collections.abc import Iterator
from types import TracebackType
from typing import Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from outbox.errors import ConfigurationError
from relay.endpoint import Answer, Endpoint, Remembered, listening, shown
from relay.events import EndpointOpened, EndpointUnavailable, Observer, ignore
from relay.gauges import FRESH_SECONDS, DatabaseGauges
from relay.health import Verdict, Vitals, alive, patience, ready
from relay.metrics.labels import MOST_QUEUES, Bounded
from relay.metrics.observer import Build, OutboxMetrics, RelayMetrics
from relay.readings import Reader
from relay.settings import RelaySettings, http_address
from relay.systemd import Notifier

DEFAULT_ADDRESS = "127.0.0.1:9464"
_TEXT = "text/plain; version=0.0.4; charset=utf-8"


class Watched(Protocol):
    """What a relay tells about itself; times are of the monotonic clock."""

    @property
    def beat(self) -> float:
        """When its loop last moved."""

    @property
    def registered(self) -> float | None:
        """When it last wrote its line in `outbox_relay`."""

    @property
    def trouble(self) -> str | None:
        """The last error of the database, or None."""


class Monitor:
    def __init__(
        self,
        address: str,
        version: str,
        *,
        observer: Observer = ignore,
        notifier: Notifier | None = None,
        fresh_seconds: float = FRESH_SECONDS,
    ) -> None:
        """Binds the address at once; raises ConfigurationError if it was asked for and cannot be had."""
        self._version = version
        self._observer = observer
        self._notifier = notifier or Notifier()
        self._relays: dict[str, Watched] = {}
        self._settings: dict[str, RelaySettings] = {}
        registry = CollectorRegistry()
        self._scrape = _WithoutCreationTimes(registry)
        self._metrics = RelayMetrics(registry)
        self._gauges = DatabaseGauges(registry, fresh_seconds)
        self.address: str | None = None
        # Told when it starts: the log is not there yet.
        self._news: EndpointOpened | EndpointUnavailable | None = None
        self._endpoint = self._bound(address)

    def observe(self, outbox: str, settings: RelaySettings) -> Observer:
        """The observer that counts for this outbox. Call it before the monitor is started, once an outbox."""
        if outbox in self._settings:
            raise ConfigurationError(f"two outboxes are both called {outbox!a}; give each a name of its own")
        self._settings[outbox] = settings
        queue = Bounded(MOST_QUEUES)
        build = Build(self._version, settings.broker_url.partition("://")[0])
        metrics = OutboxMetrics(self._metrics, outbox, build=build, lease_ttl=settings.lease_ttl, queue=queue)
        metrics.follow(lambda: self._moved_at(outbox))
        reader = Reader(settings.schema, settings.default_queue, queue=queue, epoch_seen=metrics.epoch_seen)
        self._gauges.add(outbox, settings.database_url, reader)
        return metrics

    def watch(self, outbox: str, relay: Watched) -> None:
        """The relay that serves this outbox now."""
        self._relays = {**self._relays, outbox: relay}

    def unwatch(self, outbox: str) -> None:
        """Nobody serves it now: the process is not ready, but its other outboxes are no less alive."""
        self._relays = {name: relay for name, relay in self._relays.items() if name != outbox}

    def alive(self) -> Verdict:
        return alive(self._vitals())

    def ready(self) -> Verdict:
        return ready(self._vitals())

    def text(self) -> bytes:
        """A scrape."""
        return generate_latest(self._scrape)

    def __enter__(self) -> "Monitor":
        if self._news is not None:
            self._observer(self._news)
        self._gauges.start()
        if self._endpoint is not None:
            self._endpoint.start()
        self._notifier.tell("READY=1", f"STATUS=relay for {', '.join(self._settings) or 'no outbox'}")
        self._notifier.feed(lambda: self.alive().good)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stopping()
        self._notifier.stop()
        if self._endpoint is not None:
            self._endpoint.stop()
        self._gauges.stop()

    def stopping(self) -> None:
        """SIGTERM has come: systemd need not wonder why the relay falls silent."""
        self._notifier.tell("STOPPING=1", "STATUS=handing over")

    def _bound(self, address: str) -> Endpoint | None:
        wanted = http_address(address)
        if wanted is None:
            return None
        try:
            listener = listening(*wanted)
        except OSError as error:
            why = error.strerror or str(error)
            if address != DEFAULT_ADDRESS:
                raise ConfigurationError(
                    f"cannot serve /metrics and /livez at {address} (OUTBOX_HTTP): {why}; choose another address, or"
                    " leave it empty to serve nothing"
                ) from None
            self._news = EndpointUnavailable(address, why)
            return None
        self.address = shown(listener)
        self._news = EndpointOpened(self.address)
        return Endpoint(
            listener,
            {
                "/metrics": Remembered(lambda: Answer(200, self.text(), _TEXT)),
                "/livez": lambda: _told(self.alive()),
                "/readyz": lambda: _told(self.ready()),
            },
        )

    def _vitals(self) -> Iterator[Vitals]:
        now = time.monotonic()
        for outbox, settings in list(self._settings.items()):
            relay = self._relays.get(outbox)
            yield Vitals(
                outbox,
                moved=None if relay is None else now - relay.beat,
                registered=None if relay is None or relay.registered is None else now - relay.registered,
                patience=patience(settings.lease_ttl, settings.broker_timeout),
                trouble=None if relay is None else relay.trouble,
            )

    def _moved_at(self, outbox: str) -> float:
        relay = self._relays.get(outbox)
        return 0.0 if relay is None else time.time() - (time.monotonic() - relay.beat)


def _told(verdict: Verdict) -> Answer:
    return Answer(200 if verdict.good else 503, f"{verdict.reason}\n".encode())


class _WithoutCreationTimes(Collector):
    """prometheus_client adds a series `_created` to each counter: twice the series, and no question asks for it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family

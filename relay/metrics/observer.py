"""Events of the relays as numbers: one registry, any number of outboxes, told apart by the label `outbox`."""

import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import NamedTuple

import psycopg
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from relay import events
from relay.events import Event
from relay.metrics import catalog
from relay.metrics.catalog import Family
from relay.metrics.histogram import WeightedHistogram
from relay.metrics.labels import MOST_QUEUES, Bounded
from relay.metrics.outage import ERROR_CLASSES, error_class

LEADERSHIP_EVENTS = ("acquired", "released", "lost")
ROLES = ("work", "lease")
TARGETS = ("database", "broker")
FINDINGS = ("republished",)
SOURCES = ("notify", "timer")


class Build(NamedTuple):
    """What runs here."""

    version: str
    broker: str
    """The kind of broker, never its address."""


class RelayMetrics:
    """The families of what relays do."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.counters = {each.name: counter(each, registry) for each in catalog.RELAY if each.kind == "counter"}
        self.gauges = {each.name: gauge(each, registry) for each in catalog.RELAY if each.kind == "gauge"}
        self.histograms = {
            each.name: WeightedHistogram(each.name, each.meaning, each.labels, each.buckets, registry)
            for each in catalog.RELAY
            if each.kind == "histogram"
        }


def counter(family: Family, registry: CollectorRegistry) -> Counter:
    return Counter(family.name, family.meaning, family.labels, registry=registry)


def gauge(family: Family, registry: CollectorRegistry) -> Gauge:
    return Gauge(family.name, family.meaning, family.labels, registry=registry)


def histogram(family: Family, registry: CollectorRegistry) -> Histogram:
    return Histogram(family.name, family.meaning, family.labels, registry=registry, buckets=family.buckets)


class OutboxMetrics:
    """An observer: the numbers of one outbox. Events come from several threads."""

    def __init__(
        self, metrics: RelayMetrics, outbox: str, *, build: Build, lease_ttl: float, queue: Bounded | None = None
    ) -> None:
        self._metrics = metrics
        self._outbox = outbox
        self._lease_ttl = lease_ttl
        self._queue = queue or Bounded(MOST_QUEUES)
        self._was_connected = False
        self._show_zeros(build)

    def follow(self, moved_at: Callable[[], float]) -> None:
        """When the loop last moved, as a time of day, asked at every scrape."""
        self._gauge(catalog.LOOP).set_function(moved_at)

    def epoch_seen(self, epoch: int) -> None:
        self._gauge(catalog.EPOCH).set(epoch)

    def __call__(self, event: Event) -> None:
        match event:
            case events.PagePublished():
                self._published(event)
            case events.LeaseRenewed():
                self._observe(catalog.RENEW_DURATION, event.seconds)
                self._gauge(catalog.LEASE_EXPIRY).set(time.time() + self._lease_ttl - event.seconds)
            case events.LeadershipGained() | events.LeadershipLost() | events.LeadershipReleased():
                self._leadership(event)
            case events.RelayStarted() | events.BrokerUnavailable() | events.BrokerRecovered():
                self._broker(event)
            case events.DatabaseConnected() | events.DatabaseUnavailable():
                self._database(event)
            case events.QueueClosed() | events.QueueOpened():
                closed = isinstance(event, events.QueueClosed)
                self._gauge(catalog.QUEUE_CLOSED, self._queue(event.queue)).set(closed)
            case _:
                self._counted(event)

    def _counted(self, event: Event) -> None:
        """Events that only add up."""
        match event:
            case events.MessagesParked():
                self._count(catalog.PARKED, self._queue(event.queue), event.blocked_by, by=event.messages)
            case events.MessagesReleased():
                self._count(catalog.RELEASED, self._queue(event.queue), by=event.messages)
            case events.MessagesExpired():
                self._count(catalog.EXPIRED, by=event.messages)
            case events.MessagesDead():
                self._count(catalog.DEAD_LETTERED, by=event.messages)
            case events.RelayWoken():
                self._count(catalog.WAKEUPS, event.source)
            case events.MissingPlanned():
                self._count(catalog.FINDINGS, "republished", by=event.messages)
            case events.RetriesPlanned():
                self._count(catalog.RETRIES, by=event.messages)
            case events.RowsPruned():
                self._count(catalog.PURGED, event.table, by=event.rows)
                self._gauge(catalog.PURGE_SUCCESS).set_to_current_time()
            case _:
                pass

    def _broker(self, event: events.RelayStarted | events.BrokerUnavailable | events.BrokerRecovered) -> None:
        connected = self._gauge(catalog.BROKER_CONNECTED)
        match event:
            case events.RelayStarted():
                connected.set(event.broker_answers)
            case events.BrokerUnavailable():
                connected.set(0)
                self._count(catalog.PUBLISH_FAILURES, error_class(event.error))
            case events.BrokerRecovered():
                connected.set(1)
                self._count(catalog.RECONNECTS, "broker")

    def _published(self, event: events.PagePublished) -> None:
        self._gauge(catalog.BROKER_CONNECTED).set(1)
        self._observe(catalog.PUBLISH_DURATION, event.seconds)
        self._observe(catalog.BATCH_MESSAGES, event.messages)
        if event.tally is None:
            return
        for queue, messages in event.tally.queues.items():
            self._count(catalog.PUBLISHED, self._queue(queue), by=messages)
        for wait in event.tally.waits:
            self._observe(catalog.WRITE_TO_PUBLISH, wait.seconds, self._queue(wait.queue), times=wait.messages)

    def _leadership(self, event: events.LeadershipGained | events.LeadershipLost | events.LeadershipReleased) -> None:
        gained = isinstance(event, events.LeadershipGained)
        self._gauge(catalog.IS_LEADER).set(gained)
        self._gauge(catalog.LEASE_EXPIRY).set(time.time() + self._lease_ttl if gained else 0)
        if gained:
            self.epoch_seen(event.epoch)
        else:
            self._gauge(catalog.DB_CONNECTED, "work").set(0)
        named = "acquired" if gained else "lost" if isinstance(event, events.LeadershipLost) else "released"
        self._count(catalog.LEADERSHIP, named)

    def _database(self, event: events.DatabaseConnected | events.DatabaseUnavailable) -> None:
        if event.role not in ROLES:
            return
        connected = isinstance(event, events.DatabaseConnected)
        self._gauge(catalog.DB_CONNECTED, event.role).set(connected)
        # The work connection is made anew for every term; only the lease's coming back is a reconnection.
        if connected and event.role == "lease":
            self._count(catalog.RECONNECTS, "database", by=int(self._was_connected))
            self._was_connected = True

    def _show_zeros(self, build: Build) -> None:
        driver = f"psycopg {version('psycopg')} {psycopg.pq.__impl__}"
        self._gauge(catalog.BUILD_INFO, build.version, platform.python_version(), driver, build.broker).set(1)
        for family in (catalog.IS_LEADER, catalog.EPOCH, catalog.LEASE_EXPIRY, catalog.BROKER_CONNECTED):
            self._gauge(family)
        for family, values in (
            (catalog.LEADERSHIP, LEADERSHIP_EVENTS),
            (catalog.PUBLISH_FAILURES, ERROR_CLASSES),
            (catalog.RECONNECTS, TARGETS),
            (catalog.FINDINGS, FINDINGS),
            (catalog.WAKEUPS, SOURCES),
        ):
            for value in values:
                self._count(family, value, by=0)
        for family in (catalog.RETRIES, catalog.EXPIRED, catalog.DEAD_LETTERED):
            self._count(family, by=0)
        for role in ROLES:
            self._gauge(catalog.DB_CONNECTED, role)
        for family in (catalog.PUBLISH_DURATION, catalog.BATCH_MESSAGES, catalog.RENEW_DURATION):
            self._metrics.histograms[family.name].begin((self._outbox,))

    def _gauge(self, family: Family, *labels: str) -> Gauge:
        return self._metrics.gauges[family.name].labels(self._outbox, *labels)

    def _count(self, family: Family, *labels: str, by: int = 1) -> None:
        self._metrics.counters[family.name].labels(self._outbox, *labels).inc(by)

    def _observe(self, family: Family, value: float, *labels: str, times: int = 1) -> None:
        self._metrics.histograms[family.name].observe((self._outbox, *labels), value, times)

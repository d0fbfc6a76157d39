"""Gauges from the database: backlog, ages, parked, unacknowledged, tables. Every relay has them, leader or not: if only
the leader did, the most important graph would vanish exactly when there is no leader.

A scrape never waits for the database for long. Each outbox has a thread and a connection of its own; a scrape wakes it
when its values are older than FRESH_SECONDS, waits WAIT_SECONDS at most, and then shows what there is. Nobody scrapes:
nobody asks. A question that is not answered within a second keeps its last values; `outbox_stats_*` says so.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable

import psycopg
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from outbox.errors import OutboxError
from relay.database import Database, connect
from relay.metrics import catalog
from relay.metrics.histogram import WeightedHistogram
from relay.metrics.observer import counter, gauge
from relay.readings import Reader, Readings

FRESH_SECONDS = 15.0
WAIT_SECONDS = 1.5
_CONNECT_SECONDS = 2.0
_MEASURES = (catalog.STATS_DURATION, catalog.STATS_FAILURES, catalog.STATS_SUCCESS)


class DatabaseGauges(Collector):
    """The gauges of all outboxes of this process: a family may appear only once in a scrape."""

    def __init__(self, registry: CollectorRegistry, fresh_seconds: float = FRESH_SECONDS) -> None:
        self._fresh_seconds = fresh_seconds
        self._surveys: list[Survey] = []
        self._duration = WeightedHistogram(
            catalog.STATS_DURATION.name,
            catalog.STATS_DURATION.meaning,
            catalog.STATS_DURATION.labels,
            catalog.STATS_DURATION.buckets,
            registry,
        )
        self._failures = counter(catalog.STATS_FAILURES, registry)
        self._success = gauge(catalog.STATS_SUCCESS, registry)
        registry.register(self)

    def add(self, outbox: str, url: str, reader: Reader) -> None:
        self._failures.labels(outbox).inc(0)
        self._success.labels(outbox).set(0)
        self._duration.begin((outbox,))

        def measured(seconds: float, answered: bool) -> None:
            self._duration.observe((outbox,), seconds)
            if answered:
                self._success.labels(outbox).set_to_current_time()
            else:
                self._failures.labels(outbox).inc()

        self._surveys.append(Survey(outbox, url, reader, measured))

    def start(self) -> None:
        for survey in self._surveys:
            survey.start()

    def stop(self) -> None:
        for survey in self._surveys:
            survey.stop()

    def describe(self) -> Iterable[Metric]:
        return [_family(each) for each in catalog.DATABASE if each not in _MEASURES]

    def collect(self) -> Iterable[Metric]:
        self._refresh()
        told = [(survey.outbox, survey.readings) for survey in list(self._surveys)]
        for each in catalog.DATABASE:
            if each not in _MEASURES:
                family = _family(each)
                for outbox, readings in told:
                    for labels, value in readings.get(each.name, {}).items():
                        family.add_metric((outbox, *labels), value)
                yield family

    def _refresh(self) -> None:
        """All outboxes are asked at once, so many of them take no longer than one."""
        deadline = time.monotonic() + WAIT_SECONDS
        asked = [survey for survey in list(self._surveys) if survey.ask(self._fresh_seconds)]
        for survey in asked:
            survey.wait(deadline - time.monotonic())


def _family(family: catalog.Family) -> GaugeMetricFamily | CounterMetricFamily:
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    return kind(family.name, family.meaning, labels=family.labels)


class Survey:
    """One outbox: asks when it is told to, on a thread and a connection of its own."""

    def __init__(self, outbox: str, url: str, reader: Reader, measured: Callable[[float, bool], None]) -> None:
        self.outbox = outbox
        self.readings: Readings = {}
        self._url = url
        self._reader = reader
        self._measured = measured
        self._changed = threading.Condition()
        self._wanted = False
        self._stopping = False
        self._asked_at = float("-inf")
        self._thread = threading.Thread(target=self._run, name="outbox-gauges", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Does not wait for a database that does not answer: the thread ends with the process."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout=WAIT_SECONDS)

    def ask(self, fresh_seconds: float) -> bool:
        """True if new values were needed and have been asked for."""
        with self._changed:
            stale = time.monotonic() - self._asked_at > fresh_seconds
            if stale and self._thread.is_alive():
                self._wanted = True
                self._changed.notify_all()
            return self._wanted

    def wait(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._wanted, max(0.0, seconds))

    def _run(self) -> None:
        connection: Database | None = None
        while self._is_wanted():
            started = time.monotonic()
            connection, answered = self._survey(connection)
            self._measured(time.monotonic() - started, answered)
            with self._changed:
                self._wanted, self._asked_at = False, time.monotonic()
                self._changed.notify_all()
        if connection is not None:
            connection.close()

    def _is_wanted(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._wanted or self._stopping)
            return not self._stopping

    def _survey(self, connection: Database | None) -> tuple[Database | None, bool]:
        try:
            open_connection = connection or connect(self._url, _CONNECT_SECONDS, "gauges")
        except (psycopg.Error, OutboxError):
            return None, False
        readings, answered = self._reader.read(open_connection)
        self.readings = {**self.readings, **readings}
        if open_connection.closed or open_connection.broken:
            with contextlib.suppress(psycopg.Error):
                open_connection.close()
            return None, answered
        return open_connection, answered

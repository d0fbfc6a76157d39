"""Prometheus metrics of the writer, in the application's own registry:

    outbox = Outbox(observer=writer_metrics())

The counters work in prometheus_client's multiprocess mode too, if PROMETHEUS_MULTIPROC_DIR is set before the import.
"""

from collections.abc import Sequence

from prometheus_client import REGISTRY, CollectorRegistry

from outbox.metrics import REASONS, WriterObserver, Written
from relay.metrics import catalog
from relay.metrics.labels import MOST_QUEUES, MOST_TASKS, Bounded
from relay.metrics.observer import counter, histogram


def writer_metrics(
    registry: CollectorRegistry = REGISTRY, *, outbox: str = "public", default_queue: str = "celery"
) -> WriterObserver:
    """`outbox` is the label of that name; make it the same as the relay's. Once a registry."""
    return _WriterMetrics(registry, outbox, default_queue)


class _WriterMetrics:
    def __init__(self, registry: CollectorRegistry, outbox: str, default_queue: str) -> None:
        self._outbox = outbox
        self._default_queue = default_queue
        self._queue, self._task = Bounded(MOST_QUEUES), Bounded(MOST_TASKS)
        self._counts = counter(catalog.WRITTEN, registry)
        self._hits = counter(catalog.DEDUP_HITS, registry)
        self._bytes = histogram(catalog.PAYLOAD_BYTES, registry)
        self._duration = histogram(catalog.WRITE_DURATION, registry).labels(outbox)
        failures = counter(catalog.WRITE_FAILURES, registry)
        self._failures = {reason: failures.labels(outbox, reason) for reason in REASONS}

    def written(self, messages: Sequence[Written], seconds: float) -> None:
        self._duration.observe(seconds)
        for message in messages:
            queue = self._queue(message.queue or self._default_queue)
            family = self._hits if message.duplicate else self._counts
            family.labels(self._outbox, queue, self._task(message.task)).inc()
            self._bytes.labels(self._outbox, queue).observe(message.payload_bytes)

    def failed(self, reason: str) -> None:
        self._failures[reason].inc()

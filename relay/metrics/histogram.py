"""A histogram that takes many equal observations at once; prometheus_client's takes one, at a microsecond each."""

import threading
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry


class WeightedHistogram(Collector):
    """Counts a bucket; the text format wants them summed up, which `collect` does."""

    def __init__(
        self,
        name: str,
        documentation: str,
        labels: Sequence[str],
        buckets: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        self._name, self._documentation, self._labels = name, documentation, tuple(labels)
        self._bounds = (*buckets, float("inf"))
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, ...], list[int]] = {}
        self._sums: dict[tuple[str, ...], float] = {}
        registry.register(self)

    def observe(self, labels: tuple[str, ...], value: float, times: int = 1) -> None:
        place = bisect_left(self._bounds, value)
        with self._lock:
            self._row(labels)[place] += times
            self._sums[labels] += value * times

    def begin(self, labels: tuple[str, ...]) -> None:
        """Show these labels with zeros: what begins at its first observation has no rate then."""
        with self._lock:
            self._row(labels)

    def _row(self, labels: tuple[str, ...]) -> list[int]:
        counts = self._counts.get(labels)
        if counts is None:
            counts = self._counts[labels] = [0] * len(self._bounds)
            self._sums[labels] = 0.0
        return counts

    def describe(self) -> Iterable[Metric]:
        return [HistogramMetricFamily(self._name, self._documentation, labels=self._labels)]

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labels)
        with self._lock:
            held = [(labels, list(counts), self._sums[labels]) for labels, counts in self._counts.items()]
        for labels, counts, total in held:
            family.add_metric(labels, self._cumulative(counts), total)
        yield family

    def _cumulative(self, counts: Sequence[int]) -> list[tuple[str, float]]:
        told: list[tuple[str, float]] = []
        running = 0
        for bound, count in zip(self._bounds, counts, strict=True):
            running += count
            told.append(("+Inf" if bound == float("inf") else str(float(bound)), float(running)))
        return told

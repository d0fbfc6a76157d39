"""Numbers from events: exact counts, bounded labels, zeros from the start."""

import pytest
from prometheus_client import CollectorRegistry

from relay import events
from relay.events import Event, observers
from relay.metrics.histogram import WeightedHistogram
from relay.metrics.labels import OTHER, Bounded
from relay.metrics.observer import Build, OutboxMetrics, RelayMetrics
from relay.metrics.outage import ERROR_CLASSES, error_class
from relay.tally import SAMPLES, Tally, Wait, tally
from relay.window import Row


def row(created_at: float, queue: str | None = None) -> Row:
    return Row("id", 1, "a.b", queue, None, b"[[], {}", "{}", "", True, None, created_at, None, False, False)


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> OutboxMetrics:
    return OutboxMetrics(RelayMetrics(registry), "shop", build=Build("1", "redis"), lease_ttl=3.0)


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, {"outbox": "shop", **labels})


def test_a_small_page_is_tallied_exactly() -> None:
    found = tally([row(90.0), row(95.0, "mail"), row(99.0)], "celery", 100.0)
    assert found.queues == {"celery": 2, "mail": 1}
    assert sorted(found.waits) == [Wait("celery", 1.0, 1), Wait("celery", 10.0, 1), Wait("mail", 5.0, 1)]


def test_rows_without_a_queue_and_rows_of_the_default_queue_are_one() -> None:
    assert tally([row(1.0), row(1.0, "celery")], "celery", None) == Tally({"celery": 2})


@pytest.mark.parametrize("size", [SAMPLES - 1, SAMPLES, SAMPLES + 1, 500, 10_000])
def test_a_large_page_is_sampled_and_its_weights_are_its_size(size: int) -> None:
    found = tally([row(float(n)) for n in range(size)], "celery", float(size))
    assert len(found.waits) == min(size, SAMPLES)
    assert sum(wait.messages for wait in found.waits) == size == found.queues["celery"]
    assert found.waits[0].seconds == size  # the oldest is always looked at


def test_a_row_that_seems_younger_than_now_has_waited_no_time() -> None:
    assert tally([row(100.5)], "celery", 100.0).waits == (Wait("celery", 0.0, 1),)


def test_a_page_counts_by_queue_and_fills_the_histograms(metrics: OutboxMetrics, registry: CollectorRegistry) -> None:
    told = Tally({"celery": 400, "mail": 100}, (Wait("celery", 0.02, 400), Wait("mail", 7.0, 100)))
    metrics(events.PagePublished(500, 0.003, told))
    assert value(registry, "outbox_relay_published_total", queue="celery") == 400
    assert value(registry, "outbox_relay_write_to_publish_seconds_bucket", queue="celery", le="0.025") == 400
    assert value(registry, "outbox_relay_write_to_publish_seconds_bucket", queue="mail", le="5.0") == 0
    assert value(registry, "outbox_relay_write_to_publish_seconds_count", queue="mail") == 100
    assert value(registry, "outbox_relay_write_to_publish_seconds_sum", queue="mail") == 700
    assert value(registry, "outbox_relay_batch_messages_bucket", le="250.0") == 0
    assert value(registry, "outbox_relay_batch_messages_bucket", le="500.0") == 1
    assert value(registry, "outbox_relay_broker_connected") == 1


@pytest.mark.parametrize(
    ("event", "name", "labels"),
    [
        (
            events.MessagesParked("mail", "pause", 3),
            "outbox_relay_parked_total",
            {"queue": "mail", "blocked_by": "pause"},
        ),
        (events.MessagesReleased("mail", 3), "outbox_relay_released_total", {"queue": "mail"}),
        (events.MessagesExpired(3), "outbox_relay_expired_total", {}),
        (events.MessagesDead(3, "too large"), "outbox_relay_dead_lettered_total", {}),
        (events.MissingPlanned(3), "outbox_reconcile_findings_total", {"finding": "republished"}),
        (events.RetriesPlanned(3), "outbox_relay_retries_scheduled_total", {}),
        (events.RowsPruned("outbox_message", 3), "outbox_purge_rows_total", {"table": "outbox_message"}),
    ],
)
def test_events_add_up(
    metrics: OutboxMetrics, registry: CollectorRegistry, event: Event, name: str, labels: dict[str, str]
) -> None:
    metrics(event)
    metrics(event)
    assert value(registry, name, **labels) == 6


def test_closed_labels_are_shown_as_zero_from_the_start(metrics: OutboxMetrics, registry: CollectorRegistry) -> None:
    for kind in ERROR_CLASSES:
        assert value(registry, "outbox_relay_publish_failures_total", error_class=kind) == 0
    assert value(registry, "outbox_relay_leadership_changes_total", event="acquired") == 0
    assert value(registry, "outbox_relay_is_leader") == 0
    assert value(registry, "outbox_relay_dead_lettered_total") == 0


def test_leadership_comes_and_goes(metrics: OutboxMetrics, registry: CollectorRegistry) -> None:
    metrics(events.LeadershipGained(7))
    assert value(registry, "outbox_relay_is_leader") == 1
    assert value(registry, "outbox_relay_lease_epoch") == 7
    assert (value(registry, "outbox_relay_lease_expiry_timestamp_seconds") or 0) > 1e9
    metrics(events.LeadershipLost(7, "another relay has taken the lease"))
    assert value(registry, "outbox_relay_is_leader") == 0
    assert value(registry, "outbox_relay_lease_expiry_timestamp_seconds") == 0
    assert value(registry, "outbox_relay_leadership_changes_total", event="lost") == 1


def test_only_a_lease_connection_that_came_back_is_a_reconnection(
    metrics: OutboxMetrics, registry: CollectorRegistry
) -> None:
    for event in (
        events.DatabaseConnected("lease"),
        events.DatabaseConnected("work"),
        events.DatabaseConnected("work"),
    ):
        metrics(event)
    assert value(registry, "outbox_relay_reconnects_total", target="database") == 0
    metrics(events.DatabaseUnavailable("gone", "lease"))
    assert value(registry, "outbox_relay_db_connected", role="lease") == 0
    metrics(events.DatabaseConnected("lease"))
    assert value(registry, "outbox_relay_reconnects_total", target="database") == 1


def test_queues_beyond_the_hundredth_share_one_name(metrics: OutboxMetrics, registry: CollectorRegistry) -> None:
    for number in range(150):
        metrics(events.PagePublished(1, 0.001, Tally({f"q{number}": 1}, (Wait(f"q{number}", 1.0, 1),))))
    assert value(registry, "outbox_relay_published_total", queue="q99") == 1
    assert value(registry, "outbox_relay_published_total", queue="q100") is None
    assert value(registry, "outbox_relay_published_total", queue=OTHER) == 50


def test_a_name_that_nobody_could_read_is_no_label() -> None:
    named = Bounded(3)
    assert [named("a\nb"), named("mail"), named("x" * 300), named("late"), named("mail")] == [
        OTHER, "mail", OTHER, OTHER, "mail",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("ConnectionError: Error 111 connecting to room:6379. Connection refused.", "broker_unreachable"),
        ("TimeoutError: Timeout reading from socket", "broker_timeout"),
        ("AuthenticationError: WRONGPASS invalid username-password pair", "auth"),
        ("ReadOnlyError: You can't write against a read only replica.", "broker_nack"),
        ("ResponseError: OOM command not allowed", "broker_nack"),
        ("Something: else", "unknown"),
        ("", "unknown"),
    ],
)
def test_an_outage_has_one_of_few_names(error: str, expected: str) -> None:
    assert error_class(error) == expected
    assert expected in ERROR_CLASSES


def test_a_weighted_histogram_is_what_as_many_observations_would_be(registry: CollectorRegistry) -> None:
    histogram = WeightedHistogram("h", "help", ("outbox",), (1, 2), registry)
    histogram.observe(("shop",), 1.0, 3)  # a bound belongs to its own bucket
    histogram.observe(("shop",), 9.0, 2)
    assert [value(registry, "h_bucket", le=le) for le in ("1.0", "2.0", "+Inf")] == [3, 3, 5]
    assert value(registry, "h_sum") == 21
    assert value(registry, "h_count") == 5


def test_many_observers_hear_in_order() -> None:
    heard: list[tuple[str, Event]] = []
    event = events.MessagesExpired(1)
    observers(lambda e: heard.append(("first", e)), lambda e: heard.append(("second", e)))(event)
    assert heard == [("first", event), ("second", event)]

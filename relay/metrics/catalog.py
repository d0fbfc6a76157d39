"""Every metric there is: name, kind, labels, meaning. docs/metrics.md says the same in a table; a test compares.

No label ever carries an id, a key, a payload, an error's text or a name that the monitoring adds itself (instance).
`queue` and `task` are bounded (labels.py); all other labels have a closed set of values, and those are shown as zero
from the start: a counter that begins at its first increment has no increase then.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

LATENCY = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
CALL = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
WRITE = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
SIZE = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000)
BYTES = (256, 1024, 4096, 16384, 65536, 262144, 1048576)


@dataclass(frozen=True, slots=True)
class Family:
    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    meaning: str
    buckets: tuple[float, ...] = ()


def _family(
    kind: Literal["counter", "gauge", "histogram"], name: str, labels: str, meaning: str, buckets: Sequence[float] = ()
) -> Family:
    return Family(name, kind, ("outbox", *labels.split()), meaning, tuple(buckets))


def _counter(name: str, labels: str, meaning: str) -> Family:
    return _family("counter", name, labels, meaning)


def _gauge(name: str, labels: str, meaning: str) -> Family:
    return _family("gauge", name, labels, meaning)


def _histogram(name: str, labels: str, meaning: str, buckets: Sequence[float]) -> Family:
    return _family("histogram", name, labels, meaning, buckets)


# What one relay process did.
BUILD_INFO = _gauge("outbox_relay_build_info", "version python driver broker", "Always 1; the labels are the versions.")
PUBLISHED = _counter("outbox_relay_published_total", "queue", "Copies of messages that the broker accepted.")
PUBLISH_FAILURES = _counter(
    "outbox_relay_publish_failures_total",
    "error_class",
    "Tries to publish a batch that the broker did not answer with yes; all of it is tried again.",
)
PUBLISH_DURATION = _histogram(
    "outbox_relay_publish_duration_seconds",
    "",
    "From handing over a batch to the broker's yes, with outages.",
    CALL,
)
WRITE_TO_PUBLISH = _histogram(
    "outbox_relay_write_to_publish_seconds",
    "queue",
    "From a message's created_at to the broker's yes, first publications from the log only.",
    LATENCY,
)
BATCH_MESSAGES = _histogram("outbox_relay_batch_messages", "", "Messages of a published batch.", SIZE)
RETRIES = _counter("outbox_relay_retries_scheduled_total", "", "Messages that consumers asked to be published again.")
IS_LEADER = _gauge("outbox_relay_is_leader", "", "1 while this relay leads.")
EPOCH = _gauge("outbox_relay_lease_epoch", "", "The epoch of the lease as this relay last saw it.")
LEASE_EXPIRY = _gauge(
    "outbox_relay_lease_expiry_timestamp_seconds",
    "",
    "Until when it holds the lease, by its own clock; else 0.",
)
RENEW_DURATION = _histogram("outbox_relay_lease_renew_duration_seconds", "", "Renewals of the lease.", CALL)
LEADERSHIP = _counter("outbox_relay_leadership_changes_total", "event", "Terms of this relay begun and ended.")
DB_CONNECTED = _gauge(
    "outbox_relay_db_connected", "role", "1 while this connection works; a standby has no work connection."
)
BROKER_CONNECTED = _gauge("outbox_relay_broker_connected", "", "1 if the broker answered when last asked.")
RECONNECTS = _counter("outbox_relay_reconnects_total", "target", "Connections that came back after a failure.")
LOOP = _gauge("outbox_relay_loop_last_iteration_timestamp_seconds", "", "When the relay's loop last moved; as /livez.")
FINDINGS = _counter(
    "outbox_reconcile_findings_total", "finding", "Messages published long ago without a receipt: planned again."
)
PARKED = _counter("outbox_relay_parked_total", "queue blocked_by", "Messages set aside until their queue or key opens.")
RELEASED = _counter("outbox_relay_released_total", "queue", "Parked messages that may go again.")
QUEUE_CLOSED = _gauge("outbox_relay_queue_closed", "queue", "1 while the broker refuses messages for this queue.")
EXPIRED = _counter("outbox_relay_expired_total", "", "Messages whose time was up before they were published.")
DEAD_LETTERED = _counter("outbox_relay_dead_lettered_total", "", "Messages that the broker can never take.")
WAKEUPS = _counter("outbox_relay_wakeups_total", "source", "Ends of a sleep: a writer's notice, or the clock.")
PURGED = _counter("outbox_purge_rows_total", "table", "Rows that retention has deleted.")
PURGE_SUCCESS = _gauge("outbox_purge_last_success_timestamp_seconds", "", "When retention last deleted some rows.")

RELAY: tuple[Family, ...] = (
    BUILD_INFO,
    PUBLISHED,
    PUBLISH_FAILURES,
    PUBLISH_DURATION,
    WRITE_TO_PUBLISH,
    BATCH_MESSAGES,
    RETRIES,
    IS_LEADER,
    EPOCH,
    LEASE_EXPIRY,
    RENEW_DURATION,
    LEADERSHIP,
    DB_CONNECTED,
    BROKER_CONNECTED,
    RECONNECTS,
    LOOP,
    FINDINGS,
    PARKED,
    RELEASED,
    QUEUE_CLOSED,
    EXPIRED,
    DEAD_LETTERED,
    WAKEUPS,
    PURGED,
    PURGE_SUCCESS,
)

# What the database says; every relay says the same, so take max, never sum.
PENDING = _gauge("outbox_pending_messages", "queue state", "Committed messages that the broker does not have.")
OLDEST_PENDING = _gauge(
    "outbox_oldest_pending_age_seconds",
    "queue state",
    "Age of the oldest; scheduled ones from when they are due.",
)
UNACKNOWLEDGED = _gauge(
    "outbox_unacknowledged_messages", "queue", "Published, the task has a registered consumer, and no receipt yet."
)
OLDEST_UNACKNOWLEDGED = _gauge(
    "outbox_oldest_unacknowledged_age_seconds", "queue", "Age of the oldest of them, from created_at."
)
DEAD_LETTERS = _gauge("outbox_dead_letters", "category", "Messages that failed for good and wait for a decision.")
PAUSED = _gauge("outbox_queue_paused", "queue", "1 while the queue is paused; queue * is all of them.")
OLDEST_TRANSACTION = _gauge(
    "outbox_oldest_transaction_age_seconds", "", "The longest open or prepared transaction: it holds back vacuum."
)
TABLE_BYTES = _gauge("outbox_table_bytes", "table", "Size on disk, with indexes and long values.")
DEAD_ROWS = _gauge("outbox_table_dead_rows_ratio", "table", "Share of rows that vacuum has yet to remove.")
SCHEMA = _gauge("outbox_schema_version", "", "Revision of the tables.")
SCHEMA_EXPECTED = _gauge("outbox_schema_version_expected", "", "Revision that this relay was written for.")
ACTIONS = _counter("outbox_operator_actions_total", "action", "Rows of outbox_audit.")
STATS_DURATION = _histogram("outbox_stats_query_duration_seconds", "", "All the questions above, once.", CALL)
STATS_FAILURES = _counter("outbox_stats_query_failures_total", "", "Rounds of questions with one unanswered.")
STATS_SUCCESS = _gauge("outbox_stats_last_success_timestamp_seconds", "", "When all of them were last answered.")

DATABASE: tuple[Family, ...] = (
    PENDING,
    OLDEST_PENDING,
    UNACKNOWLEDGED,
    OLDEST_UNACKNOWLEDGED,
    DEAD_LETTERS,
    PAUSED,
    OLDEST_TRANSACTION,
    TABLE_BYTES,
    DEAD_ROWS,
    SCHEMA,
    SCHEMA_EXPECTED,
    ACTIONS,
    STATS_DURATION,
    STATS_FAILURES,
    STATS_SUCCESS,
)

# What an application wrote, in its own registry, if it asks for it (relay/writer_metrics.py).
WRITTEN = _counter("outbox_messages_written_total", "queue task", "Inserted, before the commit: a rollback counts too.")
WRITE_DURATION = _histogram("outbox_write_duration_seconds", "", "One statement of add or add_many.", WRITE)
WRITE_FAILURES = _counter("outbox_write_failures_total", "reason", "Calls of add or add_many that raised.")
DEDUP_HITS = _counter("outbox_dedup_hits_total", "queue task", "Not inserted: a key stands for an earlier message.")
PAYLOAD_BYTES = _histogram("outbox_payload_bytes", "queue", "JSON of args and kwargs.", BYTES)

WRITER: tuple[Family, ...] = (WRITTEN, WRITE_DURATION, WRITE_FAILURES, DEDUP_HITS, PAYLOAD_BYTES)

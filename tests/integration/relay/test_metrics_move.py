"""Every metric moves: one story with two relays, real servers and what goes wrong; then a list of what stood still."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from uuid import UUID

import psycopg
import pytest
import redis
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from outbox import Message, Outbox
from outbox.errors import NotInTransaction
from relay import Relay, RelaySettings
from relay.embedded import Valkey, wait_until
from relay.metrics import catalog
from relay.monitor import Monitor
from relay.systemd import Notifier
from relay.writer_metrics import writer_metrics
from tests.support.promtool import Promtool

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
Client = psycopg.Connection[tuple[Any, ...]]
# A relay that has not been seen for days is what retention forgets first.
GONE = """
INSERT INTO outbox_relay (holder, name, version, seen_at)
VALUES (gen_random_uuid(), 'gone', '1', clock_timestamp() - interval '3 days')
"""
CONSTANT = {catalog.BUILD_INFO.name, catalog.SCHEMA.name, catalog.SCHEMA_EXPECTED.name}


def samples(text: bytes) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def families_moved(before: Samples, now: Samples) -> set[str]:
    moved = {name for (name, labels), value in now.items() if value and value != before.get((name, labels), 0.0)}
    moved |= {name for (name, _), value in now.items() if name in CONSTANT and value}
    return {name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum") for name in moved} | moved


class Side:
    """One relay process's worth: a relay, its monitor, and everything that was ever seen to move."""

    def __init__(self, settings: RelaySettings) -> None:
        self.monitor = Monitor("", "1.2.3", notifier=Notifier({}), fresh_seconds=0.0)
        self.relay = Relay(settings, observer=self.monitor.observe("shop", settings))
        self.monitor.watch("shop", self.relay)
        self.thread = threading.Thread(target=self.relay.run, daemon=True)
        self.first = samples(self.monitor.text())
        self.moved: set[str] = set()

    def look(self) -> Samples:
        now = samples(self.monitor.text())
        self.moved |= families_moved(self.first, now)
        return now

    def value(self, name: str, **labels: str) -> float:
        return self.look().get((name, tuple(sorted({"outbox": "shop", **labels}.items()))), 0.0)

    def stop(self) -> None:
        self.relay.stop()
        self.thread.join(10)


@contextmanager
def running(settings: RelaySettings) -> Iterator[Side]:
    side = Side(settings)
    with side.monitor:
        side.thread.start()
        try:
            yield side
        finally:
            side.stop()


class Story:
    def __init__(self, database: str, valkey: Valkey, undo: ExitStack) -> None:
        self.database, self.valkey = database, valkey
        self.client: Client = undo.enter_context(psycopg.connect(database, autocommit=True))
        self.registry = CollectorRegistry()
        self.outbox = Outbox(observer=writer_metrics(self.registry, outbox="shop"))
        self.client.execute(GONE)
        self.sides = [undo.enter_context(running(self.settings(name))) for name in ("a", "b")]

    def settings(self, name: str) -> RelaySettings:
        return RelaySettings(
            database_url=self.database,
            broker_url=self.valkey.url(),
            name=name,
            lease_ttl=1.0,
            broker_timeout=0.5,
            tasks="shop.*",
        )

    def add(self, count: int = 1, **options: Any) -> list[UUID]:
        with self.client.transaction():
            task = options.pop("task", "shop.plain")
            return [self.outbox.add(self.client, Message(task, **options)).id for _ in range(count)]

    def parked(self) -> bool:
        return any(side.value("outbox_relay_parked_total", queue="mail", blocked_by="pause") for side in self.sides)

    def until(self, name: str, condition: Callable[[float], bool] = bool, **labels: str) -> None:
        """Either relay says so: only one of them leads."""
        wait_until(
            lambda: any(condition(side.value(name, **labels)) for side in self.sides), 15, f"{name} {labels} to move"
        )


@pytest.fixture
def story(database: str, own_valkey: Valkey) -> Iterator[Story]:
    with ExitStack() as undo:
        yield Story(database, own_valkey, undo)


def test_every_documented_metric_moves(story: Story, promtool: Promtool) -> None:
    publishes_and_waits(story)
    a_writer_errs(story)
    a_queue_is_paused_and_another_refused(story)
    consumers_ask_again_and_stay_silent(story)
    the_database_hesitates(story)
    the_broker_is_away(story)
    for side in story.sides:
        assert side.monitor.alive().good, side.monitor.alive().reason
        assert side.monitor.ready().good, side.monitor.ready().reason
    leader = next(side for side in story.sides if side.value("outbox_relay_is_leader"))
    leader.stop()
    story.until("outbox_relay_leadership_changes_total", event="released")
    story.until("outbox_relay_is_leader")
    moved = set[str]().union(*(side.moved for side in story.sides))
    moved |= families_moved({}, samples(generate_latest(story.registry)))
    documented = {each.name for each in (*catalog.RELAY, *catalog.DATABASE, *catalog.WRITER)}
    assert documented - moved == set()
    code, said = promtool.run("check", "metrics", text=leader.monitor.text())
    assert code == 0, said
    assert not said.strip()


def publishes_and_waits(story: Story) -> None:
    story.add(30)
    story.add(kwargs={"n": 1}, queue="mail", delay=3600)
    story.until("outbox_relay_published_total", lambda value: value >= 30, queue="celery")
    story.until("outbox_relay_write_to_publish_seconds_count", lambda value: value >= 30, queue="celery")
    story.until("outbox_pending_messages", queue="mail", state="scheduled")
    story.until("outbox_relay_wakeups_total", source="timer")


def a_writer_errs(story: Story) -> None:
    for _ in range(2):
        story.add(dedup_key="once")
    with pytest.raises(NotInTransaction):
        story.outbox.add(story.client, Message("shop.plain"))
    story.add(task="other.task")
    story.until("outbox_relay_dead_lettered_total")
    story.until("outbox_dead_letters", category="dead_letter")


def a_queue_is_paused_and_another_refused(story: Story) -> None:
    story.client.execute("INSERT INTO outbox_pause (queue, paused_by, why) VALUES ('mail', 'ana', 'test')")
    story.client.execute("INSERT INTO outbox_audit (who, action) VALUES ('ana', 'pause')")
    story.until("outbox_queue_paused", queue="mail")
    # The relay reads the pauses now and then: some messages may still go.
    wait_until(lambda: story.add(queue="mail") and story.parked(), 15, "messages of a paused queue to be parked")
    story.add(queue="mail", expires_in=0.5)
    story.until("outbox_pending_messages", queue="mail", state="parked")
    story.until("outbox_oldest_pending_age_seconds", lambda age: age > 0.6, queue="mail", state="parked")
    story.client.execute("DELETE FROM outbox_pause")
    story.until("outbox_relay_released_total", queue="mail")
    story.until("outbox_relay_expired_total")
    with redis.Redis.from_url(story.valkey.url()) as broker:
        broker.set("odd", "not a list")
        story.add(queue="odd")
        story.until("outbox_relay_queue_closed", queue="odd")
        broker.delete("odd")
    story.until("outbox_relay_released_total", queue="odd")


def consumers_ask_again_and_stay_silent(story: Story) -> None:
    story.client.execute("INSERT INTO inbox_consumer (task, receipt_timeout) VALUES ('shop.effect', '1 s')")
    (asked, _) = story.add(2, task="shop.effect")
    story.until("outbox_unacknowledged_messages", queue="celery")
    story.client.execute(
        "INSERT INTO inbox_retry (message_id, consumer, kind, attempt, due_at)"
        " VALUES (%s, 'shop.effect', 'failure', 1, clock_timestamp())",
        [asked],
    )
    story.until("outbox_relay_retries_scheduled_total")
    story.until("outbox_reconcile_findings_total", finding="republished")


def the_database_hesitates(story: Story) -> None:
    with psycopg.connect(story.database) as other:
        other.execute("LOCK TABLE outbox_audit IN ACCESS EXCLUSIVE MODE")
        story.until("outbox_stats_query_failures_total")
        story.until("outbox_oldest_transaction_age_seconds")
    story.until("outbox_purge_rows_total", table="outbox_relay")
    story.until("outbox_table_dead_rows_ratio", table="outbox_leader")
    story.client.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name = 'outbox lease' AND datname = current_database()"
    )
    story.until("outbox_relay_reconnects_total", target="database")


def the_broker_is_away(story: Story) -> None:
    story.valkey.kill()
    story.add(5)
    story.until("outbox_relay_publish_failures_total", error_class="broker_unreachable")
    story.until("outbox_pending_messages", queue="celery", state="ready")
    story.valkey.start()
    story.until("outbox_relay_reconnects_total", target="broker")

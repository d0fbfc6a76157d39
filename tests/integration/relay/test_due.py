"""Plans leave at their time by the database clock; what has ended, or ends before it leaves, is not published."""

import uuid
from datetime import UTC, datetime, timedelta
from functools import partial

import psycopg
import pytest

from relay.embedded import wait_until
from relay.events import MessagesExpired
from tests.support.leading import Leading, Make, Outbox

PAST = datetime(2020, 1, 1, tzinfo=UTC)
LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('a.b ' || %s, 0))"


def let_it_be_due(outbox: Outbox) -> None:
    outbox.client.execute("UPDATE outbox_due SET due_at = clock_timestamp() WHERE blocked_by IS NULL")


def broker_has(relay: Leading, count: int) -> bool:
    return len(relay.at_broker()) == count


def test_a_scheduled_message_leaves_at_its_time(relay: Leading, outbox: Outbox) -> None:
    late, soon = outbox.add(held=True), outbox.add(held=True)
    outbox.plan(late, "1 hour", "scheduled")
    outbox.plan(soon, "0.5 seconds", "scheduled")
    with relay.running():
        wait_until(lambda: relay.at_broker() == [soon], 10, "the first one")
        left = outbox.one("SELECT clock_timestamp()")
    assert outbox.plans() == {late: None}
    created = outbox.one(f"SELECT created_at FROM outbox_message WHERE id = '{soon}'")  # noqa: S608
    assert left - created >= timedelta(seconds=0.4), "not before its time"


def test_a_plan_that_commits_after_its_time_is_found(relay: Leading, outbox: Outbox, database: str) -> None:
    """Later ones have left meanwhile; whoever remembers only where he was never sees it."""
    late = str(uuid.uuid4())
    with psycopg.connect(database) as writer:
        writer.execute("INSERT INTO outbox_message (id, task, held) VALUES (%s, 'a.b', true)", [late])
        writer.execute("INSERT INTO outbox_due (message_id, due_at, reason) VALUES (%s, now(), 'scheduled')", [late])
        with relay.running():
            for number in (1, 2, 3):
                outbox.plan(outbox.add(held=True), "0", "scheduled")
                wait_until(partial(broker_has, relay, number), 10, "a later one")
            writer.commit()
            wait_until(lambda: late in relay.at_broker(), 5, "the late one")


def test_a_plan_for_a_paused_queue_stays_blocked(relay: Leading, outbox: Outbox) -> None:
    outbox.pause("slow")
    message = outbox.add("slow", held=True)
    outbox.plan(message, "0", "scheduled")
    assert relay.drain() == []
    assert outbox.plans() == {message: "pause"}
    outbox.resume("slow")
    assert relay.drain() == [message]
    assert outbox.plans() == {}


def test_a_copy_for_a_paused_queue_keeps_its_number(relay: Leading, outbox: Outbox) -> None:
    outbox.register()
    message = outbox.add("slow", key="k")
    assert relay.drain() == [message]
    outbox.pause("slow")
    outbox.plan(message, "0", "retry", publication=3)
    assert relay.drain() == []
    behind = outbox.add("quick", key="k")
    assert relay.drain() == [behind], "a copy of what was published once does not hold up its key"
    outbox.resume("slow")
    assert relay.drain() == [message]
    assert [copy["headers"]["outbox"]["publication"] for copy in relay.copies("slow")] == [0, 3]


def test_an_expired_message_ends_with_a_receipt(relay: Leading, outbox: Outbox) -> None:
    expired = outbox.add(expires_at=PAST)
    planned = outbox.add(expires_at=PAST, held=True)
    outbox.plan(planned, "0", "scheduled")
    fine = outbox.add(expires_at=datetime.now(UTC) + timedelta(hours=1))
    assert relay.drain() == [fine]
    assert outbox.receipts() == {expired: "expired", planned: "expired"}
    assert outbox.plans() == {}
    assert MessagesExpired(1) in relay.events
    (copy,) = relay.copies()
    assert copy["headers"]["expires"] is not None, "a plain task: Celery itself must honour it"


def test_celery_is_not_asked_to_judge_what_a_consumer_judges(relay: Leading, outbox: Outbox) -> None:
    outbox.register()
    outbox.add(expires_at=datetime.now(UTC) + timedelta(hours=1))
    relay.drain()
    assert relay.copies()[0]["headers"]["expires"] is None


@pytest.mark.parametrize("planned", [False, True], ids=["log", "plans"])
def test_whoever_runs_a_message_decides_whether_it_expired(
    relay: Leading, outbox: Outbox, database: str, planned: bool
) -> None:
    """No receipt while he holds it, and no forgetting either: he may die."""
    outbox.register()
    message = outbox.add(expires_at=PAST, held=planned)
    if planned:
        outbox.plan(message, "0", "redelivery", publication=1)
    with psycopg.connect(database) as worker:
        worker.execute(LOCK, [message])
        assert relay.drain() == []
        assert outbox.receipts() == {}
        assert outbox.plans() == {message: None}
        assert outbox.one("SELECT due_at > clock_timestamp() FROM outbox_due"), "no spinning meanwhile"
    let_it_be_due(outbox)
    assert relay.drain() == []
    assert outbox.receipts() == {message: "expired"}
    assert outbox.plans() == {}


def test_more_expire_at_once_than_a_commit_may_lock(make: Make, outbox: Outbox) -> None:
    relay = make(batch_size=10_000)
    insert = """INSERT INTO outbox_message (id, task, expires_at)
        SELECT gen_random_uuid(), 'a.b', '2020-01-01' FROM generate_series(1, 10000)"""
    outbox.client.execute(insert)
    fine = outbox.add()
    assert relay.drain() == [fine]
    for _ in range(3):
        let_it_be_due(outbox)
        assert relay.drain() == []
    assert outbox.one("SELECT count(*) FROM inbox_receipt WHERE status = 'expired'") >= 4000
    assert outbox.one("SELECT count(*) FROM inbox_receipt") + len(outbox.plans()) == 10_000


@pytest.mark.parametrize("planned", [False, True], ids=["log", "plans"])
def test_a_cancelled_message_is_not_published(relay: Leading, outbox: Outbox, planned: bool) -> None:
    message = outbox.add(held=planned)
    if planned:
        outbox.plan(message, "0", "scheduled")
    outbox.register()
    outbox.client.execute("SELECT outbox_cancel(%s)", [message])
    assert outbox.receipts() == {message: "cancelled"}
    assert relay.drain() == []
    assert outbox.plans() == {}


def test_one_cancelled_while_it_is_parked_is_not_published(relay: Leading, outbox: Outbox) -> None:
    outbox.register()
    outbox.pause("slow")
    ids = [outbox.add("slow", key="k") for _ in range(3)]
    relay.drain()
    outbox.client.execute("SELECT outbox_cancel(%s)", [ids[0]])
    outbox.resume("slow")
    assert relay.drain() == ids[1:]


def test_a_resumed_window_publishes_nothing_that_has_a_receipt(make: Make, outbox: Outbox) -> None:
    """The last leader published these and died before it could say so; since then a consumer has applied them."""
    relay = make()
    ids = outbox.add_many(20)

    def die(_: object) -> None:
        raise KeyboardInterrupt

    relay.publisher.before = die
    with pytest.raises(KeyboardInterrupt):
        relay.drain()
    for each in ids[:10]:
        outbox.receipt(each, "applied")
    assert make().drain() == ids[10:]


def test_what_a_consumer_asks_for_again_leaves_at_its_time(relay: Leading, outbox: Outbox) -> None:
    outbox.register()
    message = outbox.add()
    relay.drain()
    outbox.client.execute(
        "INSERT INTO inbox_retry VALUES (%s, 'a.b', 'failure', 2, now() + interval '1 hour')", [message]
    )
    assert relay.drain() == []
    outbox.client.execute("UPDATE inbox_retry SET due_at = now()")
    assert relay.drain() == [message]
    assert [copy["headers"]["outbox"]["attempt"] for copy in relay.copies()] == [0, 2]
    assert outbox.one("SELECT count(*) FROM inbox_retry") == 0
    assert relay.drain() == [], "the next copy waits for its time"
    assert outbox.plans() == {message: None}, "until there is a receipt"

"""What cannot go now is parked, the position moves on, and it leaves in order once its queue is free."""

import time

import pytest

from relay.embedded import wait_until
from relay.events import (
    MessagesDead,
    MessagesExpired,
    MessagesParked,
    MessagesReleased,
    QueueClosed,
    QueueOpened,
    WindowOpened,
)
from relay.lease import LeaseLost
from tests.support.leading import Leading, Make, Outbox


def wait_for(relay: Leading, ids: list[str], queue: str = "celery") -> None:
    wait_until(lambda: set(ids) <= set(relay.at_broker(queue)), 15, f"{len(ids)} messages in {queue}")


def test_a_paused_queue_is_parked_and_the_others_flow(relay: Leading, outbox: Outbox) -> None:
    outbox.pause("slow")
    slow = [outbox.add("slow") for _ in range(5)]
    quick = [outbox.add("quick") for _ in range(5)]
    assert relay.drain() == quick
    assert outbox.plans() == dict.fromkeys(slow, "pause")
    assert MessagesParked("slow", "pause", 5) in relay.events
    assert outbox.one("SELECT count(*) FROM outbox_due WHERE why = 'a test' AND due_at = 'infinity'") == 5
    late = outbox.add("slow")
    relay.drain()
    outbox.resume("slow")
    assert relay.drain() == [*slow, late], "in the order of the log"
    assert relay.at_broker("slow") == [*slow, late]
    assert outbox.plans() == {}


def test_a_pause_of_one_term_begins_and_ends_within_it(relay: Leading, outbox: Outbox) -> None:
    with relay.running():
        first = outbox.add("slow")
        wait_for(relay, [first], "slow")
        outbox.pause("slow")
        wait_until(lambda: outbox.add("slow") in outbox.plans() or "pause" in outbox.plans().values(), 10, "a park")
        waiting = [outbox.add("slow") for _ in range(3)]
        other = outbox.add("quick")
        wait_for(relay, [other], "quick")
        outbox.resume("slow")
        wait_for(relay, waiting, "slow")
        wait_until(lambda: not outbox.plans(), 10, "no plan left")
    assert any(isinstance(event, MessagesReleased) for event in relay.events)


def test_a_pause_ends_at_its_time(relay: Leading, outbox: Outbox) -> None:
    outbox.pause("slow", seconds=0.8)
    message = outbox.add("slow")
    assert relay.drain() == []
    with relay.running():
        wait_for(relay, [message], "slow")
    assert outbox.one("SELECT paused_until <= clock_timestamp() FROM outbox_pause")


def test_everything_paused_stops_the_log_and_the_plans(relay: Leading, outbox: Outbox) -> None:
    outbox.pause("*")
    planned = outbox.add(held=True)
    outbox.plan(planned, "0", "scheduled")
    plain = outbox.add()
    before = outbox.one("SELECT window_no FROM outbox_leader")
    assert relay.drain() == [], "--once does not wait for the end of a pause"
    assert outbox.one("SELECT window_no FROM outbox_leader") == before
    assert outbox.plans() == {planned: None}, "nothing is parked for it"
    with relay.running():
        outbox.resume("*")
        wait_for(relay, [planned, plain])


def test_everything_paused_in_the_middle_of_a_window(make: Make, outbox: Outbox) -> None:
    """It stops at the next batch, not at the end of the window, and goes on from there; nothing comes twice."""
    relay = make(batch_size=10)
    ids = outbox.add_many(200)

    def pause(_: object) -> None:
        relay.publisher.before = lambda _: None
        outbox.pause("*")
        time.sleep(0.6)  # a slow broker: by then it is time to look for pauses again

    relay.publisher.before = pause
    with relay.running():
        wait_until(lambda: relay.at_broker() == ids[:10], 10, "the first batch")
        outbox.resume("*")
        wait_for(relay, ids)
    assert relay.at_broker() == ids
    assert WindowOpened(1, resumed=True) in relay.events, "it was left and taken up again"


def test_a_queue_paused_in_the_middle_of_a_window(make: Make, outbox: Outbox) -> None:
    relay = make(batch_size=10)
    ids = outbox.add_many(200)

    def pause(_: object) -> None:
        relay.publisher.before = lambda _: None
        outbox.pause("celery")
        time.sleep(0.6)

    relay.publisher.before = pause
    assert relay.drain() == ids[:10]
    outbox.resume("celery")
    assert relay.drain() == ids[10:]


def test_a_plan_does_not_wait_for_the_end_of_a_window(make: Make, outbox: Outbox) -> None:
    relay = make(batch_size=10)
    ids = outbox.add_many(200)

    def plan(_: object) -> None:
        relay.publisher.before = lambda _: None
        outbox.plan(outbox.add("timed", held=True), "0", "scheduled")
        time.sleep(0.3)

    relay.publisher.before = plan
    found = relay.drain()
    assert found.index(relay.at_broker("timed")[0]) == 10
    assert [each for each in found if each in ids] == ids


def test_a_window_left_open_under_a_pause_is_resumed_after_it(make: Make, outbox: Outbox) -> None:
    relay = make(batch_size=10)
    ids = outbox.add_many(35)
    calls = iter(range(100))

    def break_off(_: object) -> None:
        if next(calls) == 2:
            raise KeyboardInterrupt

    relay.publisher.before = break_off
    with pytest.raises(KeyboardInterrupt):
        relay.drain()
    relay.publisher.before = lambda _: None
    outbox.pause("*")
    assert relay.drain() == []
    outbox.resume("*")
    assert relay.drain() == ids[20:]
    assert relay.at_broker() == ids


def test_a_queue_of_another_type_parks_its_own_messages_only(relay: Leading, outbox: Outbox) -> None:
    relay.broker.set("broken", "not a list")
    with relay.running():
        broken = [outbox.add("broken") for _ in range(5)]
        fine = [outbox.add("fine") for _ in range(5)]
        wait_for(relay, fine, "fine")
        wait_until(lambda: list(outbox.plans().values()) == ["queue"] * 5, 10, "all parked")
        assert any(isinstance(event, QueueClosed) and event.queue == "broken" for event in relay.events)
        relay.broker.delete("broken")
        wait_for(relay, broken, "broken")
        wait_until(lambda: not outbox.plans(), 10, "no plan left")
    assert relay.at_broker("broken") == broken, "in the order of the log"
    assert QueueOpened("broken") in relay.events


def test_a_new_leader_learns_from_the_database_what_is_closed(relay: Leading, outbox: Outbox) -> None:
    relay.broker.set("broken", "not a list")
    first = [outbox.add("broken") for _ in range(3)]
    assert relay.drain() == []
    asked: list[int] = []
    relay.publisher.before = lambda copies: asked.append(len(copies))
    second = [outbox.add("broken") for _ in range(20)]
    assert relay.drain() == []
    assert outbox.plans() == dict.fromkeys(first + second, "queue")
    relay.broker.delete("broken")
    assert relay.drain() == first + second, "all of them, behind one probe"


@pytest.mark.parametrize("status", ["cancelled", "expired"])
def test_a_probe_that_needs_no_publication_does_not_keep_its_queue_closed(
    relay: Leading, outbox: Outbox, status: str
) -> None:
    relay.broker.set("broken", "not a list")
    ids = [outbox.add("broken") for _ in range(10)]
    assert relay.drain() == []
    for each in ids[:6]:
        outbox.receipt(each, status)
    relay.broker.delete("broken")
    with relay.running():
        wait_until(lambda: not outbox.plans(), 20, "no plan left")
    assert relay.at_broker("broken") == ids[6:]


def test_a_large_pause_is_released_in_bounded_steps(make: Make, outbox: Outbox) -> None:
    relay = make(batch_size=2000)
    outbox.pause("slow")
    ids = outbox.add_many(20_000, "slow")
    assert relay.drain() == []
    assert outbox.one("SELECT count(*) FROM outbox_due WHERE blocked_by = 'pause'") == 20_000
    outbox.resume("slow")
    assert relay.drain() == ids
    released = [event.messages for event in relay.events if isinstance(event, MessagesReleased)]
    assert sum(released) == 20_000
    assert max(released) <= 5_000
    assert outbox.plans() == {}


ROWS = """
    SELECT array_agg(x ORDER BY x) FROM (
        SELECT 'due', xmin::text, ctid::text, d::text FROM outbox_due d UNION ALL
        SELECT 'leader', xmin::text, ctid::text, p::text FROM outbox_leader p UNION ALL
        SELECT 'receipt', xmin::text, ctid::text, r::text FROM inbox_receipt r) x
"""


@pytest.mark.parametrize("planned", [False, True], ids=["log", "plans"])
def test_a_zombie_parks_releases_and_ends_nothing(make: Make, outbox: Outbox, planned: bool) -> None:
    """It loses the lease while the broker has the batch: of what it has decided nothing may be written."""
    zombie = make(tasks="a.b")
    if planned:
        outbox.pause("celery")
    outbox.add("celery", key="k", task="refused.task")
    outbox.add("celery", key="k")
    outbox.add("celery", expires_at="2020-01-01")
    outbox.pause("slow")
    outbox.add("slow")
    if planned:
        zombie.drain()
        outbox.resume("celery")
        zombie.events.clear()
    frozen: list[object] = []

    def lose(_: object) -> None:
        if not frozen:
            make()
            frozen.append(outbox.one(ROWS))

    zombie.publisher.before = lose
    with pytest.raises(LeaseLost):
        zombie.drain()
    assert frozen == [outbox.one(ROWS)]
    assert not any(isinstance(event, MessagesDead | MessagesExpired) for event in zombie.events)

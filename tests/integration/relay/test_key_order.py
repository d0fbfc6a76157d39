"""Messages of one ordering key are published in commit order, whatever is paused, closed or dead in between."""

import random

import pytest

from relay.embedded import wait_until
from tests.support.leading import Leading, Make, Outbox


def test_nobody_overtakes_a_parked_one_of_his_key(make: Make, outbox: Outbox) -> None:
    relay = make()
    outbox.pause("slow")
    first = [outbox.add("slow", key="k"), outbox.add("quick", key="k"), outbox.add("slow", key="k")]
    other = outbox.add("quick", key="other")
    assert relay.drain() == [other]
    assert outbox.plans() == dict(zip(first, ["pause", "key", "pause"], strict=True))
    late = outbox.add("quick", key="k")
    assert relay.drain() == []
    outbox.resume("slow")
    assert relay.drain() == [*first, late]
    assert relay.drain() == []
    assert outbox.plans() == {}


def test_queues_that_are_freed_one_after_the_other_do_not_turn_the_order(make: Make, outbox: Outbox) -> None:
    """The later message's queue is freed first, by a statement of its own: it is due earlier, and yet it waits."""
    relay = make()
    outbox.pause("a")
    outbox.pause("z")
    ids = [outbox.add("z", key="k"), outbox.add("a", key="k"), outbox.add("z", key="k"), outbox.add("a", key="k")]
    assert relay.drain() == []
    outbox.resume("a")
    outbox.resume("z")
    assert relay.drain() == ids


def test_the_first_of_a_key_is_not_held_up_by_one_in_the_middle(make: Make, outbox: Outbox) -> None:
    relay = make()
    outbox.pause("a")
    outbox.pause("z")
    ids = [outbox.add("a", key="k"), outbox.add("z", key="k"), outbox.add("a", key="k")]
    assert relay.drain() == []
    outbox.resume("a")
    assert relay.drain() == ids[:1]
    outbox.resume("z")
    assert relay.drain() == ids[1:]


def test_many_messages_behind_one(make: Make, outbox: Outbox) -> None:
    """More than are released at once."""
    relay = make(batch_size=1000)
    outbox.pause("slow")
    first = outbox.add("slow", key="k")
    ids = outbox.add_many(12_000, "quick", key="k")
    assert relay.drain() == []
    outbox.resume("slow")
    assert relay.drain() == [first, *ids]


@pytest.mark.parametrize("keeps_order", [True, False])
@pytest.mark.parametrize("planned", [False, True], ids=["log", "plans"])
def test_a_dead_message_blocks_its_key_until_somebody_decides(
    make: Make, outbox: Outbox, keeps_order: bool, planned: bool
) -> None:
    relay = make(tasks="a.b", keeps_order=keeps_order)
    if planned:
        outbox.pause("q")
    before = outbox.add("q", key="k")
    dead = outbox.add("q", key="k", task="refused.task")
    behind = [outbox.add("q", key="k"), outbox.add("q", key="k")]
    free = outbox.add("q", key="other")
    if planned:
        assert relay.drain() == []
        outbox.resume("q")
    assert set(relay.drain()) == {before, free}
    assert outbox.receipts() == {dead: "dead"}
    assert outbox.one("SELECT count(*) FROM inbox_dead_letter WHERE error LIKE '%OUTBOX_TASKS%'") == 1
    assert outbox.plans() == {dead: "dead", behind[0]: "key", behind[1]: "key"}
    assert relay.drain() == [], "nobody has decided"
    assert outbox.one("SELECT count(*) FROM inbox_dead_letter") == 1, "written once"
    outbox.client.execute("UPDATE inbox_receipt SET status = 'discarded'")
    assert relay.drain() == behind
    assert outbox.plans() == {}


def test_a_dead_message_that_is_retried_goes_first(make: Make, outbox: Outbox) -> None:
    relay = make(tasks="a.b")
    dead = outbox.add("q", key="k", task="refused.task")
    behind = outbox.add("q", key="k")
    assert relay.drain() == []
    outbox.client.execute("DELETE FROM inbox_receipt")
    outbox.client.execute("DELETE FROM inbox_dead_letter")
    outbox.client.execute("INSERT INTO inbox_retry VALUES (%s, 'refused.task', 'failure', 0, now())", [dead])
    allowing = make()
    assert allowing.drain() == [dead, behind]
    assert outbox.plans() == {}


@pytest.mark.parametrize("keeps_order", [True, False])
def test_with_the_policy_skip_a_dead_message_blocks_nobody(make: Make, outbox: Outbox, keeps_order: bool) -> None:
    relay = make(tasks="a.b", ordering_on_dead="skip", keeps_order=keeps_order)
    dead = outbox.add("q", key="k", task="refused.task")
    behind = [outbox.add("q", key="k"), outbox.add("r", key="k")]
    assert relay.drain() == behind
    assert outbox.receipts() == {dead: "dead"}
    assert outbox.plans() == {}


def test_a_key_left_blocked_by_a_leader_that_died_is_freed(make: Make, outbox: Outbox) -> None:
    """It had published the first one and settled it, and not yet released those behind."""
    relay = make()
    outbox.pause("slow")
    first = outbox.add("slow", key="k")
    behind = [outbox.add("quick", key="k") for _ in range(3)]
    relay.drain()
    outbox.client.execute("DELETE FROM outbox_due WHERE message_id = %s", [first])
    outbox.resume("slow")
    assert relay.drain() == behind


QUEUES = ("one", "two", "three")


class Weather:
    """Pauses queues, breaks them at the broker, and mends both."""

    def __init__(self, dice: random.Random, relay: Leading, outbox: Outbox) -> None:
        self._dice, self._broker, self._outbox = dice, relay.broker, outbox
        self._paused: set[str] = set()

    def change(self) -> None:
        queue = self._dice.choice(QUEUES)
        match self._dice.randrange(5):
            case 0 if queue not in self._paused:
                self._outbox.pause(queue)
                self._paused.add(queue)
            case 1 | 2 if queue in self._paused:
                self._outbox.resume(queue)
                self._paused.remove(queue)
            case 3:
                self._broker.set(queue, "not a list")
            case _:
                self._broker.delete(queue)

    def clear_up(self) -> None:
        self._outbox.client.execute("DELETE FROM outbox_pause")
        self._broker.delete(*QUEUES)


@pytest.mark.parametrize("keeps_order", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_random_pauses_and_closed_queues_never_turn_the_order(
    make: Make, outbox: Outbox, keeps_order: bool, seed: int
) -> None:
    dice = random.Random(f"{seed} {keeps_order}")
    relay = make(batch_size=dice.choice([3, 10, 100]), keeps_order=keeps_order)
    weather = Weather(dice, relay, outbox)
    written: dict[str, list[str]] = {"k": [], "l": []}
    for _ in range(25):
        for _ in range(dice.randrange(6)):
            key = dice.choice(list(written))
            written[key].append(outbox.add(dice.choice(QUEUES), key=key))
        weather.change()
        if dice.random() < 0.7:
            relay.drain()
    weather.clear_up()
    with relay.running():
        wait_until(lambda: len(relay.published()) >= sum(map(len, written.values())), 15, "all of them")
    published = relay.published()
    for ids in written.values():
        assert [each for each in published if each in set(ids)] == ids, "each once, in order"

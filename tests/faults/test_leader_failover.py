"""Leaders that are killed, asked to leave, frozen, cut off or starved, seen from the broker and from every row."""

import json
import signal
import statistics
import time
from collections.abc import Iterator

import pytest

from relay.embedded import wait_until
from tests.support import ledger
from tests.support.processes import wait_for_exit, wait_for_line
from tests.support.relays import Scene
from tests.support.writers import Writer


@pytest.fixture
def writer(database: str) -> Iterator[Writer]:
    ledger.create(database)
    made = Writer(database)
    yield made
    made.close()


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def shown(what: str, values: list[float]) -> str:
    return f"{what} ms: p50 {statistics.median(values):.0f} p99 {percentile(values, 0.99):.0f} max {max(values):.0f}"


def kill_leaders(scene: Scene, writer: Writer, rounds: int, ttl: str) -> list[float]:
    """How long after each kill -9 the first message of the next leader was at the broker, in ms."""
    for number in range(3):
        scene.start(f"relay-{number}", lease_ttl=ttl)
    scene.wait_for_standbys(3)
    took, epochs = [], [scene.epoch()]
    with writer.writing():
        for number in range(rounds):
            leader = scene.wait_for_leader()
            wait_until(lambda: scene.newest_epoch_at_broker() == scene.epoch(), 15, "the leader to publish")
            before = scene.epoch()
            started = time.monotonic()
            scene.relays[leader].kill()
            wait_until(lambda epoch=before: scene.newest_epoch_at_broker() > epoch, 20, "the next one")  # type: ignore[misc]
            took.append((time.monotonic() - started) * 1000)
            epochs.append(scene.epoch())
            scene.start(f"relay-{number + 3}", lease_ttl=ttl)
            scene.wait_for_standbys(3)
    assert epochs == sorted(set(epochs)), "the epoch rises at every change of leader"
    scene.wait_until_nothing_is_lost()
    return took


def test_a_killed_leader_is_replaced_long_before_its_lease_runs_out(scene: Scene, writer: Writer) -> None:
    assert max(kill_leaders(scene, writer, 3, ttl="30")) < 15_000


@pytest.mark.chaos
@pytest.mark.timeout(1200)
def test_failover_figures_of_a_hundred_kills(scene: Scene, writer: Writer) -> None:
    took = kill_leaders(scene, writer, 100, ttl="3")
    print(shown("failover", took))  # noqa: T201
    assert statistics.median(took) < 400
    assert percentile(took, 0.99) < 1000


def hand_over(scene: Scene, writer: Writer, rounds: int) -> list[float]:
    """How long after each SIGTERM the first message of the next leader was at the broker, in ms."""
    scene.start("relay-0", lease_ttl="30")
    took = []
    with writer.writing():
        for number in range(rounds):
            leader = scene.wait_for_leader()
            scene.start(f"relay-{number + 1}", lease_ttl="30")
            scene.wait_for_standbys(2)
            wait_until(lambda: scene.newest_epoch_at_broker() == scene.epoch(), 15, "the leader to publish")
            before = scene.epoch()
            started = time.monotonic()
            scene.relays[leader].send(signal.SIGTERM)
            wait_until(lambda epoch=before: scene.newest_epoch_at_broker() > epoch, 15, "the next one")  # type: ignore[misc]
            took.append((time.monotonic() - started) * 1000)
            assert wait_for_exit(scene.relays[leader]) == 0
    scene.wait_until_nothing_is_lost()
    copies = [json.loads(each)["headers"]["id"] for each in scene.broker.lrange("celery", 0, -1)]
    assert len(copies) == len(set(copies)), "a hand-over repeats no delivery"
    return took


def test_sigterm_hands_over_at_once_and_repeats_nothing(scene: Scene, writer: Writer) -> None:
    assert max(hand_over(scene, writer, 3)) < 10_000


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_hand_over_figures_of_fifty_terms(scene: Scene, writer: Writer) -> None:
    took = hand_over(scene, writer, 50)
    print(shown("hand-over", took))  # noqa: T201
    assert percentile(took, 0.98) < 300


def freeze_leaders(scene: Scene, writer: Writer, rounds: int, ttl: float) -> None:
    for number in range(2):
        scene.start(f"relay-{number}", lease_ttl=str(ttl))
    scene.wait_for_standbys(2)
    for _ in range(rounds):
        leader = scene.wait_for_leader()
        zombie = scene.relays[leader]
        with writer.writing():
            wait_until(lambda: scene.newest_epoch_at_broker() == scene.epoch(), 15, "the leader to publish")
            frozen = time.monotonic()
            zombie.freeze()
            scene.wait_for_leader(other_than=leader)
            assert time.monotonic() - frozen < ttl + 1, "a frozen leader is replaced after its TTL"
        scene.wait_until_nothing_is_lost()
        wait_until(lambda began=frozen: time.monotonic() - began > 3 * ttl, 4 * ttl, "three TTLs")  # type: ignore[misc]
        # The successor too must be silent, or its renewals would hide the zombie's writes: both wake to a still scene.
        successor = scene.relays[scene.wait_for_leader()]
        successor.freeze()
        before, seen = scene.rows(), len(zombie.output())
        zombie.thaw()
        wait_for_line(zombie, "leadership_lost|database_unavailable", since=seen)
        after = scene.rows()
        successor.thaw()
        assert after == before, "a zombie changes no row"
        assert zombie.alive, "losing a lease is not an error"


def test_a_frozen_leader_is_replaced_after_its_ttl_and_changes_no_row(scene: Scene, writer: Writer) -> None:
    freeze_leaders(scene, writer, 1, ttl=2.0)


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_thirty_frozen_leaders_change_no_row(scene: Scene, writer: Writer) -> None:
    freeze_leaders(scene, writer, 30, ttl=3.0)

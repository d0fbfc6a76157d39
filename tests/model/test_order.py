"""Messages of a key are published and applied in commit order; and why each protection is there."""

from __future__ import annotations

import pytest

from tests.model.catalog import ORDER
from tests.model.explorer import Exploration, explore


@pytest.fixture(scope="module")
def explored() -> list[Exploration]:
    return [explore(model) for model in ORDER.explored.values()]


@pytest.mark.parametrize("guarantee", ["published_in_order", "order", "dead_blocks", "no_missed_pull", "no_loss"])
def test_holds_in_every_state(explored: list[Exploration], guarantee: str) -> None:
    for found in explored:
        assert guarantee not in found.violations


@pytest.mark.parametrize(
    "landmark",
    [
        "delivered before its predecessor",
        "waits for the one before the closed one",
        "blocked by a dead message",
        "all applied",
    ],
)
def test_interesting_state_is_reached(explored: list[Exploration], landmark: str) -> None:
    assert any(landmark in found.reached for found in explored)


@pytest.mark.parametrize(
    "action",
    [
        "relay parks m2 behind the parked one",
        "m2 leaves the park and is published",
        "W2 takes m1: duplicate or in progress",
        "relay publishes m2 again, asked for",
        "relay publishes m2 again, after the timeout",
        "reconcile publishes m3 again",
        "the receipt of m1 is forgotten",
        "operator retries m1",
    ],
)
def test_interesting_action_happens(explored: list[Exploration], action: str) -> None:
    assert any(action in found.labels for found in explored)


def test_removing_key_prev_violates_order() -> None:
    assert ORDER.trace_without("key_prev", "order")[-2:] == ("W2 commits m2", "W1 commits m1")


def test_removing_applied_only_violates_order() -> None:
    trace = ORDER.trace_without("applied_only", "order")
    assert trace[-4:] == ("m2 is cancelled", "W2 runs m3", "W2 commits m3", "W1 commits m1")


def test_removing_park_followers_violates_published_in_order() -> None:
    trace = ORDER.trace_without("park_followers", "published_in_order")
    assert trace[-2:] == ("relay publishes m2", "m1 leaves the park and is published")


def test_removing_one_in_flight_violates_published_in_order() -> None:
    trace = ORDER.trace_without("one_in_flight", "published_in_order")
    assert trace[0] == "the queue refuses m1, m2 of the same batch gets through"


def test_removing_early_has_due_time_violates_no_loss() -> None:
    trace = ORDER.trace_without("early_has_due_time", "no_loss")
    assert trace[-2:] == ("W1 commits m1", "W1 dies, its copy of m1 comes back")


def test_removing_pull_after_commit_violates_no_missed_pull() -> None:
    trace = ORDER.trace_without("pull_after_commit", "no_missed_pull")
    assert trace.index("W1 pulls forward who waits for m1") < trace.index("W2 asks for m2 after m1")
    assert trace[-2:] == ("W2 looks once more", "W1 commits m1")


def test_removing_recheck_after_early_violates_no_missed_pull() -> None:
    trace = ORDER.trace_without("recheck_after_early", "no_missed_pull")
    assert trace[-2:] == ("W1 pulls forward who waits for m1", "W2 asks for m2 after m1")


def test_removing_resolve_predecessor_violates_no_loss() -> None:
    trace = ORDER.trace_without("resolve_predecessor", "no_loss")
    assert trace[-2:] == ("retention deletes m1", "the receipt of m1 is forgotten")


def test_removing_prune_in_turn_violates_order() -> None:
    trace = ORDER.trace_without("prune_in_turn", "order")
    assert trace.index("m2 is cancelled") < trace.index("retention deletes m2") < trace.index("W2 runs m3")


def test_removing_dead_is_kept_violates_dead_blocks() -> None:
    trace = ORDER.trace_without("dead_is_kept", "dead_blocks")
    assert trace[-3:] == ("retention deletes m1", "relay publishes m2", "W1 runs m2")


def test_removing_skipped_is_final_violates_order() -> None:
    trace = ORDER.trace_without("skipped_is_final", "order")
    assert trace.index("W1 commits m2") < trace.index("operator retries m1")

"""One message, one terminal outcome, at most one effect; and why each protection is there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.model.catalog import RECEIPTS
from tests.model.explorer import Exploration, explore
from tests.model.receipts import Bounds, Protections, Receipts


@pytest.fixture(scope="module")
def explored() -> list[Exploration]:
    return [explore(model) for model in RECEIPTS.explored.values()]


@pytest.mark.parametrize(
    "guarantee",
    [
        "exactly_once_effects",
        "one_terminal_outcome",
        "effect_iff_applied",
        "one_run_at_a_time",
        "no_needless_run",
        "no_loss",
    ],
)
def test_holds_in_every_state(explored: list[Exploration], guarantee: str) -> None:
    for found in explored:
        assert guarantee not in found.violations


@pytest.mark.parametrize(
    "landmark",
    [
        "two deliveries at once",
        "committed, not yet acked, and a copy left",
        "in progress elsewhere",
        "closer holds the lock while a worker waits for it",
        "applied",
        "dead",
        "cancelled",
        "expired",
        "discarded",
    ],
)
def test_interesting_state_is_reached(explored: list[Exploration], landmark: str) -> None:
    assert any(landmark in found.reached for found in explored)


@pytest.mark.parametrize(
    "action",
    [
        "W2 sees a duplicate",
        "W1 dies, its copy comes back",
        "W2 dies, its copy with it",
        "'cancelled' finds the message running",
        "operator retries the dead letter",
        "relay publishes what inbox_retry asks for",
    ],
)
def test_interesting_action_happens(explored: list[Exploration], action: str) -> None:
    assert any(action in found.labels for found in explored)


@pytest.mark.parametrize("removed", ["look_after_lock", "try_lock"])
def test_key_alone_keeps_one_outcome_and_one_effect(removed: str) -> None:
    found = explore(Receipts(Bounds(2, 1, 1, 1, 1, 0), replace(Protections(), **{removed: False})))
    kept = {"exactly_once_effects", "one_terminal_outcome", "effect_iff_applied", "no_loss"}
    assert not kept & set(found.violations)


def test_lock_with_a_later_look_keeps_one_outcome_even_without_the_key() -> None:
    found = explore(Receipts(Bounds(2, 1, 1, 1, 1, 0), Protections(unique_receipt=False)))
    assert not found.violations


def test_removing_unique_receipt_violates_one_terminal_outcome() -> None:
    trace = RECEIPTS.trace_without("unique_receipt", "one_terminal_outcome")
    assert trace.count("W1 begins its statement: the snapshot sees no receipt") == 1
    assert trace[-1] == "W1 commits effect and receipt"


def test_removing_unique_receipt_violates_exactly_once_effects() -> None:
    trace = RECEIPTS.trace_without("unique_receipt", "exactly_once_effects")
    assert trace[-3:] == (
        "W1 commits effect and receipt",
        "W2 gets the lock and runs the handler",
        "W2 commits effect and receipt",
    )


def test_removing_receipt_in_effect_transaction_violates_exactly_once_effects() -> None:
    trace = RECEIPTS.trace_without("receipt_in_effect_transaction", "exactly_once_effects")
    assert trace.count("W1 commits the effect alone") == 2
    assert "W1 dies, its copy comes back" in trace


def test_removing_receipt_in_effect_transaction_violates_effect_iff_applied() -> None:
    trace = RECEIPTS.trace_without("receipt_in_effect_transaction", "effect_iff_applied")
    assert trace[-1] == "W1 commits the effect alone"


def test_removing_try_lock_violates_one_run_at_a_time() -> None:
    trace = RECEIPTS.trace_without("try_lock", "one_run_at_a_time")
    assert trace[-1] == "W2 gets the lock and runs the handler"


def test_removing_look_after_lock_violates_no_needless_run() -> None:
    trace = RECEIPTS.trace_without("look_after_lock", "no_needless_run")
    assert trace[-3:] == (
        "W2 begins its statement: the snapshot sees no receipt",
        "W1 commits effect and receipt",
        "W2 gets the lock and runs the handler",
    )


def test_removing_ack_after_commit_violates_no_loss() -> None:
    assert RECEIPTS.trace_without("ack_after_commit", "no_loss")[-1] == "W1 dies, its copy with it"


def test_removing_check_before_ack_violates_no_loss() -> None:
    trace = RECEIPTS.trace_without("check_before_ack", "no_loss")
    assert trace[-2:] == ("W2 does not get the lock", "W1 dies, its copy with it")


def test_removing_dead_retry_atomic_violates_no_loss() -> None:
    trace = RECEIPTS.trace_without("dead_retry_atomic", "no_loss")
    assert trace[-1] == "operator retries the dead letter"

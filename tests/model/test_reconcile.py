"""A broker that forgets loses no work, and forgetting repeats none; and why each protection is there."""

from __future__ import annotations

import pytest

from tests.model.catalog import RECONCILE
from tests.model.explorer import Exploration, explore


@pytest.fixture(scope="module")
def explored() -> list[Exploration]:
    return [explore(model) for model in RECONCILE.explored.values()]


@pytest.mark.parametrize(
    "guarantee",
    ["no_loss", "nothing_forgotten", "exactly_once_effects", "dedup_horizon", "receipt_outlives_copies"],
)
def test_holds_in_every_state(explored: list[Exploration], guarantee: str) -> None:
    for found in explored:
        assert guarantee not in found.violations


@pytest.mark.parametrize(
    "landmark",
    [
        "amnesia after publish",
        "duplicate delivery",
        "receipt forgotten, old copy left",
        "receipt forgotten, zombie about to publish",
        "dead letter retried",
        "zombie holds an old version of inbox_retry",
    ],
)
def test_interesting_state_is_reached(explored: list[Exploration], landmark: str) -> None:
    assert any(landmark in found.reached for found in explored)


@pytest.mark.parametrize(
    "action",
    [
        "the broker forgets everything",
        "worker refuses a copy beyond the horizon",
        "relay reads the window, skips what is received",
        "the zombie wakes and finds a newer inbox_retry row and leaves it",
        "the zombie wakes and publishes a copy stamped 0",
        "the receipt is forgotten",
    ],
)
def test_interesting_action_happens(explored: list[Exploration], action: str) -> None:
    assert any(action in found.labels for found in explored)


def test_removing_sweep_violates_no_loss() -> None:
    trace = RECONCILE.trace_without("sweep", "no_loss")
    assert trace[-2:] == ("relay publishes a copy stamped 0", "the broker forgets everything")


def test_removing_sweep_atomic_violates_no_loss() -> None:
    trace = RECONCILE.trace_without("sweep_atomic", "no_loss")
    assert trace[-3] == "the sweep marks the window swept"
    assert trace[-1] == "the relay is killed, another leads"


def test_removing_due_kept_until_receipt_violates_no_loss() -> None:
    trace = RECONCILE.trace_without("due_kept_until_receipt", "no_loss")
    assert trace.count("relay publishes a copy stamped 0") == 2
    assert trace[-1] == "the broker forgets everything"


def test_removing_due_before_retry_deleted_violates_no_loss() -> None:
    trace = RECONCILE.trace_without("due_before_retry_deleted", "no_loss")
    assert trace[-2:] == ("relay deletes the inbox_retry row", "the relay is killed, another leads")


def test_removing_retry_deleted_by_version_violates_no_loss() -> None:
    trace = RECONCILE.trace_without("retry_deleted_by_version", "no_loss")
    assert trace[-2:] == (
        "operator retries the dead letter",
        "the zombie wakes and deletes the inbox_retry row it has copied",
    )


def test_removing_receipt_before_forgetting_violates_nothing_forgotten() -> None:
    trace = RECONCILE.trace_without("receipt_before_forgetting", "nothing_forgotten")
    assert trace[-1] == "retention deletes the message"


def test_removing_receipt_before_forgetting_violates_no_loss() -> None:
    trace = RECONCILE.trace_without("receipt_before_forgetting", "no_loss")
    assert {"retention finds the message old and finished", "the broker forgets everything"} <= set(trace)


def test_removing_dead_is_kept_violates_nothing_forgotten() -> None:
    trace = RECONCILE.trace_without("dead_is_kept", "nothing_forgotten")
    assert {"the handler fails: dead", "retention deletes the message"} <= set(trace)
    assert trace[-1] == "operator retries the dead letter"


def test_removing_receipt_after_message_violates_exactly_once_effects() -> None:
    trace = RECONCILE.trace_without("receipt_after_message", "exactly_once_effects")
    assert "the receipt is forgotten" in trace
    assert "retention deletes the message" not in trace


def test_removing_receipt_kept_for_horizon_violates_exactly_once_effects() -> None:
    trace = RECONCILE.trace_without("receipt_kept_for_horizon", "exactly_once_effects")
    assert "the receipt is forgotten" in trace
    assert "time passes: 1" not in trace


def test_removing_horizon_refusal_violates_exactly_once_effects() -> None:
    trace = RECONCILE.trace_without("horizon_refusal", "exactly_once_effects")
    taken = len(trace) - 1 - trace[::-1].index("worker takes the copy stamped 0")
    assert "time passes: 2" in trace[:taken]


def test_removing_horizon_refusal_violates_dedup_horizon() -> None:
    trace = RECONCILE.trace_without("horizon_refusal", "dedup_horizon")
    assert trace[-1] == "worker finds no receipt and runs the handler"


def test_removing_age_checked_at_look_violates_exactly_once_effects() -> None:
    trace = RECONCILE.trace_without("age_checked_at_look", "exactly_once_effects")
    taken = len(trace) - 1 - trace[::-1].index("worker takes the copy stamped 0")
    assert "time passes: 2" in trace[taken:]


def test_removing_look_before_resume_violates_exactly_once_effects() -> None:
    trace = RECONCILE.trace_without("look_before_resume", "exactly_once_effects")
    assert trace.index("worker commits effect and receipt") < trace.index("the relay is killed, another leads")
    assert "relay publishes a copy stamped 2" in trace


def test_removing_stamp_before_look_violates_exactly_once_effects() -> None:
    trace = RECONCILE.trace_without("stamp_before_look", "exactly_once_effects")
    assert trace.index("worker commits effect and receipt") < trace.index("relay publishes a copy stamped 2")


def test_removing_stamp_before_look_violates_receipt_outlives_copies() -> None:
    assert RECONCILE.trace_without("stamp_before_look", "receipt_outlives_copies")


def test_removing_evidence_capped_violates_no_loss() -> None:
    assert RECONCILE.trace_without("evidence_capped", "no_loss")[-1] == "the broker forgets everything"

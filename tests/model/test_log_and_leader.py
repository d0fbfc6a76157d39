"""The log loses nothing, repeats no position and keeps the order of a key; and why each protection is there."""

from __future__ import annotations

import pytest

from tests.model.catalog import LOG_AND_LEADER
from tests.model.explorer import Exploration, explore


@pytest.fixture(scope="module")
def explored() -> list[Exploration]:
    return [explore(model) for model in LOG_AND_LEADER.explored.values()]


@pytest.mark.parametrize(
    "guarantee",
    [
        "atomic",
        "no_phantom",
        "nothing_skipped",
        "no_loss",
        "published_in_order",
        "position_never_back",
        "epoch_rises",
    ],
)
def test_holds_in_every_state(explored: list[Exploration], guarantee: str) -> None:
    for found in explored:
        assert guarantee not in found.violations


@pytest.mark.parametrize(
    "landmark",
    [
        "late committer is in prev.xip",
        "late row and fresh row share a window",
        "xid order and seq order differ in one window",
        "zombie holds a window under an old epoch",
    ],
)
def test_interesting_state_is_reached(explored: list[Exploration], landmark: str) -> None:
    assert any(landmark in found.reached for found in explored)


@pytest.mark.parametrize(
    "action",
    [
        "A publishes T1 again",
        "B publishes T2 again",
        "A finds its term over and stands by",
        "B turns to the next window",
        "A is killed",
        "PostgreSQL crashes and restarts",
        "T2 rolls back",
    ],
)
def test_interesting_action_happens(explored: list[Exploration], action: str) -> None:
    assert any(action in found.labels for found in explored)


def test_removing_epoch_in_write_violates_position_never_back() -> None:
    trace = LOG_AND_LEADER.trace_without("epoch_in_write", "position_never_back")
    assert "A freezes, its lease expires, B acquires epoch 2" in trace
    assert trace[-4:] == (
        "A publishes T2",
        "A advances past T2",
        "B publishes T1 again",
        "B advances past T1",
    )


def test_removing_epoch_in_write_violates_nothing_skipped() -> None:
    trace = LOG_AND_LEADER.trace_without("epoch_in_write", "nothing_skipped")
    assert trace[-1].startswith(("A closes", "B closes", "A advances", "B advances"))


def test_removing_window_logic_violates_no_loss() -> None:
    trace = LOG_AND_LEADER.trace_without("window_logic", "no_loss")
    assert trace[-2:] == ("A publishes T2", "T1 commits")


def test_removing_late_committers_violates_no_loss() -> None:
    assert LOG_AND_LEADER.trace_without("late_committers", "no_loss")[-1] == "T1 commits"


def test_removing_visible_rows_only_violates_atomic() -> None:
    trace = LOG_AND_LEADER.trace_without("visible_rows_only", "atomic")
    assert trace[-1] == "A publishes T1"
    assert "T1 commits" not in trace


def test_removing_order_by_seq_violates_published_in_order() -> None:
    trace = LOG_AND_LEADER.trace_without("order_by_seq", "published_in_order")
    assert trace.index("T2 commits") < trace.index("T1 commits") < trace.index("A publishes T1")


def test_removing_key_lock_violates_published_in_order() -> None:
    trace = LOG_AND_LEADER.trace_without("key_lock", "published_in_order")
    assert trace.index("T2 commits") < trace.index("T1 commits") < trace.index("A publishes T1")


def test_removing_open_durable_violates_no_phantom() -> None:
    trace = LOG_AND_LEADER.trace_without("open_durable", "no_phantom")
    assert trace[-2:] == ("A publishes T1", "PostgreSQL crashes and restarts")


def test_removing_acquire_durable_violates_epoch_rises() -> None:
    trace = LOG_AND_LEADER.trace_without("acquire_durable", "epoch_rises")
    assert trace == ("A acquires epoch 1", "PostgreSQL crashes and restarts", "A acquires epoch 1")


def test_removing_resume_same_window_violates_nothing_skipped() -> None:
    trace = LOG_AND_LEADER.trace_without("resume_same_window", "nothing_skipped")
    assert trace.index("A opens a window") < trace.index("T1 commits")
    assert trace[-1] == "A freezes, its lease expires, B acquires epoch 2"


def test_removing_advance_after_publish_violates_no_loss() -> None:
    trace = LOG_AND_LEADER.trace_without("advance_after_publish", "no_loss")
    assert trace[-2:] == ("A advances past T1", "A is killed")


def test_removing_snapshot_dies_with_connection_violates_no_loss() -> None:
    trace = LOG_AND_LEADER.trace_without("snapshot_dies_with_connection", "no_loss")
    crash = trace.index("PostgreSQL crashes and restarts")
    assert "A polls and finds nothing" in trace[:crash]
    assert trace[crash + 1 :][-1].endswith("commits")

"""Writers of equal keys: one message a key, nobody loses, nobody waits for ever; and why each protection is there."""

from __future__ import annotations

import pytest

from outbox import Message
from outbox.keys import calls as real_calls
from tests.model.catalog import KEYS
from tests.model.explorer import Exploration, explore
from tests.model.key_calls import Bounds, Protections, calls, read

ANSWER = "writes its messages and has its answer"


@pytest.fixture(scope="module")
def explored() -> list[Exploration]:
    return [explore(model) for model in KEYS.explored.values()]


@pytest.mark.parametrize(
    "guarantee",
    [
        "at_most_one_live",
        "one_per_dedup_key",
        "nobody_loses_all",
        "no_deadlock",
        "chain_is_a_line",
        "conflict_leaves_nothing",
        "all_end",
    ],
)
def test_holds_in_every_state(explored: list[Exploration], guarantee: str) -> None:
    for found in explored:
        assert guarantee not in found.violations


@pytest.mark.parametrize(
    "landmark",
    [
        "two wait for one",
        "two are about to take one key over",
        "a holder ended between the look and the answer",
        "committed after a conflict",
        "committed after a refusal",
        "a line of three",
        "a new line behind a pruned message",
    ],
)
def test_interesting_state_is_reached(explored: list[Exploration], landmark: str) -> None:
    assert any(landmark in found.reached for found in explored)


@pytest.mark.parametrize(
    "action",
    [
        "T2 finds d1 changed",
        "T2 finds u1 changed",
        "T2 finds u1 gone",
        "T1 sees that m3 repeats m2",
        "T3 meets a conflict: d1 is m2",
        "T2 locks o1 lock",
        "T1 rolls back",
        "operator retries m1",
    ],
)
def test_interesting_action_happens(explored: list[Exploration], action: str) -> None:
    assert any(action in found.labels for found in explored)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("asked", ["d2+d1+d3", "u3+u1+u2+u1", "o2+o1+o2", "d2u1+d1+u2", "u2o2+o1"])
def test_batches_are_cut_as_the_writer_cuts_them(asked: str, size: int) -> None:
    messages = list(read(Bounds(asked)))
    real = [
        Message("t", dedup_key=each.dedup or None, unique_key=each.unique or None, ordering_key=each.ordering or None)
        for each in messages
    ]
    modelled = [[each.number for each in call] for call in calls(messages, size, Protections())]
    assert modelled == real_calls(real, size)


def test_every_protection_is_removed_once() -> None:
    assert set(KEYS.broken) == KEYS.protections


def test_removing_sorted_keys_violates_no_deadlock() -> None:
    assert KEYS.trace_without("sorted_keys", "no_deadlock") == ("T1 inserts d1", "T2 inserts d2")


def test_removing_sorted_keys_violates_all_end() -> None:
    assert KEYS.trace_without("sorted_keys", "all_end") == ("T1 inserts d1", "T2 inserts d2")


def test_removing_one_call_violates_no_deadlock() -> None:
    trace = KEYS.trace_without("one_call", "no_deadlock")
    assert trace == ("T1 inserts u1", f"T1 {ANSWER}", "T2 inserts u2", f"T2 {ANSWER}")


def test_removing_wait_for_inserter_violates_nobody_loses_all() -> None:
    trace = KEYS.trace_without("wait_for_inserter", "nobody_loses_all")
    assert trace == ("T1 inserts d1", "T2 does not wait for d1", f"T2 {ANSWER}")


def test_removing_compare_and_set_unique_violates_at_most_one_live() -> None:
    trace = KEYS.trace_without("compare_and_set_unique", "at_most_one_live")
    assert trace.index("T1 takes u1 over") < trace.index("T1 commits") < trace.index("T2 takes u1 over")


def test_removing_compare_and_set_dedup_violates_one_per_dedup_key() -> None:
    trace = KEYS.trace_without("compare_and_set_dedup", "one_per_dedup_key")
    assert trace.index("T2 sees m1 behind d1, its window over") < trace.index("T1 commits")
    assert trace[-3:] == ("T2 takes d1 over", f"T2 {ANSWER}", "T2 commits")


def test_removing_take_back_violates_conflict_leaves_nothing() -> None:
    trace = KEYS.trace_without("take_back", "conflict_leaves_nothing")
    assert trace[-2:] == ("T1 meets a conflict: d2 is m1", "T1 commits")


def test_removing_take_back_rejected_violates_conflict_leaves_nothing() -> None:
    trace = KEYS.trace_without("take_back_rejected", "conflict_leaves_nothing")
    assert trace[-3:] == ("T1 is refused u1: m1 is live", f"T1 {ANSWER}", "T1 commits")


def test_removing_repeat_follows_first_violates_nobody_loses_all() -> None:
    trace = KEYS.trace_without("repeat_follows_first", "nobody_loses_all")
    assert trace.index("T1 sees that m3 repeats m2") < trace.index("T1 is refused u1: m1 is live")


def test_removing_claimed_in_call_violates_at_most_one_live() -> None:
    trace = KEYS.trace_without("claimed_in_call", "at_most_one_live")
    assert trace[-3:] == ("T1 takes u1 over", f"T1 {ANSWER}", "T1 commits")


def test_removing_liveness_from_receipt_violates_nobody_loses_all() -> None:
    trace = KEYS.trace_without("liveness_from_receipt", "nobody_loses_all")
    assert trace[-2:] == ("m1 ends", "T1 is refused u1: m1 is live")


def test_removing_lock_row_violates_chain_is_a_line() -> None:
    trace = KEYS.trace_without("lock_row", "chain_is_a_line")
    assert trace[:2] == ("T1 reads the end of o1", "T2 reads the end of o1")


def test_removing_prune_by_holder_violates_at_most_one_live() -> None:
    trace = KEYS.trace_without("prune_by_holder", "at_most_one_live")
    assert trace.index("T1 takes u1 over") < trace.index("retention prunes m1") < trace.index("T2 inserts u1")


def test_removing_retry_takes_key_violates_at_most_one_live() -> None:
    trace = KEYS.trace_without("retry_takes_key", "at_most_one_live")
    assert trace[-2:] == ("T1 commits", "operator retries m1")


def test_removing_judge_under_lock_violates_at_most_one_live() -> None:
    trace = KEYS.trace_without("judge_under_lock", "at_most_one_live")
    assert trace[-4:-2] == ("operator retries m1", "T1 takes u1 over")

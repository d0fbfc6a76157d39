"""Amnesia of the broker is noticed at the next reply or look; and why each protection is there."""

from __future__ import annotations

import pytest

from tests.model.canary import Bounds, Canary
from tests.model.catalog import CANARY
from tests.model.explorer import Exploration, explore, shortest_trace


@pytest.fixture(scope="module")
def explored() -> list[Exploration]:
    return [explore(model) for model in CANARY.explored.values()]


@pytest.mark.parametrize("guarantee", ["amnesia_is_noticed", "no_false_alarm"])
def test_holds_in_every_state(explored: list[Exploration], guarantee: str) -> None:
    for found in explored:
        assert guarantee not in found.violations


@pytest.mark.parametrize(
    "landmark",
    [
        "amnesia after publish",
        "amnesia between push and reply",
        "amnesia during the handover",
        "zombie publishes after amnesia",
    ],
)
def test_interesting_state_is_reached(explored: list[Exploration], landmark: str) -> None:
    assert any(landmark in found.reached for found in explored)


@pytest.mark.parametrize(
    "action",
    [
        "A reads a low reply: amnesia",
        "A looks at its field: amnesia",
        "B checks the field of epoch 1: amnesia",
        "the broker restarts from its dump",
    ],
)
def test_interesting_action_happens(explored: list[Exploration], action: str) -> None:
    assert any(action in found.labels for found in explored)


def test_older_dump_and_a_leader_dying_in_a_push_are_left_to_the_receipt_timeout() -> None:
    trace = shortest_trace(Canary(Bounds(2, 0, 1, 1, 0)), "amnesia_is_noticed")
    assert trace is not None
    assert trace[-3:] == ("the broker restarts from its dump", "A publishes 1", "A is killed")


def test_removing_counter_violates_amnesia_is_noticed() -> None:
    trace = CANARY.trace_without("counter", "amnesia_is_noticed")
    assert trace[-1] == "the broker restarts from its dump"


def test_removing_handover_violates_amnesia_is_noticed() -> None:
    trace = CANARY.trace_without("handover", "amnesia_is_noticed")
    assert trace[-2:] == ("the broker forgets everything", "A is killed")


def test_removing_field_before_handover_violates_amnesia_is_noticed() -> None:
    trace = CANARY.trace_without("field_before_handover", "amnesia_is_noticed")
    assert trace[-2:] == ("A finds nothing amiss at the handover", "the broker forgets everything")


def test_removing_nonce_violates_amnesia_is_noticed() -> None:
    trace = CANARY.trace_without("nonce", "amnesia_is_noticed")
    assert trace[-3:] == ("the broker forgets everything", "A publishes 2", "A is killed")

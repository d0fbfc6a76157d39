"""An outage is not a failure, and poison ends; and why each protection is there."""

from __future__ import annotations

import pytest

from tests.model.catalog import ATTEMPTS
from tests.model.explorer import Exploration, explore


@pytest.fixture(scope="module")
def explored() -> list[Exploration]:
    return [explore(model) for model in ATTEMPTS.explored.values()]


@pytest.mark.parametrize("guarantee", ["outage_is_no_failure", "no_loss"])
def test_holds_in_every_state(explored: list[Exploration], guarantee: str) -> None:
    for found in explored:
        assert guarantee not in found.violations


@pytest.mark.parametrize(
    "landmark",
    [
        "run cut off by an outage",
        "start left by a worker that died in an outage",
        "dead",
        "applied after outages",
    ],
)
def test_interesting_state_is_reached(explored: list[Exploration], landmark: str) -> None:
    assert any(landmark in found.reached for found in explored)


def test_removing_start_recorded_violates_no_loss() -> None:
    trace = ATTEMPTS.trace_without("start_recorded", "no_loss")
    assert trace == ("the message turns out to be poison",)


def test_removing_outage_voids_start_violates_outage_is_no_failure() -> None:
    trace = ATTEMPTS.trace_without("outage_voids_start", "outage_is_no_failure")
    assert trace.count("the database goes down") == 2
    assert trace[-1] == "the message is dead"


def test_removing_start_names_server_violates_outage_is_no_failure() -> None:
    trace = ATTEMPTS.trace_without("start_names_server", "outage_is_no_failure")
    assert "the worker is killed while it waits for the database" in trace
    assert trace[-1] == "the message is dead"


def test_removing_publication_is_no_attempt_violates_outage_is_no_failure() -> None:
    trace = ATTEMPTS.trace_without("publication_is_no_attempt", "outage_is_no_failure")
    assert not any("runs" in label for label in trace)
    assert trace[-1] == "the message is dead"

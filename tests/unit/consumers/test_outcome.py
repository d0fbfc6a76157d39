import dataclasses
from typing import assert_never, get_args

import pytest

from consumers.outcome import Applied, Conflict, Duplicate, Failed, InProgress, Outcome, Unavailable

ERROR = ValueError("why")
ALL: list[Outcome] = [
    Applied("result"),
    Duplicate("applied"),
    InProgress(),
    Conflict(),
    Failed(ERROR),
    Unavailable(ERROR),
]


def name_of(outcome: Outcome) -> str:
    """mypy refuses this function when an outcome is added and not handled."""
    match outcome:
        case Applied(result):
            return f"applied {result}"
        case Duplicate(status):
            return f"duplicate {status}"
        case InProgress():
            return "in progress"
        case Conflict():
            return "conflict"
        case Failed(error):
            return f"failed {error}"
        case Unavailable(error):
            return f"unavailable {error}"
    assert_never(outcome)


def test_the_outcomes_are_these() -> None:
    assert get_args(Outcome) == tuple(type(outcome) for outcome in ALL)


def test_each_can_be_taken_apart() -> None:
    names = ["applied result", "duplicate applied", "in progress", "conflict", "failed why", "unavailable why"]
    assert [name_of(outcome) for outcome in ALL] == names


@pytest.mark.parametrize("outcome", ALL, ids=lambda outcome: type(outcome).__name__)
def test_an_outcome_is_final(outcome: Outcome) -> None:
    copy = dataclasses.replace(outcome)
    assert copy == outcome
    assert hash(copy) == hash(outcome)
    for field in dataclasses.fields(outcome):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(outcome, field.name, None)


def test_two_outcomes_are_never_equal_by_accident() -> None:
    assert len(set(ALL)) == len(ALL)

from collections.abc import Sequence
from dataclasses import FrozenInstanceError
from uuid import UUID

import pytest

from outbox import Added, AddedBatch, BatchProgress, Cancellation, CancelOutcome, Existing, State

ID = UUID(int=7)


def test_five_states_are_final() -> None:
    final = {state for state in State if state.final}
    assert final == {State.APPLIED, State.DEAD, State.CANCELLED, State.EXPIRED, State.DISCARDED}


def test_a_state_is_its_word() -> None:
    assert State("applied") is State.APPLIED
    assert f"{State.APPLIED} {CancelOutcome.TOO_LATE}" == "applied too_late"
    with pytest.raises(ValueError, match="whim"):
        State("whim")


@pytest.mark.parametrize(
    ("states", "total", "ended", "finished"),
    [
        ({}, 0, 0, False),
        ({State.QUEUED: 3}, 3, 0, False),
        ({State.APPLIED: 2, State.RETRYING: 1}, 3, 2, False),
        ({State.APPLIED: 2, State.UNKNOWN: 1}, 3, 2, False),
        ({State.APPLIED: 1, State.DEAD: 1, State.CANCELLED: 1, State.EXPIRED: 1, State.DISCARDED: 1}, 5, 5, True),
    ],
)
def test_progress_of_a_batch(states: dict[State, int], total: int, ended: int, finished: bool) -> None:
    progress = BatchProgress(ID, states)
    assert (progress.total, progress.ended, progress.finished) == (total, ended, finished)


def test_an_added_batch_is_a_sequence_of_what_was_added() -> None:
    added = tuple(Added(UUID(int=number), duplicate=number == 2) for number in range(1, 4))
    batch = AddedBatch(ID, added)
    assert isinstance(batch, Sequence)
    assert (len(batch), list(batch), batch[0], batch[-1], batch[1:]) == (3, list(added), added[0], added[2], added[1:])
    assert [each.id for each in batch if each.duplicate] == [UUID(int=2)]
    assert added[1] in batch
    assert bool(AddedBatch(ID, ())) is False
    with pytest.raises(IndexError):
        batch[3]


def test_answers_are_values() -> None:
    assert Added(ID) == Added(ID, duplicate=False, existing=None)
    assert Added(ID, existing=Existing(ID, State.RUNNING)) != Added(ID)
    assert Cancellation(ID, CancelOutcome.FINISHED, State.APPLIED).outcome == "finished"
    with pytest.raises(FrozenInstanceError):
        Added(ID).duplicate = True  # type: ignore[misc]

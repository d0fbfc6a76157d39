"""The explorer finds what there is to find, by the shortest way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pytest

from tests.model import explorer
from tests.model.catalog import CATALOG, Entry
from tests.model.explorer import explore, shortest_trace


class Counter:
    """Counts to *top* by ones and twos; a fault jumps into a pit, from which *climb* leads out."""

    liveness = "no_loss"

    def __init__(self, top: int = 5, climb: bool = True) -> None:
        self.top = top
        self.climb = climb

    invariants: Mapping[str, Callable[[int], bool]] = {
        "below_four": lambda state: state < 4,
        "not_negative": lambda state: state > -2,
    }
    landmarks: Mapping[str, Callable[[int], bool]] = {
        "three": lambda state: state == 3,
        "hundred": lambda state: state == 100,
    }

    def initial(self) -> int:
        return 0

    def steps(self, state: int) -> Iterator[tuple[str, int]]:
        if state < 0:
            yield ("climb", 0) if self.climb else ("stay", state)
        for stride in (1, 2):
            if 0 <= state <= self.top - stride:
                yield f"add {stride}", state + stride

    def disturbances(self, state: int) -> Iterator[tuple[str, int]]:
        if state == 3:
            yield "fall", -1

    def settled(self, state: int) -> bool:
        return state == self.top


def test_every_state_is_visited_once() -> None:
    found = explore(Counter())
    assert (found.states, found.transitions) == (7, 11)
    assert found.labels == {"add 1", "add 2", "fall", "climb"}
    assert found.reached == {"three"}


def test_trace_to_a_violation_is_a_shortest_one() -> None:
    assert explore(Counter()).violations == {"below_four": ("add 2", "add 2")}
    assert shortest_trace(Counter(), "below_four") == ("add 2", "add 2")
    assert shortest_trace(Counter(), "not_negative") is None


def test_no_loss_ends_at_the_point_of_no_return_even_if_the_protocol_spins() -> None:
    assert shortest_trace(Counter(), "no_loss") is None
    assert shortest_trace(Counter(climb=False), "no_loss") == ("add 1", "add 2", "fall")


def test_no_loss_does_not_rely_on_disturbances() -> None:
    class Rescued(Counter):
        def disturbances(self, state: int) -> Iterator[tuple[str, int]]:
            yield from super().disturbances(state)
            if state < 0:
                yield "someone helps", 0

    assert shortest_trace(Rescued(climb=False), "no_loss") is not None


def test_too_many_states_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explorer, "STATE_LIMIT", 3)
    with pytest.raises(MemoryError, match="lower the bounds"):
        explore(Counter())


@pytest.mark.parametrize("entry", CATALOG, ids=lambda entry: entry.name)
def test_every_protection_has_a_test_of_its_removal(entry: Entry) -> None:
    assert set(entry.broken) == entry.protections

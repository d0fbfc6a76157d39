"""Visit every state of a small model, breadth first.

A model is an initial state and two kinds of action. *Steps* are what the protocol and the passing of time do
by themselves. *Disturbances* are faults and people: they happen within a budget, and nothing may rely on them.

Two kinds of property are checked.

- An **invariant** holds in every state. Breadth first means that the first state that breaks one is at the end
  of a shortest trace.
- A model's one **liveness** property ("the message ends", mostly called no_loss) is checked as AG EF over steps
  alone: from every reachable state, whatever went wrong on the way there, a settled state can be reached by steps
  only. In a finite graph that says every bottom component contains a settled state, so under strong fairness (a
  step that is possible again and again is taken at last) the settled state is not only possible but inevitable.
  Looking only at states without successors would be weaker: a protocol that spins for ever has none.
  Its trace ends at the first state from which no settled state can be reached: the point of no return.
"""

from __future__ import annotations

import gc
import time
from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

__all__ = ["Exploration", "Model", "Removal", "Trace", "explore", "shortest_trace"]

STATE_LIMIT = 2_000_000  # a model that outgrows its bounds must fail, not fill the memory

S = TypeVar("S", bound=Hashable)
B = TypeVar("B")
Actions = Iterable[tuple[str, S]]
Trace = tuple[str, ...]


class Model(Protocol[S]):
    """What the explorer needs to know of a protocol."""

    @property
    def liveness(self) -> str:
        """The name of the property that a settled state can always be reached."""

    @property
    def invariants(self) -> Mapping[str, Callable[[S], bool]]: ...

    @property
    def landmarks(self) -> Mapping[str, Callable[[S], bool]]:
        """States that must be reached, or else the invariants were checked on nothing of interest."""

    def initial(self) -> S: ...

    def steps(self, state: S) -> Actions[S]: ...

    def disturbances(self, state: S) -> Actions[S]: ...

    def settled(self, state: S) -> bool: ...


class Removal(NamedTuple, Generic[B]):
    """What fails without a protection, and the bounds that suffice to see it."""

    violates: str
    bounds: B
    also: tuple[str, ...] = ()  # protections that back this one up, and are removed with it


@dataclass(frozen=True)
class Exploration:
    """How much was visited, and the shortest trace to the first violation of each property."""

    states: int
    transitions: int
    seconds: float
    labels: frozenset[str]
    reached: frozenset[str]
    violations: Mapping[str, Trace]


def explore(model: Model[S], stop_at: str | None = None) -> Exploration:
    """Visit every state; with *stop_at*, check that one property only and stop where it first fails."""
    started = time.perf_counter()
    search = _Search(model, stop_at)
    with _collector_off():
        search.run()
        if stop_at in (None, model.liveness):
            search.find_point_of_no_return()
    return Exploration(
        states=len(search.states),
        transitions=search.transitions,
        seconds=time.perf_counter() - started,
        labels=frozenset(search.labels),
        reached=frozenset(search.reached),
        violations=search.violations,
    )


def shortest_trace(model: Model[S], violated: str) -> Trace | None:
    """Return the shortest way to break a property, or None if it holds."""
    return explore(model, stop_at=violated).violations.get(violated)


class _Search(Generic[S]):
    """The states found so far, numbered in the order of finding."""

    def __init__(self, model: Model[S], stop_at: str | None) -> None:
        self.model = model
        self.stop_at = stop_at
        self.invariants = {name: holds for name, holds in model.invariants.items() if stop_at in (None, name)}
        self.landmarks = dict(model.landmarks) if stop_at is None else {}
        self.number: dict[S, int] = {}
        self.states: list[S] = []
        self.parents = array("i")
        self.arrivals: list[str] = []
        self.successors: list[array[int]] = []  # by steps alone
        self.transitions = 0
        self.labels: set[str] = set()
        self.reached: set[str] = set()
        self.violations: dict[str, Trace] = {}

    def run(self) -> None:
        self.admit(self.model.initial(), -1, "")
        while len(self.successors) < len(self.states) and self.stop_at not in self.violations:
            self.expand(len(self.successors))
            if len(self.states) > STATE_LIMIT:
                raise MemoryError(f"more than {STATE_LIMIT} states: lower the bounds")

    def expand(self, current: int) -> None:
        state, stepped = self.states[current], array("i")
        for label, following in self.model.steps(state):
            stepped.append(self.follow(current, label, following))
        for label, following in self.model.disturbances(state):
            self.follow(current, label, following)
        self.successors.append(stepped)

    def follow(self, current: int, label: str, following: S) -> int:
        self.labels.add(label)
        self.transitions += 1
        index = self.number.get(following)
        return self.admit(following, current, label) if index is None else index

    def admit(self, state: S, parent: int, label: str) -> int:
        index = self.number[state] = len(self.states)
        self.states.append(state)
        self.parents.append(parent)
        self.arrivals.append(label)
        for name in [name for name, holds in self.invariants.items() if not holds(state)]:
            self.violations[name] = self.trace(index)
            del self.invariants[name]  # breadth first: the first trace is a shortest one
        for name in [name for name, here in self.landmarks.items() if here(state)]:
            self.reached.add(name)
            del self.landmarks[name]
        return index

    def find_point_of_no_return(self) -> None:
        saved = bytearray(map(self.model.settled, self.states))
        # Most steps lead to states that were found later, so walking backwards needs only a few rounds.
        changed = True
        while changed:
            changed = False
            for index in range(len(self.states) - 1, -1, -1):
                if not saved[index] and any(saved[following] for following in self.successors[index]):
                    saved[index] = changed = True
        lost = saved.find(0)
        if lost >= 0:
            self.violations[self.model.liveness] = self.trace(lost)

    def trace(self, index: int) -> Trace:
        """Return the labels on the way from the initial state."""
        labels: list[str] = []
        while self.parents[index] >= 0:
            labels.append(self.arrivals[index])
            index = self.parents[index]
        return tuple(reversed(labels))


@contextmanager
def _collector_off() -> Iterator[None]:
    """Immutable states form no cycles: looking for some costs a third of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()

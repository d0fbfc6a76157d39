"""An outage is not a failure, and a message that kills its worker still ends.

Modelled: one message and the worker that tries it; `attempt` (orderly failures), the *start* that a redelivered or
republished copy records before it runs, and the database that goes down and comes back in the middle.

Bounds: `Bounds`; two counted tries make a dead letter. With `poison` the message may turn out to kill every process
that runs it.

Disturbances: the handler fails; the worker is killed while it runs, or while it waits for the database; the database
goes down and comes back; a copy is published again, as after a broker's outage.

Invariants
- outage_is_no_failure: a message is dead only after its handler failed, or its process died in a run that no outage
  touched, as often as the limit says (guarantee 8)
- no_loss: the message ends, poison or not (guarantee 2; see explorer)

Abstracted away, and why nothing is hidden by that
- One worker, one copy: who may run is the receipts model.
- Waiting has no length, so an outage may last as long as it likes.
- An outage is a new life of the server. A cut wire between worker and server is not modelled: the server lives on,
  and a worker killed while it waits for that wire leaves a start that counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.explorer import Removal

__all__ = ["DEEP", "EXPLORED", "REMOVALS", "Attempts", "Bounds", "Protections", "State"]


@dataclass(frozen=True)
class Protections:
    """What counts as a try and what does not; each can be removed alone."""

    start_recorded: bool = True  # a repeated copy notes that it runs, outside its transaction
    outage_voids_start: bool = True  # a worker that outlived the outage takes its start back
    start_names_server: bool = True  # a start from an earlier life of the server is not counted
    publication_is_no_attempt: bool = True  # copies published are counted apart from runs that failed


class Bounds(NamedTuple):
    failures: int = 2
    kills: int = 3
    outages: int = 3
    republications: int = 2
    poison: bool = False


# One more of each fault than the limit of two.
EXPLORED = (Bounds(), Bounds(0, 2, 3, 2, poison=True))
CALM = Bounds(0, 0, 0, 0)

DEEP = (Bounds(3, 6, 6, 4), Bounds(3, 6, 6, 4, poison=True))  # too long for every test run

REMOVALS: Mapping[str, Removal[Bounds]] = {
    "start_recorded": Removal("no_loss", CALM._replace(poison=True)),
    "outage_voids_start": Removal(
        "outage_is_no_failure", CALM._replace(outages=3, republications=1), also=("start_names_server",)
    ),
    "start_names_server": Removal("outage_is_no_failure", CALM._replace(kills=3, outages=3)),
    "publication_is_no_attempt": Removal("outage_is_no_failure", CALM._replace(republications=2)),
}

WAITING, TAKEN, RUNS, CUT_OFF = range(4)  # the copy: in the broker, in a worker, running, run lost in an outage
NO_RECEIPT, APPLIED, DEAD = range(3)
LIMIT = 2


class State(NamedTuple):
    copy: int
    repeated: bool  # the copy was redelivered or published again
    attempts: int
    starts: tuple[int, ...]  # the life of the server in which each standing start was recorded
    own_start: bool  # the present run has recorded one
    publications: int
    outcome: int
    up: bool
    life: int
    blame: int  # history: how often the message itself went wrong
    poison: bool
    failures: int
    kills: int
    outages: int
    republications: int


Actions = Iterator[tuple[str, State]]


class Attempts:
    """The model; see the module's docstring."""

    liveness = "no_loss"

    def __init__(self, bounds: Bounds | None = None, protections: Protections | None = None) -> None:
        self.bounds = bounds or Bounds()
        self.on = protections or Protections()

    def initial(self) -> State:
        return State(WAITING, False, 0, (), False, 1, NO_RECEIPT, True, 0, 0, False, *self.bounds[:-1])

    def counted(self, s: State) -> int:
        starts = [life for life in s.starts if life == s.life or not self.on.start_names_server]
        publications = 0 if self.on.publication_is_no_attempt else s.publications - 1
        return s.attempts + len(starts) + publications

    # Actions

    def steps(self, s: State) -> Actions:
        if not s.up:
            yield "the database comes back", s._replace(up=True, life=s.life + 1)
        elif s.outcome != NO_RECEIPT:
            return
        elif s.copy == TAKEN:
            yield self.begin(s)
        elif s.copy == RUNS and not s.poison:
            yield "the run commits", s._replace(outcome=APPLIED)
        elif s.copy == CUT_OFF:
            word = "takes its start back and " if s.own_start and self.on.outage_voids_start else ""
            yield f"the worker {word}requeues", self.requeue(self.void(s))
        if s.copy == WAITING:
            yield "a worker takes the copy", s._replace(copy=TAKEN)
        if s.copy == RUNS and s.poison:
            yield "the run kills its process", self.requeue(s)._replace(blame=min(s.blame + 1, LIMIT))

    def begin(self, s: State) -> tuple[str, State]:
        if self.counted(s) >= LIMIT:
            return "the message is dead", s._replace(outcome=DEAD)
        if s.repeated and self.on.start_recorded:
            started = s._replace(copy=RUNS, starts=(*s.starts, s.life), own_start=True)
            return "a repeated copy records its start and runs", started
        return "the handler runs", s._replace(copy=RUNS)

    def void(self, s: State) -> State:
        return s._replace(starts=s.starts[:-1]) if s.own_start and self.on.outage_voids_start else s

    def requeue(self, s: State) -> State:
        return s._replace(copy=WAITING, repeated=True, own_start=False)

    def disturbances(self, s: State) -> Actions:
        if s.up and s.outages:
            copy = CUT_OFF if s.copy == RUNS else s.copy
            yield "the database goes down", s._replace(up=False, copy=copy, outages=s.outages - 1)
        if s.outcome != NO_RECEIPT:
            return
        if s.copy == RUNS and s.failures:
            starts = s.starts[:-1] if s.own_start else s.starts
            failed = self.requeue(s._replace(starts=starts, attempts=s.attempts + 1, failures=s.failures - 1))
            yield "the handler fails", failed._replace(blame=min(s.blame + 1, LIMIT))
        if s.copy in (RUNS, CUT_OFF) and s.kills:
            killed = self.requeue(s._replace(kills=s.kills - 1))
            if s.copy == RUNS:
                killed = killed._replace(blame=min(s.blame + 1, LIMIT))
            yield f"the worker is killed while it {'runs' if s.copy == RUNS else 'waits for the database'}", killed
        if self.bounds.poison and not s.poison:
            yield "the message turns out to be poison", s._replace(poison=True)
        if s.copy == WAITING and s.republications:
            again = s._replace(repeated=True, publications=s.publications + 1)
            yield "a copy is published again", again._replace(republications=s.republications - 1)

    # Properties

    def settled(self, s: State) -> bool:
        return s.outcome != NO_RECEIPT

    @property
    def invariants(self) -> Mapping[str, Callable[[State], bool]]:
        return {"outage_is_no_failure": lambda s: s.outcome != DEAD or s.blame >= LIMIT}

    @property
    def landmarks(self) -> Mapping[str, Callable[[State], bool]]:
        return {
            "run cut off by an outage": lambda s: s.copy == CUT_OFF,
            "start left by a worker that died in an outage": lambda s: len(s.starts) > s.blame,
            "dead": lambda s: s.outcome == DEAD,
            "applied after outages": lambda s: s.outcome == APPLIED and s.life > 1,
        }

"""Order of one key: publication in commit order, and application in that order by an ordered consumer.

Modelled: the messages m1, m2, m3 of one ordering key and task, each with `key_prev` naming the one before; first
publication from the log, parking and leaving the park; a broker without order; two worker slots of a consumer
declared `ordered=True`; too early -> `inbox_retry` with `waits_for`, pulled forward when the awaited message ends;
dead letters under the policies block and skip; cancelled, expired or discarded messages (one outcome, *closed*);
retention of rows, then of receipts.

Bounds: `Bounds`. At most two copies of a message wait in the broker.

Disturbances: a queue refuses (the message is parked); the broker loses or repeats a copy; a worker dies; a message
is closed; a handler or the relay dead-letters one; the operator retries or discards the dead letter.

Invariants
- published_in_order: first publications happen in commit order (guarantee 6)
- order: messages are applied in commit order (guarantee 6)
- dead_blocks: under policy block nothing runs behind a dead message (guarantee 6)
- no_missed_pull: who waits for a message that has ended is pulled forward, unless a worker died on the way; it
  would run in the end, but only after the receipt timeout
- no_loss: every message ends, or is blocked by a dead one before it (guarantee 2; see explorer)

Abstracted away, and why nothing is hidden by that
- Commit order is seq order within a key: the log model has the key lock and the windows.
- Look, lock and the check of the predecessor are one step, ack comes with the last write: see the receipts model.
- `key_prev` is remembered per message as last published, not per copy. An older copy names a message nearer to its
  own, so it can only be more careful.
- Reconcile publishes again only when no copy is left; copies too many come from the broker's repeats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from tests.model.explorer import Removal

__all__ = ["DEEP", "EXPLORED", "REMOVALS", "Bounds", "Order", "Protections", "State"]


@dataclass(frozen=True)
class Protections:
    """What keeps the order of a key; each can be removed alone."""

    key_prev: bool = True  # a message runs only behind its predecessor
    applied_only: bool = True  # only an applied predecessor lets a message run; off: any that has ended
    park_followers: bool = True  # while a message of the key is parked, later ones park too and leave in order
    one_in_flight: bool = True  # no two first publications of a key in one unconfirmed batch
    early_has_due_time: bool = True  # waiting for the predecessor ends by itself too
    pull_after_commit: bool = True  # off: the pull is in the predecessor's transaction, before its commit shows
    recheck_after_early: bool = True  # who has written `waits_for` looks once more
    resolve_predecessor: bool = True  # each publication names the nearest unfinished message before it, or none
    prune_in_turn: bool = True  # retention leaves a closed message while an earlier one is unfinished
    dead_is_kept: bool = True  # retention takes no dead message
    skipped_is_final: bool = True  # under policy skip a dead letter of an ordered consumer is not retried


class Bounds(NamedTuple):
    messages: int = 3
    skip: bool = False  # the policy for a dead predecessor: block or skip
    retention: bool = False
    parkings: int = 0
    losses: int = 0
    repeats: int = 0
    worker_deaths: int = 0
    closings: int = 1
    dead: int = 1
    dead_retries: int = 1


CALM = Bounds(2, closings=0, dead=0, dead_retries=0)

# Three messages are the least for an unfinished one before a closed one. Endings with three, under both policies;
# faults of broker and workers with three; all together with two.
EXPLORED = (
    Bounds(retention=True, closings=0),
    Bounds(retention=True, dead_retries=0),
    Bounds(skip=True, retention=True),
    CALM._replace(messages=3, parkings=1, losses=1, repeats=1, worker_deaths=1),
    Bounds(2, parkings=1, losses=1, repeats=1, worker_deaths=1),
)

# Too long for every test run.
DEEP = (Bounds(retention=True), EXPLORED[4]._replace(retention=True), EXPLORED[3]._replace(parkings=0, closings=1))

REMOVALS: Mapping[str, Removal[Bounds]] = {
    "key_prev": Removal("order", CALM),
    "applied_only": Removal("order", CALM._replace(messages=3, closings=1)),
    "park_followers": Removal("published_in_order", CALM._replace(parkings=1)),
    "one_in_flight": Removal("published_in_order", CALM._replace(parkings=1)),
    "early_has_due_time": Removal("no_loss", CALM._replace(worker_deaths=1)),
    "pull_after_commit": Removal("no_missed_pull", CALM),
    "recheck_after_early": Removal("no_missed_pull", CALM),
    "resolve_predecessor": Removal("no_loss", CALM._replace(retention=True)),
    "prune_in_turn": Removal("order", CALM._replace(messages=3, closings=1, retention=True)),
    "dead_is_kept": Removal("dead_blocks", CALM._replace(dead=1, retention=True)),
    "skipped_is_final": Removal("order", CALM._replace(dead=1, dead_retries=1, skip=True)),
}

UNREAD, PARKED, PUBLISHED = range(3)
NO_RECEIPT, APPLIED, CLOSED, DEAD = range(4)
HERE, ROW_GONE, ALL_GONE = range(3)
NOT_ASKED, DUE, WAITS_FOR = 0, 1, 2  # `inbox_retry`: WAITS_FOR + j waits for message j
IDLE, EARLY, RECHECK, RUNNING, PULLED, PULL = range(6)
MAXIMUM_COPIES = 2
NOTHING = -1


class Worker(NamedTuple):
    phase: int = IDLE
    message: int = NOTHING
    other: int = NOTHING  # the message waited for, or the one that the pull found waiting


class State(NamedTuple):
    first: tuple[int, ...]
    copies: tuple[int, ...]
    outcome: tuple[int, ...]
    kept: tuple[int, ...]
    prev: tuple[int, ...]  # `key_prev` as last published
    retry: tuple[int, ...]
    workers: tuple[Worker, Worker]
    published: tuple[int, ...]  # history: first publications
    applied: tuple[int, ...]  # history
    parkings: int
    losses: int
    repeats: int
    worker_deaths: int
    closings: int
    dead: int
    dead_retries: int


Actions = Iterator[tuple[str, State]]


def name(message: int) -> str:
    return f"m{message + 1}"


class Order:
    """The model; see the module's docstring."""

    liveness = "no_loss"

    def __init__(self, bounds: Bounds | None = None, protections: Protections | None = None) -> None:
        self.bounds = bounds or Bounds()
        self.on = protections or Protections()

    def initial(self) -> State:
        none = (0,) * self.bounds.messages
        nobody = (NOTHING,) * self.bounds.messages
        return State(none, none, none, none, nobody, none, (Worker(), Worker()), (), (), *self.bounds[3:])

    # Reading

    def lets_pass(self, s: State, message: int) -> bool:
        """Has the message ended for good: applied, closed, or dead where dead ones are skipped."""
        return s.outcome[message] in (APPLIED, CLOSED) or (s.outcome[message] == DEAD and self.bounds.skip)

    def unfinished(self, s: State, message: int) -> int:
        """Return the nearest unfinished message before this one, as the relay sees it in its rows, or NOTHING."""
        before = message - 1
        if before < 0 or s.kept[before] != HERE or s.outcome[before] == APPLIED:
            return NOTHING  # whoever was applied or pruned had nothing unfinished before it
        return self.unfinished(s, before) if self.lets_pass(s, before) else before

    def blocker(self, s: State, message: int) -> int:
        """Return the message that this one must wait for, as the consumer sees it in the receipts, or NOTHING."""
        prev = s.prev[message]
        if prev == NOTHING or not self.on.key_prev:
            return NOTHING
        if s.kept[prev] == ALL_GONE:
            return prev
        passed = self.lets_pass(s, prev) and (s.outcome[prev] == APPLIED or not self.on.applied_only)
        return NOTHING if passed else prev

    # Actions

    def steps(self, s: State) -> Actions:
        yield from self.publish_first(s)
        for message in range(self.bounds.messages):
            yield from self.publish_again(s, message)
            if self.bounds.retention:
                yield from self.prune(s, message)
        for number, worker in enumerate(s.workers):
            if worker.phase != IDLE:
                yield from self.work(s, number, worker)
            elif number == 0 or s.workers[0].phase != IDLE:  # slots are alike
                yield from self.take(s, number)

    def publish_first(self, s: State) -> Actions:
        if PARKED in s.first:
            message = s.first.index(PARKED)
            yield f"{name(message)} leaves the park and is published", self.send_first(s, message)
        if UNREAD in s.first:
            message = s.first.index(UNREAD)
            if PARKED in s.first and self.on.park_followers:
                parked_too = s._replace(first=put(s.first, message, PARKED))
                yield f"relay parks {name(message)} behind the parked one", parked_too
            else:
                yield f"relay publishes {name(message)}", self.send_first(s, message)

    def send_first(self, s: State, message: int) -> State:
        sent = s._replace(first=put(s.first, message, PUBLISHED), published=(*s.published, message))
        return self.send(sent, message)

    def send(self, s: State, message: int) -> State:
        prev = self.unfinished(s, message) if self.on.resolve_predecessor else message - 1
        return one_more(s._replace(prev=put(s.prev, message, prev)), message)

    def publish_again(self, s: State, message: int) -> Actions:
        if s.kept[message] != HERE:
            return
        retry = s.retry[message]
        if retry == DUE or (retry >= WAITS_FOR and self.on.early_has_due_time):
            why = "asked for" if retry == DUE else "after the timeout"
            sent = self.send(s._replace(retry=put(s.retry, message, NOT_ASKED)), message)
            yield f"relay publishes {name(message)} again, {why}", sent
        held = any(worker.message == message for worker in s.workers)
        lost = s.first[message] == PUBLISHED and not s.copies[message] and not retry and not held
        if lost and s.outcome[message] == NO_RECEIPT:
            yield f"reconcile publishes {name(message)} again", self.send(s, message)

    def prune(self, s: State, message: int) -> Actions:
        outcome = s.outcome[message]
        final = outcome in (APPLIED, CLOSED) or (outcome == DEAD and not self.on.dead_is_kept)
        in_turn = self.unfinished(s, message) == NOTHING or not self.on.prune_in_turn
        if s.kept[message] == HERE and final and in_turn:
            yield f"retention deletes {name(message)}", s._replace(kept=put(s.kept, message, ROW_GONE))
        elif s.kept[message] == ROW_GONE:
            yield f"the receipt of {name(message)} is forgotten", s._replace(kept=put(s.kept, message, ALL_GONE))

    def take(self, s: State, number: int) -> Actions:
        who = f"W{number + 1}"
        for message, copies in enumerate(s.copies):
            if not copies:
                continue
            taken = s._replace(copies=put(s.copies, message, copies - 1))
            running = any(worker.message == message and worker.phase >= RUNNING for worker in s.workers)
            # A copy beyond the horizon is refused, so no copy outlives the receipt (the reconcile model).
            if s.outcome[message] or running:
                yield f"{who} takes {name(message)}: duplicate or in progress", taken
                continue
            blocker = self.blocker(s, message)
            if blocker == NOTHING:
                yield f"{who} runs {name(message)}", with_worker(taken, number, Worker(RUNNING, message))
            else:
                early = with_worker(taken, number, Worker(EARLY, message, blocker))
                yield f"{who} finds {name(message)} too early", early

    def work(self, s: State, number: int, worker: Worker) -> Actions:
        who, message, idle = f"W{number + 1}", worker.message, with_worker(s, number, Worker())
        if worker.phase == EARLY:
            asked = s._replace(retry=put(s.retry, message, WAITS_FOR + worker.other))
            then = worker._replace(phase=RECHECK) if self.on.recheck_after_early else Worker()
            yield f"{who} asks for {name(message)} after {name(worker.other)}", with_worker(asked, number, then)
        elif worker.phase == RECHECK:
            missed = s.retry[message] == WAITS_FOR + worker.other and self.lets_pass(s, worker.other)
            yield f"{who} looks once more", self.pull(idle, message) if missed else idle
        elif worker.phase == RUNNING and self.on.pull_after_commit:
            yield f"{who} commits {name(message)}", with_worker(self.apply(s, message), number, Worker(PULL, message))
        elif worker.phase == RUNNING:
            found = next(iter(waiting(s, message)), NOTHING)
            pulled = with_worker(s, number, Worker(PULLED, message, found))
            yield f"{who} pulls forward who waits for {name(message)}", pulled
        elif worker.phase == PULLED:
            after = self.apply(idle, message)
            yield f"{who} commits {name(message)}", after if worker.other < 0 else self.pull(after, worker.other)
        elif worker.phase == PULL:
            yield f"{who} pulls forward who waits for {name(message)}", self.pull_all(idle, message)

    def apply(self, s: State, message: int) -> State:
        return s._replace(outcome=put(s.outcome, message, APPLIED), applied=(*s.applied, message))

    def pull(self, s: State, message: int) -> State:
        return s._replace(retry=put(s.retry, message, DUE))

    def pull_all(self, s: State, message: int) -> State:
        for other in waiting(s, message):
            s = self.pull(s, other)
        return s

    # What may go wrong, and what people do

    def disturbances(self, s: State) -> Actions:
        if s.parkings and UNREAD in s.first:
            yield from self.refuse(s._replace(parkings=s.parkings - 1), s.first.index(UNREAD))
        for message in range(self.bounds.messages):
            yield from self.disturb_copies(s, message)
            running = any(worker.message == message and worker.phase in (RUNNING, PULLED) for worker in s.workers)
            if s.outcome[message] == NO_RECEIPT and not running:
                yield from self.end_from_outside(s, message)
            if s.outcome[message] == DEAD and s.kept[message] == HERE:
                yield from self.operate(s, message)
        for number, worker in enumerate(s.workers):
            if worker.phase != IDLE and s.worker_deaths:
                back = one_more(with_worker(s, number, Worker()), worker.message)
                back = back._replace(worker_deaths=s.worker_deaths - 1)
                yield f"W{number + 1} dies, its copy of {name(worker.message)} comes back", back
            if worker.phase == RUNNING and s.dead:
                failed = with_worker(s, number, Worker())
                yield f"the handler of {name(worker.message)} fails for good", self.bury(failed, worker.message)

    def refuse(self, s: State, message: int) -> Actions:
        parked = s._replace(first=put(s.first, message, PARKED))
        yield f"the queue refuses {name(message)}: parked", parked
        if not self.on.one_in_flight and message + 1 < self.bounds.messages:
            through = self.send_first(parked, message + 1)
            yield f"the queue refuses {name(message)}, {name(message + 1)} of the same batch gets through", through

    def disturb_copies(self, s: State, message: int) -> Actions:
        if s.losses and s.copies[message]:
            lost = s._replace(copies=put(s.copies, message, 0), losses=s.losses - 1)
            yield f"the broker loses {name(message)}", lost
        if s.repeats and s.copies[message] == 1:
            repeated = s._replace(copies=put(s.copies, message, 2), repeats=s.repeats - 1)
            yield f"the broker repeats {name(message)}", repeated

    def end_from_outside(self, s: State, message: int) -> Actions:
        if s.closings:
            closed = s._replace(outcome=put(s.outcome, message, CLOSED), closings=s.closings - 1)
            yield f"{name(message)} is cancelled", self.pull_all(closed, message)
        if s.dead and s.first[message] == UNREAD and s.first.index(UNREAD) == message:
            sent = s._replace(first=put(s.first, message, PUBLISHED))
            yield f"relay dead-letters {name(message)}", self.bury(sent, message)

    def bury(self, s: State, message: int) -> State:
        dead = s._replace(outcome=put(s.outcome, message, DEAD), dead=s.dead - 1)
        return self.pull_all(dead, message) if self.bounds.skip else dead

    def operate(self, s: State, message: int) -> Actions:
        discarded = s._replace(outcome=put(s.outcome, message, CLOSED))
        yield f"operator discards {name(message)}", self.pull_all(discarded, message)
        if s.dead_retries and not (self.bounds.skip and self.on.skipped_is_final):
            again = s._replace(outcome=put(s.outcome, message, NO_RECEIPT), dead_retries=s.dead_retries - 1)
            yield f"operator retries {name(message)}", self.pull(again, message)

    # Properties

    def settled(self, s: State) -> bool:
        ended = [outcome != NO_RECEIPT for outcome in s.outcome]
        if DEAD in s.outcome and not self.bounds.skip:
            ended = ended[: s.outcome.index(DEAD)]
        return all(ended)

    @property
    def invariants(self) -> Mapping[str, Callable[[State], bool]]:
        return {
            "published_in_order": lambda s: rising(s.published),
            "order": lambda s: rising(s.applied),
            "dead_blocks": self.dead_blocks,
            "no_missed_pull": self.no_missed_pull,
        }

    def dead_blocks(self, s: State) -> bool:
        running = [worker.message for worker in s.workers if worker.phase == RUNNING]
        return self.bounds.skip or not any(DEAD in s.outcome[:message] for message in running)

    def no_missed_pull(self, s: State) -> bool:
        if s.worker_deaths < self.bounds.worker_deaths:
            return True
        at_it = {(worker.phase, worker.message) for worker in s.workers}
        for message, retry in enumerate(s.retry):
            awaited = retry - WAITS_FOR
            if awaited < 0 or s.kept[awaited] == ALL_GONE or not self.lets_pass(s, awaited):
                continue
            if not at_it & {(PULL, awaited), (EARLY, message), (RECHECK, message)}:
                return False
        return True

    @property
    def landmarks(self) -> Mapping[str, Callable[[State], bool]]:
        return {
            "delivered before its predecessor": lambda s: any(worker.phase == EARLY for worker in s.workers),
            "waits for the one before the closed one": lambda s: s.retry[2:] == (WAITS_FOR,) and s.outcome[1] == CLOSED,
            "blocked by a dead message": lambda s: DEAD in s.outcome and any(retry >= WAITS_FOR for retry in s.retry),
            "all applied": lambda s: len(s.applied) == self.bounds.messages,
        }


def rising(messages: tuple[int, ...]) -> bool:
    return all(earlier < later for earlier, later in pairwise(messages))


def put(values: tuple[int, ...], index: int, value: int) -> tuple[int, ...]:
    return (*values[:index], value, *values[index + 1 :])


def with_worker(s: State, number: int, worker: Worker) -> State:
    return s._replace(workers=(worker, s.workers[1]) if number == 0 else (s.workers[0], worker))


def one_more(s: State, message: int) -> State:
    return s._replace(copies=put(s.copies, message, min(s.copies[message] + 1, MAXIMUM_COPIES)))


def waiting(s: State, message: int) -> list[int]:
    return [other for other, retry in enumerate(s.retry) if retry == WAITS_FOR + message]

"""Nothing is forgotten before its receipt exists, and no receipt before its copies.

Modelled: the life of one message after its commit: first publication from its window, the reconcile sweep, its
`outbox_due` row, its `inbox_retry` row and the handover of that into `outbox_due`, retention of the message row,
forgetting of the receipt after the horizon H, one worker, and a broker that drops, repeats and forgets. Copies
carry `published_at`; the broker keeps them without order, so reordering needs no action of its own.

Bounds: `Bounds`. Time has a few ticks, H is one tick; at most two copies wait in the broker.

Disturbances: the broker loses a copy, forgets everything or repeats a copy; a worker dies; a handler fails (retry
or dead); the relay is killed, or freezes and is replaced, and the zombie does its pending action at any later
time; an operator retries the dead letter.

Invariants
- no_loss: an outcome can still be reached (guarantee 2; see explorer)
- nothing_forgotten: the message row goes only after a terminal outcome that stands (guarantee 2, safety half)
- exactly_once_effects: at most one committed effect (guarantee 3)
- dedup_horizon: no copy runs that was published longer than H ago (guarantee 5)
- receipt_outlives_copies: once the receipt of an applied message is gone, no copy that may run is left, not even
  in the hands of a zombie (guarantee 5)

Abstracted away, and why nothing is hidden by that
- Receipt timeouts and the evidence (popped, not held, two looks) only delay a republication. Here it may happen at
  any moment, too early as well. That evidence cannot delay for ever is the one thing kept (`foreign_front`).
- One worker, whose look and lock are one step: races for the receipt are the receipts model.
- Fenced writes of a zombie do nothing (the log model); what is left to it is a publish, and deletes in an inbox
  that lives in another database, where no statement can hang on the epoch.
- Retention has no age: pruning early is the worse case.
- Applied stands for cancelled, expired and discarded too: outcomes that nobody takes back. Dead is apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.explorer import Removal

__all__ = ["DEEP", "EXPLORED", "REMOVALS", "Bounds", "Protections", "Reconcile", "State"]


@dataclass(frozen=True)
class Protections:
    """What makes forgetting safe; each can be removed alone."""

    sweep: bool = True  # published without a receipt becomes due again
    sweep_atomic: bool = True  # the due row and the swept mark are one commit
    due_kept_until_receipt: bool = True  # off: the due row goes with the publish
    due_before_retry_deleted: bool = True  # handover: first the due row, then the delete
    retry_deleted_by_version: bool = True  # handover deletes the very row it read; off: by key
    receipt_before_forgetting: bool = True  # retention takes a message only if it is terminal
    dead_is_kept: bool = True  # retention takes no dead message: that outcome can be taken back
    receipt_after_message: bool = True  # a receipt goes only after its message is gone
    receipt_kept_for_horizon: bool = True  # ... and H after it was written
    horizon_refusal: bool = True  # a copy published longer than H ago is refused
    age_checked_at_look: bool = True  # age and receipt are judged at one instant; off: age first
    look_before_resume: bool = True  # a leader that resumes a window publishes only what has no receipt
    stamp_before_look: bool = True  # published_at is no younger than the look that found no receipt
    evidence_capped: bool = True  # evidence that says nothing delays a republication, but not for ever


class Bounds(NamedTuple):
    ticks: int = 3
    losses: int = 1
    repeats: int = 1
    failures: int = 1
    takeovers: int = 1
    worker_deaths: int = 1
    dead_retries: int = 1
    foreign_front: bool = False  # the queue never shows a message of ours at its consuming end


SHORT = Bounds(0, 1, 0, 0, 1, 0, 0)
AGED = Bounds(2, 0, 1, 0, 1, 0, 0)
OPERATED = Bounds(0, 0, 0, 1, 1, 0, 1)

# Two ticks are the least in which a receipt can be forgotten: with failures and an operator, and with a broker that
# repeats and workers that die; three for copies and zombies alone; and two failures, the least for a second version
# of `inbox_retry`, without ageing.
EXPLORED = (
    Bounds(2, 1, 0, 1, 1, 0, 1),
    Bounds(2, 1, 1, 0, 1, 1, 0),
    Bounds(3, 0, 1, 0, 1, 0, 0),
    Bounds(0, 1, 1, 2, 1, 0, 1),
)

DEEP = (Bounds(), Bounds(2, 2, 1, 2, 1, 0, 1))  # too long for every test run

REMOVALS: Mapping[str, Removal[Bounds]] = {
    "sweep": Removal("no_loss", SHORT),
    "sweep_atomic": Removal("no_loss", SHORT),
    "due_kept_until_receipt": Removal("no_loss", Bounds(0, 2, 0, 0, 0, 0, 0)),
    "due_before_retry_deleted": Removal("no_loss", OPERATED),
    "retry_deleted_by_version": Removal("no_loss", Bounds(0, 0, 1, 2, 1, 0, 1)),
    "receipt_before_forgetting": Removal("nothing_forgotten", SHORT),
    "dead_is_kept": Removal("nothing_forgotten", OPERATED),
    "receipt_after_message": Removal("exactly_once_effects", AGED),
    "receipt_kept_for_horizon": Removal("exactly_once_effects", AGED),
    "horizon_refusal": Removal("exactly_once_effects", AGED),
    "age_checked_at_look": Removal("exactly_once_effects", AGED),
    "look_before_resume": Removal("exactly_once_effects", AGED),
    "stamp_before_look": Removal("exactly_once_effects", AGED),
    "evidence_capped": Removal("no_loss", SHORT._replace(foreign_front=True)),
}

HORIZON = 1
MAXIMUM_WAITING = 2
APPLIED, DEAD = 1, 2
# What a relay has in hand between reading and writing. `detail` is a stamp, a version or an answer.
IDLE, FIRST, FIRST_SENT, AGAIN, OVER, SWEEPING, MARKED, HANDED, TAKEN, PRUNING = range(10)
RESTING, HOLDS, RUNS = range(3)  # the worker


class Hand(NamedTuple):
    phase: int = IDLE
    detail: int = 0


class State(NamedTuple):
    now: int
    row: bool  # the message row is there
    passed: bool  # the position is past it
    swept: bool
    due: bool
    retry: int  # version of the `inbox_retry` row, 0 = none
    versions: int
    receipt: int
    receipt_at: int
    outcome: int  # history: the terminal outcome that stands, also after the receipt is forgotten
    effects: int
    ran_old: bool  # history
    copies: tuple[int, ...]  # their published_at
    relay: Hand
    zombie: Hand
    worker: Hand
    losses: int
    repeats: int
    failures: int
    takeovers: int
    worker_deaths: int
    dead_retries: int


Actions = Iterator[tuple[str, State]]


class Reconcile:
    """The model; see the module's docstring."""

    liveness = "no_loss"

    def __init__(self, bounds: Bounds | None = None, protections: Protections | None = None) -> None:
        self.bounds = bounds or Bounds()
        self.on = protections or Protections()

    def initial(self) -> State:
        idle = Hand()
        budgets = self.bounds[1:-1]
        return State(
            0, True, False, False, False, 0, 0, 0, 0, 0, 0, False, (), idle, idle, Hand(RESTING), *budgets
        )  # fmt: skip

    def steps(self, s: State) -> Actions:
        if s.now < self.bounds.ticks:
            yield f"time passes: {s.now + 1}", s._replace(now=s.now + 1)
        if s.relay.phase == IDLE:
            yield from self.choose(s)
        else:
            yield from self.write(s._replace(relay=Hand()), s.relay)
        yield from self.resume(s._replace(zombie=Hand()), s.zombie)
        yield from self.work(s)
        if self.may_forget_receipt(s):
            yield "the receipt is forgotten", s._replace(receipt=0, receipt_at=0)

    # The relay: first it reads, later it writes

    def choose(self, s: State) -> Actions:
        if s.row and not s.passed:
            # Only a resumed window can hold a message that has a receipt already.
            skipped = s.receipt and self.on.look_before_resume
            hand = Hand(FIRST_SENT) if skipped else Hand(FIRST, s.now)
            yield f"relay reads the window{', skips what is received' if skipped else ''}", s._replace(relay=hand)
        if s.row and s.passed and not s.swept and self.on.sweep:
            word = "finds the receipt" if s.receipt else "finds no receipt"
            yield f"the sweep {word}", s._replace(relay=Hand(SWEEPING, s.receipt))
        if s.due:
            yield from self.look_at_due(s)
        if s.retry and not s.row:
            yield "relay drops a request for a message that is gone", s._replace(retry=0)
        elif s.retry and self.on.due_before_retry_deleted:
            yield "relay copies inbox_retry into outbox_due", s._replace(due=True, relay=Hand(HANDED, s.retry))
        elif s.retry:
            yield "relay deletes the inbox_retry row", s._replace(retry=0, relay=Hand(TAKEN))
        if self.may_prune(s):
            yield "retention finds the message old and finished", s._replace(relay=Hand(PRUNING))

    def look_at_due(self, s: State) -> Actions:
        if not s.row:
            yield "relay drops a due row without a message", s._replace(due=False)
        elif s.receipt:
            yield "relay finds the due message received", s._replace(relay=Hand(OVER))
        elif self.on.evidence_capped or not self.bounds.foreign_front:
            yield "relay finds the due message without receipt", s._replace(relay=Hand(AGAIN, s.now))

    def write(self, s: State, hand: Hand) -> Actions:
        """Do what the relay has in hand; *s* is the state with that hand empty."""
        if hand.phase in (FIRST, AGAIN):
            for label, sent in self.publish(s, hand):
                if hand.phase == FIRST:
                    yield f"relay {label}", sent._replace(relay=Hand(FIRST_SENT))
                else:
                    yield f"relay {label}", sent._replace(due=s.due and self.on.due_kept_until_receipt)
        elif hand.phase == SWEEPING:
            yield self.mark_swept(s, bool(hand.detail))
        elif hand.phase == HANDED:
            yield self.delete_retry(s, "relay", hand.detail)
        else:
            label, written = {
                FIRST_SENT: ("relay advances", s._replace(passed=True)),
                OVER: ("relay deletes the due row", s._replace(due=False)),
                MARKED: ("relay makes the message due", s._replace(due=True)),
                TAKEN: ("relay makes the message due", s._replace(due=True)),
                PRUNING: ("retention deletes the message", s._replace(row=False)),
            }[hand.phase]
            yield label, written

    def mark_swept(self, s: State, received: bool) -> tuple[str, State]:
        swept = s._replace(swept=True)
        if received:
            return "the sweep marks the window swept", swept
        if self.on.sweep_atomic:
            return "the sweep makes the message due and marks the window swept", swept._replace(due=True)
        return "the sweep marks the window swept", swept._replace(relay=Hand(MARKED))

    def publish(self, s: State, hand: Hand) -> Actions:
        stamp = hand.detail if self.on.stamp_before_look else s.now
        if len(s.copies) < MAXIMUM_WAITING:
            yield f"publishes a copy stamped {stamp}", s._replace(copies=add(s.copies, stamp))

    def delete_retry(self, s: State, who: str, version: int) -> tuple[str, State]:
        if s.retry == version or not self.on.retry_deleted_by_version:
            return f"{who} deletes the inbox_retry row it has copied", s._replace(retry=0)
        return f"{who} finds a newer inbox_retry row and leaves it", s

    def may_prune(self, s: State) -> bool:
        if not s.row or s.due or not s.passed:
            return False
        if not self.on.receipt_before_forgetting:
            return True
        return s.receipt == APPLIED or (s.receipt == DEAD and not self.on.dead_is_kept)

    def may_forget_receipt(self, s: State) -> bool:
        old = s.now > s.receipt_at + HORIZON or not self.on.receipt_kept_for_horizon
        return s.receipt != 0 and old and not (s.row and self.on.receipt_after_message)

    def resume(self, s: State, hand: Hand) -> Actions:
        """The zombie wakes: its writes to the outbox are fenced, the rest is not."""
        if hand.phase in (FIRST, AGAIN):
            for label, sent in self.publish(s, hand):
                yield f"the zombie wakes and {label}", sent
        elif hand.phase == HANDED:
            yield self.delete_retry(s, "the zombie wakes and", hand.detail)

    # The worker

    def work(self, s: State) -> Actions:
        stamp = s.worker.detail
        if s.worker.phase == RESTING:
            for waiting in sorted(set(s.copies)):
                taken = s._replace(copies=remove(s.copies, waiting), worker=Hand(HOLDS, waiting))
                if self.too_old(s, waiting) and not self.on.age_checked_at_look:
                    taken = taken._replace(worker=Hand(RESTING))
                yield f"worker takes the copy stamped {waiting}", taken
        elif s.worker.phase == HOLDS and s.receipt:
            yield "worker sees a duplicate and acks", s._replace(worker=Hand(RESTING))
        elif s.worker.phase == HOLDS and self.on.age_checked_at_look and self.too_old(s, stamp):
            yield "worker refuses a copy beyond the horizon", s._replace(worker=Hand(RESTING))
        elif s.worker.phase == HOLDS:
            beyond = s.ran_old or s.now - stamp > HORIZON
            yield "worker finds no receipt and runs the handler", s._replace(worker=Hand(RUNS, stamp), ran_old=beyond)
        elif s.worker.phase == RUNS and s.receipt:
            yield "worker meets the receipt and rolls back", s._replace(worker=Hand(RESTING))
        elif s.worker.phase == RUNS:
            yield "worker commits effect and receipt", self.end(s, APPLIED)._replace(effects=s.effects + 1)

    def too_old(self, s: State, stamp: int) -> bool:
        return self.on.horizon_refusal and s.now - stamp > HORIZON

    def end(self, s: State, outcome: int) -> State:
        return s._replace(receipt=outcome, receipt_at=s.now, outcome=outcome, worker=Hand(RESTING))

    # What may go wrong

    def disturbances(self, s: State) -> Actions:
        if s.losses and s.copies:
            yield "the broker forgets everything", s._replace(copies=(), losses=s.losses - 1)
            for stamp in sorted(set(s.copies)) if len(s.copies) > 1 else ():
                yield "the broker loses a copy", s._replace(copies=remove(s.copies, stamp), losses=s.losses - 1)
        stamps = {*s.copies, s.worker.detail} if s.worker.phase != RESTING else set(s.copies)
        for stamp in sorted(stamps) if s.repeats and len(s.copies) < MAXIMUM_WAITING else ():
            repeated = s._replace(copies=add(s.copies, stamp), repeats=s.repeats - 1)
            yield f"the broker repeats the copy stamped {stamp}", repeated
        if s.takeovers and s.relay.phase != IDLE:
            replaced = s._replace(relay=Hand(), takeovers=s.takeovers - 1)
            yield "the relay is killed, another leads", replaced
            if s.relay.phase in (FIRST, AGAIN, HANDED):
                yield "the relay freezes, another leads", replaced._replace(zombie=s.relay)
        if s.worker.phase != RESTING and s.worker_deaths and len(s.copies) < MAXIMUM_WAITING:
            back = s._replace(copies=add(s.copies, s.worker.detail), worker=Hand(RESTING))
            yield "the worker dies, its copy comes back", back._replace(worker_deaths=s.worker_deaths - 1)
        if s.failures and s.worker.phase == RUNS and not s.receipt:
            yield from self.fail(s._replace(failures=s.failures - 1))
        if s.dead_retries and s.receipt == DEAD:
            yield (
                "operator retries the dead letter",
                self.ask(s._replace(receipt=0, receipt_at=0, outcome=0))._replace(dead_retries=s.dead_retries - 1),
            )

    def fail(self, s: State) -> Actions:
        yield "the handler fails: retry", self.ask(s)._replace(worker=Hand(RESTING))
        yield "the handler fails: dead", self.end(s, DEAD)

    def ask(self, s: State) -> State:
        return s._replace(retry=s.versions + 1, versions=s.versions + 1)

    # Properties

    def settled(self, s: State) -> bool:
        return s.outcome != 0

    @property
    def invariants(self) -> Mapping[str, Callable[[State], bool]]:
        return {
            "nothing_forgotten": lambda s: s.row or s.outcome != 0,
            "exactly_once_effects": lambda s: s.effects <= 1,
            "dedup_horizon": lambda s: not s.ran_old,
            "receipt_outlives_copies": receipt_outlives_copies,
        }

    @property
    def landmarks(self) -> Mapping[str, Callable[[State], bool]]:
        return {
            "amnesia after publish": lambda s: s.passed and not s.copies and not s.receipt and s.losses == 0,
            "receipt forgotten, old copy left": lambda s: s.outcome == APPLIED and not s.receipt and bool(s.copies),
            "receipt forgotten, zombie about to publish": lambda s: (
                s.outcome == APPLIED and not s.receipt and s.zombie.phase in (FIRST, AGAIN)
            ),
            "duplicate delivery": lambda s: s.receipt != 0 and s.worker.phase == HOLDS,
            "dead letter retried": lambda s: s.dead_retries == 0 and s.retry != 0,
            "zombie holds an old version of inbox_retry": lambda s: s.zombie.phase == HANDED != s.retry,
        }


def receipt_outlives_copies(s: State) -> bool:
    if s.outcome != APPLIED or s.receipt:
        return True
    stamps = list(s.copies)
    stamps += [hand.detail for hand in (s.relay, s.zombie) if hand.phase in (FIRST, AGAIN)]
    if s.worker.phase == HOLDS:
        stamps.append(s.worker.detail)
    return all(s.now - stamp > HORIZON for stamp in stamps)


def add(copies: tuple[int, ...], stamp: int) -> tuple[int, ...]:
    return tuple(sorted((*copies, stamp)))


def remove(copies: tuple[int, ...], stamp: int) -> tuple[int, ...]:
    index = copies.index(stamp)
    return copies[:index] + copies[index + 1 :]

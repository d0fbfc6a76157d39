"""Who writes the one receipt of a message.

Modelled: one message (receipts and locks are per message, so others add nothing), copies of it in the broker, two
worker slots, and a closer: the application that cancels, the operator who discards, the relay that expires. A
worker takes a copy, takes the try-lock and looks for the receipt, runs the handler, commits effect and receipt,
acks. Failure, retry through `inbox_retry`, the dead outcome and `dead retry` are included.

Bounds: `Bounds`; at most three copies wait in the broker; two failed attempts make a dead letter.

Disturbances: a worker dies at any step, also between commit and ack; the broker hands out a copy twice, either as
an independent copy or by its visibility timeout (then the ack of either delivery removes both); the handler
fails; `expires_at` passes; cancel, discard, `dead retry`, `dead discard`.

Invariants
- exactly_once_effects: at most one committed effect (guarantee 3)
- one_terminal_outcome: at most one receipt (guarantee 2, "exactly one of")
- effect_iff_applied: an effect is committed if and only if the receipt says applied (guarantee 3)
- one_run_at_a_time: two handlers of one message never run side by side
- no_needless_run: no handler starts once the receipt is committed
- no_loss: a receipt can still be written (guarantee 2; see explorer)

Abstracted away, and why nothing is hidden by that
- The broker here loses nothing, so that no_loss rests on ack and `inbox_retry` alone; reconcile is another model.
- The lock and the look are one step only if the look comes second, with a snapshot of its own. In one statement the
  snapshot is older than the lock; that form is `look_after_lock=False`.
- There is no clock: due times come at any moment, timeouts fire too early as well as too late.
- An outage of the consumer's database is a worker that dies and comes back: roll back, requeue.
- The relay turns `inbox_retry` into a copy in one step; the handover is in the reconcile model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.explorer import Removal

__all__ = ["DEEP", "EXPLORED", "REMOVALS", "Bounds", "Protections", "Receipts", "State"]


@dataclass(frozen=True)
class Protections:
    """What makes an outcome terminal and an effect single; each can be removed alone."""

    unique_receipt: bool = True  # primary key (message_id, consumer)
    receipt_in_effect_transaction: bool = True
    try_lock: bool = True  # advisory lock on (consumer, message id) for the length of the transaction
    look_after_lock: bool = True  # off: lock and look share a statement, whose snapshot is older than the lock
    ack_after_commit: bool = True
    check_before_ack: bool = True  # who finds the message in progress asks for a later look before it acks
    dead_retry_atomic: bool = True  # receipt deleted and `inbox_retry` inserted in one commit


class Bounds(NamedTuple):
    copies: int = 1
    crashes: int = 2
    repeats: int = 2
    failures: int = 2
    closings: int = 2
    dead_retries: int = 1


# Two failures are the least for a dead letter, two closings for a race of outcomes; two crashes and two repeats, for
# both slots to lose a copy, without failures.
EXPLORED = (Bounds(1, 1, 1, 2, 2, 1), Bounds(1, 2, 2, 0, 1, 0))
DEEP = (Bounds(), Bounds(2, 3, 2, 2, 2, 1))  # too long for every test run
ONE = Bounds(1, 1, 0, 0, 0, 0)

# The key and the lock guard each other: with a look after the lock the key is never needed, so what the key is
# worth shows only where the look is older than the lock.
REMOVALS: Mapping[str, Removal[Bounds]] = {
    "unique_receipt": Removal("one_terminal_outcome", Bounds(), also=("look_after_lock",)),
    "receipt_in_effect_transaction": Removal("exactly_once_effects", ONE),
    "try_lock": Removal("one_run_at_a_time", Bounds()),
    "look_after_lock": Removal("no_needless_run", Bounds(2, 0, 0, 0, 0, 0)),
    "ack_after_commit": Removal("no_loss", ONE),
    "check_before_ack": Removal("no_loss", ONE._replace(repeats=1)),
    "dead_retry_atomic": Removal("no_loss", ONE._replace(failures=2, dead_retries=1)),
}

NONE, APPLIED, DEAD, CANCELLED, EXPIRED, DISCARDED = range(6)
OUTCOMES = ("", "applied", "dead", "cancelled", "expired", "discarded")
IDLE, TOOK, LOOKED, BUSY, RUNNING, EXPIRING, FAILED, EFFECT_ONLY, DONE = range(9)
CLOSER = 2  # its number as a holder of the lock, beside workers 0 and 1
NOBODY = -1
MAXIMUM_ATTEMPTS = 2
MAXIMUM_WAITING = 3


class Worker(NamedTuple):
    phase: int = IDLE
    redelivered: bool = True  # does the broker hand this copy out again if the worker dies
    saw_receipt: bool = False


class State(NamedTuple):
    waiting: int  # copies in the broker that no worker holds
    workers: tuple[Worker, Worker]
    closer: int  # the outcome that someone outside is about to commit, in a transaction that holds the lock
    lock: int
    receipts: tuple[int, ...]
    effects: int
    needless: bool  # history: a run started although the receipt was there
    retry: bool  # the row of `inbox_retry`
    attempts: int
    expired: bool
    crashes: int
    repeats: int
    failures: int
    closings: int
    dead_retries: int


Actions = Iterator[tuple[str, State]]


class Receipts:
    """The model; see the module's docstring."""

    liveness = "no_loss"

    def __init__(self, bounds: Bounds | None = None, protections: Protections | None = None) -> None:
        self.bounds = bounds or Bounds()
        self.on = protections or Protections()

    def initial(self) -> State:
        copies, *budgets = self.bounds
        return State(copies, (Worker(), Worker()), NONE, NOBODY, (), 0, False, False, 0, False, *budgets)

    # Writing

    def insert_receipt(self, s: State, outcome: int) -> State | None:
        """Return the state with one more receipt, or None on a conflict of the primary key."""
        if s.receipts and self.on.unique_receipt:
            return None
        return s._replace(receipts=(*s.receipts, outcome))

    def is_free(self, s: State) -> bool:
        return s.lock == NOBODY or not self.on.try_lock

    def take_lock(self, s: State, holder: int) -> State:
        return s._replace(lock=holder) if self.on.try_lock else s

    # Actions

    def steps(self, s: State) -> Actions:
        for number, worker in enumerate(s.workers):
            # Slots are alike, so an idle second slot waits while the first is idle too.
            if worker.phase != IDLE:
                yield from self.handle(s, number, worker)
            elif s.waiting and (number == 0 or s.workers[0].phase != IDLE):
                took = Worker(TOOK, redelivered=self.on.ack_after_commit)
                yield f"W{number + 1} takes a copy", put(s, number, took)._replace(waiting=s.waiting - 1)
        if s.retry and s.waiting < MAXIMUM_WAITING:
            yield "relay publishes what inbox_retry asks for", s._replace(retry=False, waiting=s.waiting + 1)
        if s.closer:
            yield from self.close(s)

    def handle(self, s: State, number: int, worker: Worker) -> Actions:
        who, held = f"W{number + 1}", worker.redelivered
        ended = put(s, number, Worker(DONE, held))
        if worker.phase == TOOK and not self.on.look_after_lock:
            saw = bool(s.receipts)
            word = "sees the receipt" if saw else "sees no receipt"
            yield f"{who} begins its statement: the snapshot {word}", put(s, number, Worker(LOOKED, held, saw))
        elif worker.phase in (TOOK, LOOKED):
            yield self.begin(s, number, worker)
        elif worker.phase == BUSY:
            yield f"{who} asks for a later look", ended._replace(retry=True)
        elif worker.phase == RUNNING:
            yield self.commit(s, number, worker)
        elif worker.phase == EXPIRING:
            released = ended._replace(lock=NOBODY)
            yield f"{who} commits the receipt: expired", self.insert_receipt(released, EXPIRED) or released
        elif worker.phase == FAILED:
            yield self.give_up(s, number, worker)
        elif worker.phase == EFFECT_ONLY:
            yield f"{who} commits the receipt: applied", self.insert_receipt(ended, APPLIED) or ended
        elif worker.phase == DONE:
            yield f"{who} acks", put(s, number, Worker())

    def begin(self, s: State, number: int, worker: Worker) -> tuple[str, State]:
        who, held = f"W{number + 1}", worker.redelivered
        if not self.is_free(s):
            phase = BUSY if self.on.check_before_ack else DONE
            return f"{who} does not get the lock", put(s, number, Worker(phase, held))
        seen = worker.saw_receipt if worker.phase == LOOKED else bool(s.receipts)
        if seen:
            return f"{who} sees a duplicate", put(s, number, Worker(DONE, held))
        locked = self.take_lock(s, number)
        if s.expired:
            return f"{who} gets the lock, finds the message expired", put(locked, number, Worker(EXPIRING, held))
        started = put(locked, number, Worker(RUNNING, held))
        return f"{who} gets the lock and runs the handler", started._replace(needless=bool(s.receipts))

    def commit(self, s: State, number: int, worker: Worker) -> tuple[str, State]:
        who = f"W{number + 1}"
        if not self.on.receipt_in_effect_transaction:
            effect = put(s, number, worker._replace(phase=EFFECT_ONLY))
            return f"{who} commits the effect alone", effect._replace(effects=s.effects + 1, lock=NOBODY)
        released = put(s, number, Worker(DONE, worker.redelivered))._replace(lock=NOBODY)
        after = self.insert_receipt(released, APPLIED)
        if after is None:
            return f"{who} meets the other receipt and rolls back", released
        return f"{who} commits effect and receipt", after._replace(effects=s.effects + 1)

    def give_up(self, s: State, number: int, worker: Worker) -> tuple[str, State]:
        """After a failure, in a fresh transaction: ask for a retry, or end as dead under the lock."""
        who = f"W{number + 1}"
        ended = put(s, number, Worker(DONE, worker.redelivered))
        if s.attempts < MAXIMUM_ATTEMPTS or not self.is_free(s):
            return f"{who} asks for a retry", ended._replace(retry=True)
        after = None if s.receipts and self.on.look_after_lock else self.insert_receipt(ended, DEAD)
        return f"{who} commits the receipt: dead", after or ended

    def close(self, s: State) -> Actions:
        word, released = OUTCOMES[s.closer], s._replace(closer=NONE, lock=NOBODY)
        yield f"the receipt '{word}' is committed", self.insert_receipt(released, s.closer) or released
        yield f"the transaction of '{word}' rolls back", released

    def disturbances(self, s: State) -> Actions:
        for number, worker in enumerate(s.workers):
            if worker.phase == IDLE:
                continue
            if s.crashes:
                yield self.kill(s, number, worker)
            if s.repeats and worker.redelivered and worker.phase != DONE and s.waiting < MAXIMUM_WAITING:
                again = put(s, number, worker._replace(redelivered=False))
                again = again._replace(repeats=s.repeats - 1, waiting=s.waiting + 1)
                yield f"the visibility timeout hands out W{number + 1}'s copy again", again
            if s.failures and worker.phase == RUNNING:
                failed = put(s, number, worker._replace(phase=FAILED))
                failed = failed._replace(lock=NOBODY, attempts=s.attempts + 1, failures=s.failures - 1)
                yield f"W{number + 1}'s handler fails and rolls back", failed
        if s.repeats and s.waiting < MAXIMUM_WAITING:
            yield "a second copy is published", s._replace(repeats=s.repeats - 1, waiting=s.waiting + 1)
        if not s.expired and self.bounds.closings:
            yield "expires_at passes", s._replace(expired=True)
        if s.closings and not s.closer:
            yield from self.begin_closing(s)
        yield from self.operate(s)

    def kill(self, s: State, number: int, worker: Worker) -> tuple[str, State]:
        after = put(s, number, Worker())._replace(crashes=s.crashes - 1)
        if s.lock == number:
            after = after._replace(lock=NOBODY)
        if not worker.redelivered:
            return f"W{number + 1} dies, its copy with it", after
        return f"W{number + 1} dies, its copy comes back", after._replace(waiting=s.waiting + 1)

    def begin_closing(self, s: State) -> Actions:
        spent = s._replace(closings=s.closings - 1)
        for outcome in (CANCELLED, DISCARDED) + ((EXPIRED,) if s.expired else ()):
            word = OUTCOMES[outcome]
            if not self.is_free(s):
                yield f"'{word}' finds the message running", spent
            elif not s.receipts:
                held = self.take_lock(spent, CLOSER)
                yield f"'{word}' gets the lock", held._replace(closer=outcome)

    def operate(self, s: State) -> Actions:
        if s.receipts == (DEAD,) and s.lock == NOBODY:
            yield "operator discards the dead letter", s._replace(receipts=(DISCARDED,))
            if s.dead_retries:
                again = s._replace(receipts=(), attempts=0, dead_retries=s.dead_retries - 1)
                if self.on.dead_retry_atomic:
                    again = again._replace(retry=True)
                yield "operator retries the dead letter", again

    # Properties

    def settled(self, s: State) -> bool:
        return bool(s.receipts)

    @property
    def invariants(self) -> Mapping[str, Callable[[State], bool]]:
        return {
            "exactly_once_effects": lambda s: s.effects <= 1,
            "one_terminal_outcome": lambda s: len(s.receipts) <= 1,
            "effect_iff_applied": lambda s: s.effects == s.receipts.count(APPLIED),
            "one_run_at_a_time": lambda s: any(worker.phase != RUNNING for worker in s.workers),
            "no_needless_run": lambda s: not s.needless,
        }

    @property
    def landmarks(self) -> Mapping[str, Callable[[State], bool]]:
        return {
            "two deliveries at once": lambda s: all(worker.phase != IDLE for worker in s.workers),
            "committed, not yet acked, and a copy left": lambda s: (
                bool(s.receipts) and bool(s.waiting) and any(worker.phase == DONE for worker in s.workers)
            ),
            "in progress elsewhere": lambda s: any(worker.phase == BUSY for worker in s.workers),
            "closer holds the lock while a worker waits for it": lambda s: (
                s.closer != NONE and any(worker.phase == TOOK for worker in s.workers)
            ),
            **{word: self.has_receipt(outcome) for outcome, word in enumerate(OUTCOMES) if outcome},
        }

    def has_receipt(self, outcome: int) -> Callable[[State], bool]:
        return lambda s: outcome in s.receipts


def put(s: State, number: int, worker: Worker) -> State:
    return s._replace(workers=(worker, s.workers[1]) if number == 0 else (s.workers[0], worker))

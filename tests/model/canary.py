"""The canary: a broker that lost data is noticed from the next reply, not only from missing receipts.

Modelled: `HINCRBY canary <epoch> <n>` in the pipeline of each publish, the reply, the advance that stores the last
confirmed value in the leader's row, the idle look, and the handover to the next leader; two relays.

Bounds: `Bounds`. A publish carries one or two messages. Each epoch has a field of its own, as in the design.

Disturbances: the broker forgets everything; it comes back from an older dump; a leader is killed at any step, also
between a push and its reply; a lease expires and the zombie goes on publishing.

Invariants
- amnesia_is_noticed: a state in which an advanced publication is lost and nobody knows is left again, by steps
  alone (the explorer's liveness property). It is a matter of time, not of loss: without it the receipt timeout
  finds the same messages later (the reconcile model).
- no_false_alarm: nobody calls amnesia unless the broker forgot something

Abstracted away, and why nothing is hidden by that
- No message is ever consumed: whatever is forgotten was still needed.
- Calling amnesia, starting the field anew and making all that is unreceipted due are one step: the leader's last
  write is fenced and a new leader starts over.

Left open, and shown by a test: an older dump *and* a leader that dies with a push in flight. The push raises the
restored counter to what the row says. The receipt timeout still finds the messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.explorer import Removal

__all__ = ["DEEP", "EXPLORED", "REMOVALS", "Bounds", "Canary", "Protections", "State"]


@dataclass(frozen=True)
class Protections:
    """What makes the canary see; each can be removed alone."""

    counter: bool = True  # off: only the nonce tells, which an older dump brings back
    handover: bool = True  # a new leader checks the field of the leader before it
    field_before_handover: bool = True  # ... after it has started its own; off: its own starts with the first publish
    nonce: bool = True  # a mark that only the start of a term sets, so that no increment recreates it


class Bounds(NamedTuple):
    publishes: int = 3
    forgets: int = 2
    restores: int = 0
    kills: int = 1
    expiries: int = 1


# Amnesia with every kind of handover; an older dump under one leader; and no amnesia at all, for false alarms.
EXPLORED = (Bounds(3, 1), Bounds(2, 2), Bounds(4, 0, 1, 0, 0), Bounds(3, 0, 0, 1, 1))
DEEP = (Bounds(), Bounds(3, 1, 0, 2, 1), Bounds(2, 0, 0, 2, 2), Bounds(5, 0, 2, 0, 0))  # too long for every test run
ONE = Bounds(2, 1, 0, 1, 0)

REMOVALS: Mapping[str, Removal[Bounds]] = {
    "counter": Removal("amnesia_is_noticed", Bounds(2, 0, 1, 0, 0)),
    "handover": Removal("amnesia_is_noticed", ONE),
    "field_before_handover": Removal("amnesia_is_noticed", ONE._replace(publishes=1), also=("nonce",)),
    "nonce": Removal("amnesia_is_noticed", ONE),
}

STANDBY, STARTED, CHECKING, IDLE, SENT, CONFIRMED = range(6)
NAMES = "AB"
BATCHES = (1, 2)


class Relay(NamedTuple):
    phase: int = STANDBY
    epoch: int = 0
    last: int = 0  # the last confirmed value of its field
    size: int = 0
    reply: int = 0
    push: int = 0  # number of the push in hand
    gone: bool = False  # history: the broker has forgotten the push in hand


class State(NamedTuple):
    fields: tuple[int, ...]  # by epoch
    nonces: tuple[int, ...]  # by epoch
    pushes: int
    dump: tuple[tuple[int, ...], tuple[int, ...], int] | None
    epoch: int
    stored: tuple[int, int]  # the canary in the leader's row: epoch and value
    advanced: int  # the latest push that the position has passed
    lost: bool  # history: an advanced publication is lost, and nobody knows
    false_alarm: bool  # history
    relays: tuple[Relay, Relay]
    publishes: int
    forgets: int
    restores: int
    kills: int
    expiries: int


Actions = Iterator[tuple[str, State]]


class Canary:
    """The model; see the module's docstring."""

    liveness = "amnesia_is_noticed"

    def __init__(self, bounds: Bounds | None = None, protections: Protections | None = None) -> None:
        self.bounds = bounds or Bounds()
        self.on = protections or Protections()

    def initial(self) -> State:
        none = (0,) * (2 + self.bounds.kills + self.bounds.expiries)  # one slot for each epoch there can be
        relays = (Relay(), Relay())
        return State(none, none, 0, None, 0, (0, 0), 0, False, False, relays, *self.bounds)

    # Reading and writing the broker

    def is_low(self, s: State, epoch: int, value: int) -> bool:
        """Does the broker know less than it once confirmed to the leader of that epoch."""
        if epoch == 0:
            return False
        counter = self.on.counter and s.fields[epoch] < value
        return counter or (self.on.nonce and not s.nonces[epoch])

    def start_field(self, s: State, who: int, relay: Relay, phase: int) -> State:
        last = s.fields[relay.epoch] + 1
        after = s._replace(fields=put(s.fields, relay.epoch, last), nonces=put(s.nonces, relay.epoch, 1))
        return with_relay(after, who, Relay(phase, relay.epoch, last))

    # Actions

    def steps(self, s: State) -> Actions:
        led = any(relay.phase != STANDBY and relay.epoch == s.epoch for relay in s.relays)
        for who, relay in enumerate(s.relays):
            if relay.phase == STANDBY and not led and (s.epoch or who == 0):  # relays are alike
                yield f"{NAMES[who]} acquires epoch {s.epoch + 1}", self.acquire(s, who)
            elif relay.phase != STANDBY and relay.epoch != s.epoch:
                yield f"{NAMES[who]} finds its term over", with_relay(s, who, Relay())
            if relay.phase != STANDBY:
                yield from self.lead(s, who, relay)

    def acquire(self, s: State, who: int) -> State:
        return with_relay(s, who, Relay(STARTED, s.epoch + 1))._replace(epoch=s.epoch + 1)

    def lead(self, s: State, who: int, relay: Relay) -> Actions:
        name, leads = NAMES[who], relay.epoch == s.epoch
        if relay.phase == STARTED and self.on.field_before_handover:
            yield f"{name} starts its field", self.start_field(s, who, relay, CHECKING)
        elif relay.phase in (STARTED, CHECKING):
            if leads:
                yield self.check_handover(s, who, relay)
        elif relay.phase == SENT:
            yield from self.read_reply(s, who, relay)
        else:
            if leads and self.is_low(s, relay.epoch, relay.last) and self.own_is_started(relay):
                yield f"{name} looks at its field: amnesia", self.alarm(s, who, relay)
            if relay.phase == IDLE and s.publishes:
                for size in BATCHES:
                    yield f"{name} publishes {size}", self.push(s, who, relay, size)
            if relay.phase == CONFIRMED and leads:
                yield f"{name} advances", self.advance(s, who, relay)

    def own_is_started(self, relay: Relay) -> bool:
        return self.on.field_before_handover or relay.last > 0

    def check_handover(self, s: State, who: int, relay: Relay) -> tuple[str, State]:
        if self.on.handover and self.is_low(s, *s.stored):
            return f"{NAMES[who]} checks the field of epoch {s.stored[0]}: amnesia", self.alarm(s, who, relay)
        checked = with_relay(s, who, relay._replace(phase=IDLE))
        if relay.last:
            checked = checked._replace(stored=(relay.epoch, relay.last))
        return f"{NAMES[who]} finds nothing amiss at the handover", checked

    def push(self, s: State, who: int, relay: Relay, size: int) -> State:
        reply = s.fields[relay.epoch] + size
        after = s._replace(fields=put(s.fields, relay.epoch, reply), pushes=s.pushes + 1, publishes=s.publishes - 1)
        return with_relay(after, who, relay._replace(phase=SENT, size=size, reply=reply, push=after.pushes))

    def read_reply(self, s: State, who: int, relay: Relay) -> Actions:
        low = self.on.counter and relay.reply < relay.last + relay.size
        if not low:
            confirmed = relay._replace(phase=CONFIRMED, last=relay.reply, size=0, reply=0)
            yield f"{NAMES[who]} reads a reply as expected", with_relay(s, who, confirmed)
        elif relay.epoch == s.epoch:
            yield f"{NAMES[who]} reads a low reply: amnesia", self.alarm(s, who, relay)

    def advance(self, s: State, who: int, relay: Relay) -> State:
        after = with_relay(s, who, Relay(IDLE, relay.epoch, relay.last))
        return after._replace(
            stored=(relay.epoch, relay.last),
            advanced=max(s.advanced, relay.push),
            lost=s.lost or relay.gone,
        )

    def alarm(self, s: State, who: int, relay: Relay) -> State:
        """Make all that is unreceipted due, and start the field anew."""
        forgot = (s.forgets, s.restores) != (self.bounds.forgets, self.bounds.restores)
        after = self.start_field(s, who, relay, IDLE)
        value = after.relays[who].last
        return after._replace(
            lost=False, stored=(relay.epoch, value), false_alarm=s.false_alarm or not forgot
        )  # fmt: skip

    # What may go wrong

    def disturbances(self, s: State) -> Actions:
        none = (0,) * len(s.fields)
        if s.forgets:
            yield "the broker forgets everything", self.forget(s._replace(forgets=s.forgets - 1), none, none, 0)
        if s.restores and s.dump is None:
            yield "the broker dumps its data", s._replace(dump=(s.fields, s.nonces, s.pushes))
        elif s.restores and s.dump:
            yield "the broker restarts from its dump", self.forget(s._replace(restores=s.restores - 1), *s.dump)
        for who, relay in enumerate(s.relays):
            if relay.phase != STANDBY and s.kills:
                yield f"{NAMES[who]} is killed", with_relay(s, who, Relay())._replace(kills=s.kills - 1)
            if s.expiries and relay.phase == STANDBY and s.relays[1 - who].epoch == s.epoch > 0:
                taken = self.acquire(s._replace(expiries=s.expiries - 1), who)
                yield f"{NAMES[1 - who]} freezes, {NAMES[who]} acquires epoch {taken.epoch}", taken

    def forget(self, s: State, fields: tuple[int, ...], nonces: tuple[int, ...], pushes: int) -> State:
        relays = [relay._replace(gone=relay.gone or relay.push > pushes) for relay in s.relays]
        lost = s.lost or s.advanced > pushes
        return s._replace(fields=fields, nonces=nonces, lost=lost, relays=(relays[0], relays[1]))

    # Properties

    def settled(self, s: State) -> bool:
        return not s.lost

    @property
    def invariants(self) -> Mapping[str, Callable[[State], bool]]:
        return {"no_false_alarm": lambda s: not s.false_alarm}

    @property
    def landmarks(self) -> Mapping[str, Callable[[State], bool]]:
        return {
            "amnesia after publish": lambda s: s.lost,
            "amnesia between push and reply": lambda s: any(r.phase == SENT and r.gone for r in s.relays),
            "zombie publishes after amnesia": lambda s: (
                s.lost and any(r.phase == SENT and r.epoch != s.epoch and not r.gone for r in s.relays)
            ),
            "amnesia during the handover": lambda s: s.lost and any(r.phase == CHECKING for r in s.relays),
        }


def put(values: tuple[int, ...], index: int, value: int) -> tuple[int, ...]:
    return (*values[:index], value, *values[index + 1 :])


def with_relay(s: State, who: int, relay: Relay) -> State:
    return s._replace(relays=(relay, s.relays[1]) if who == 0 else (s.relays[0], relay))

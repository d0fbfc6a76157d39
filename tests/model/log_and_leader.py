"""The log, read by snapshot difference, and the leader that reads it.

Modelled: writers' transactions that take an xid, insert one message (which takes a seq) and commit or roll back
at any later moment; the `outbox_leader` row (epoch, prev, next, last seq); two relays that acquire, open a window,
publish it message by message, advance, close or turn; a broker that notes the order of first publications.

Bounds: `Bounds`. A page is one message, the finest interleaving. A transaction carries at most one message,
either of the one ordering key or without a key.

Disturbances: a relay dies at any step; the lease of a live relay expires at any step, so that the other takes
over and the first goes on as a zombie; PostgreSQL crashes, forgets whatever was not flushed and hands out the
same xids again.

Invariants
- atomic: what was published belongs to a transaction that committed (guarantee 1)
- no_phantom: ... and still does after a crash of PostgreSQL (guarantee 1)
- nothing_skipped: whatever the position has passed was published (guarantee 2, the safety half)
- no_loss: every committed message can still reach the broker (guarantee 2, the liveness half; see explorer)
- published_in_order: messages of the key are first published in commit order (guarantee 6)
- position_never_back: no write of a relay moves the position back (guarantee 7)
- epoch_rises: no epoch is granted twice (guarantee 7)

Abstracted away, and why nothing is hidden by that
- A snapshot is the set of finished xids. `xid >= xmax or xid = ANY(xip)` is its complement, no more.
- Relays' own transactions have no slot among the xids: one more finished xid without a message adds nothing to a
  window. One thing about them matters and is kept (`Row.xids`): a statement that writes the row takes its xid
  *after* its snapshot, so once that version is on disk no xid that the snapshot saw is handed out again.
- Every commit of a writer is asynchronous; a synchronous one is that commit followed at once by a flush.
- There is no clock. A lease expires whenever it likes, so the trust window and the advisory lock, which only
  make that rarer or quicker, have nothing to add.
- Reading a page and publishing it is one step: a window's rows are fixed once it is open.
- The `win = $w` guard of the statements is left out: the epoch alone must do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.model.explorer import Removal
from tests.model.log_database import (
    CLOSED,
    COMMITTED,
    FLUSHED,
    IDLE,
    NAMES,
    OPEN,
    OWES,
    READY,
    ROLLED_BACK,
    ROW,
    SENT,
    STANDBY,
    Actions,
    Bounds,
    Database,
    Protections,
    Relay,
    Row,
    State,
    name,
)

__all__ = ["DEEP", "EXPLORED", "REMOVALS", "Bounds", "LogAndLeader", "Protections", "State"]

SMALL = Bounds(2, 0, 0)
CRASH = SMALL._replace(database_crashes=1)

# Three transactions are the least for a late row, a fresh row and an unseen one at once. Several faults in one run
# are explored with two: the third adds a bystander, at twenty times the states.
EXPLORED = (Bounds(3, 0, 1), Bounds(3, 1, 0), Bounds(2, 1, 1), Bounds(2, 0, 1, 1))

DEEP = (Bounds(3, 1, 1), Bounds(2, 2, 2), Bounds(2, 1, 1, 1), Bounds(3, 0, 0, 1))  # too long for every test run

REMOVALS: Mapping[str, Removal[Bounds]] = {
    "epoch_in_write": Removal("position_never_back", Bounds(2, 0, 1)),
    "window_logic": Removal("no_loss", SMALL),
    "late_committers": Removal("no_loss", SMALL),
    "visible_rows_only": Removal("atomic", SMALL),
    "order_by_seq": Removal("published_in_order", SMALL),
    "key_lock": Removal("published_in_order", SMALL),
    "open_durable": Removal("no_phantom", CRASH),
    "acquire_durable": Removal("epoch_rises", CRASH),
    "resume_same_window": Removal("nothing_skipped", Bounds(2, 0, 1)),
    "advance_after_publish": Removal("no_loss", Bounds(2, 1, 0)),
    "snapshot_dies_with_connection": Removal("no_loss", CRASH),
}


class LogAndLeader(Database):
    """The model; see the module's docstring."""

    liveness = "no_loss"

    def with_relay(self, s: State, who: int, relay: Relay) -> State:
        return s._replace(relays=(relay, s.relays[1]) if who == 0 else (s.relays[0], relay))

    def may_write(self, s: State, relay: Relay) -> bool:
        return relay.wired and (relay.epoch == s.row.epoch or not self.on.epoch_in_write)

    # Actions

    def steps(self, s: State) -> Actions:
        yield from self.transactions(s)
        for who, relay in enumerate(s.relays):
            if relay.phase == STANDBY:
                # Relays are alike, so the first term is A's.
                if not any(leads(s, other) for other in s.relays) and (s.row.epoch or who == 0):
                    yield f"{NAMES[who]} acquires epoch {s.row.epoch + 1}", self.acquire(s, who)
                continue
            if not self.may_write(s, relay):
                yield f"{NAMES[who]} finds its term over and stands by", self.with_relay(s, who, Relay())
            if relay.phase == IDLE:
                yield from self.look(s, who, relay)
            else:
                yield from self.work(s, who, relay)

    def acquire(self, s: State, who: int) -> State:
        row = s.row._replace(epoch=s.row.epoch + 1)
        if row.next != CLOSED and not self.on.resume_same_window:
            row = row._replace(next=self.snapshot(s))
        term = Relay(IDLE, row.epoch, polled=row.prev) if row.next == CLOSED else window(row)
        after = self.write(s, row, durable=self.on.acquire_durable)
        repeated = s.epoch_repeated or row.epoch <= s.top_epoch
        return self.with_relay(after, who, term)._replace(top_epoch=row.epoch, epoch_repeated=repeated)

    def look(self, s: State, who: int, relay: Relay) -> Actions:
        now = self.snapshot(s)
        last = 0 if self.on.window_logic else s.row.last
        if not self.pages(s, relay.polled, now, last):
            if s.database_crashes and relay.polled != now:
                yield f"{NAMES[who]} polls and finds nothing", self.with_relay(s, who, relay._replace(polled=now))
        elif self.may_write(s, relay) and s.row.next == CLOSED and self.pages(s, s.row.prev, now, last):
            row = s.row._replace(next=now, last=last)
            opened = self.write(s, row, durable=self.on.open_durable)
            yield f"{NAMES[who]} opens a window", self.with_relay(opened, who, window(row))

    def work(self, s: State, who: int, relay: Relay) -> Actions:
        pages = self.pages(s, relay.prev, relay.next, relay.last)
        if relay.phase == OWES:
            yield self.publish(s, who, relay._replace(phase=READY, page=0), relay.page - 1)
        elif relay.phase == SENT:
            if self.may_write(s, relay) and s.row.next != CLOSED:
                yield self.advance(s, who, relay._replace(phase=READY, page=0), relay.page - 1)
        elif pages and self.on.advance_after_publish:
            yield self.publish(s, who, relay._replace(phase=SENT, page=pages[0] + 1), pages[0])
        elif pages:
            if self.may_write(s, relay) and s.row.next != CLOSED:
                yield self.advance(s, who, relay._replace(phase=OWES, page=pages[0] + 1), pages[0])
        elif self.may_write(s, relay) and s.row.next != CLOSED:
            yield from self.finish(s, who, relay)

    def advance(self, s: State, who: int, relay: Relay, x: int) -> tuple[str, State]:
        to = self.rank(s, x)
        after = self.with_relay(self.write(s, s.row._replace(last=to)), who, relay._replace(last=to))
        return f"{NAMES[who]} advances past {name(x)}", after

    def publish(self, s: State, who: int, relay: Relay, x: int) -> tuple[str, State]:
        again = " again" if x in s.broker else ""
        broker = s.broker if again else (*s.broker, x)
        return f"{NAMES[who]} publishes {name(x)}{again}", self.with_relay(s, who, relay)._replace(broker=broker)

    def finish(self, s: State, who: int, relay: Relay) -> Actions:
        if not self.on.window_logic:
            closed = s.row._replace(next=CLOSED)
        else:
            closed = s.row._replace(prev=s.row.next, next=CLOSED, last=0)
        idle = Relay(IDLE, relay.epoch, polled=closed.prev)
        yield f"{NAMES[who]} closes the window", self.with_relay(self.write(s, closed), who, idle)
        now = self.snapshot(s)
        if self.on.window_logic and self.pages(s, closed.prev, now, 0):
            turned = self.write(s, closed._replace(next=now), durable=self.on.open_durable)
            yield f"{NAMES[who]} turns to the next window", self.with_relay(turned, who, window(turned.row))

    def disturbances(self, s: State) -> Actions:
        for who, relay in enumerate(s.relays):
            if relay.phase == STANDBY:
                continue
            if s.relay_crashes:
                killed = self.with_relay(s, who, Relay())._replace(relay_crashes=s.relay_crashes - 1)
                yield f"{NAMES[who]} is killed", killed
            if s.expiries and leads(s, relay) and s.relays[1 - who].phase == STANDBY:
                taken = self.acquire(s._replace(expiries=s.expiries - 1), 1 - who)
                gain = f"{NAMES[1 - who]} acquires epoch {taken.row.epoch}"
                yield f"{NAMES[who]} freezes, its lease expires, {gain}", taken
        if s.database_crashes:
            yield "PostgreSQL crashes and restarts", self.crash_database(s)

    # Properties

    def settled(self, s: State) -> bool:
        return all(x in s.broker for x, status in enumerate(s.status) if status in (COMMITTED, FLUSHED))

    @property
    def invariants(self) -> Mapping[str, Callable[[State], bool]]:
        return {
            "atomic": lambda s: all(s.status[x] not in (OPEN, ROW, ROLLED_BACK) for x in s.broker),
            "no_phantom": lambda s: all(s.status[x] in (COMMITTED, FLUSHED) for x in s.broker),
            "nothing_skipped": lambda s: self.passed(s).issubset(s.broker),
            "published_in_order": published_in_order,
            "position_never_back": lambda s: not s.went_back,
            "epoch_rises": lambda s: not s.epoch_repeated,
        }

    @property
    def landmarks(self) -> Mapping[str, Callable[[State], bool]]:
        return {
            "late committer is in prev.xip": lambda s: any(
                status in (OPEN, ROW) and s.row.prev >> x for x, status in enumerate(s.status)
            ),
            "late row and fresh row share a window": self.shares_window,
            "zombie holds a window under an old epoch": zombie_holds_window,
            "xid order and seq order differ in one window": lambda s: self.opened(s) != sorted(self.opened(s)),
        }

    def opened(self, s: State) -> list[int]:
        return [] if s.row.next == CLOSED else self.pages(s, s.row.prev, s.row.next, 0)

    def shares_window(self, s: State) -> bool:
        rows, below = self.opened(s), s.row.prev.bit_length()
        return any(x < below for x in rows) and any(x >= below for x in rows)


def leads(s: State, relay: Relay) -> bool:
    return relay.phase != STANDBY and relay.wired and relay.epoch == s.row.epoch


def window(row: Row) -> Relay:
    return Relay(READY, row.epoch, True, row.prev, row.next, row.last)


def published_in_order(s: State) -> bool:
    published = tuple(x for x in s.broker if s.keyed[x])
    return s.commits[: len(published)] == published


def zombie_holds_window(s: State) -> bool:
    return any(relay.phase in (READY, SENT) and relay.epoch != s.row.epoch for relay in s.relays)

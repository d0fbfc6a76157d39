"""PostgreSQL as far as the log needs it: xids, snapshots, the leader's row, and what a crash leaves.

The state of the log model and its lower half; what is modelled and why is said in log_and_leader.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Bounds", "Database", "Protections", "Relay", "Row", "State"]


@dataclass(frozen=True)
class Protections:
    """What keeps the log safe; each can be removed alone."""

    epoch_in_write: bool = True  # every write of a relay hangs on its epoch
    window_logic: bool = True  # off: a cursor, `seq > last`
    late_committers: bool = True  # off: only `xid >= prev.xmax`, forgetting prev.xip
    visible_rows_only: bool = True  # off: rows of open transactions are read too
    order_by_seq: bool = True  # off: order by (xid, seq)
    key_lock: bool = True  # one open transaction per ordering key
    open_durable: bool = True  # open and turn flush before the first publish
    acquire_durable: bool = True  # the epoch is in a logged table and flushed
    resume_same_window: bool = True  # a new leader goes on with the stored `next`
    advance_after_publish: bool = True
    snapshot_dies_with_connection: bool = True  # a snapshot in memory is dropped on reconnect


class Bounds(NamedTuple):
    transactions: int = 3
    relay_crashes: int = 1
    expiries: int = 1
    database_crashes: int = 0
    rollbacks: int = 1


FREE, OPEN, ROW, COMMITTED, FLUSHED, ROLLED_BACK = range(6)  # a transaction; COMMITTED is not yet on disk
STANDBY, IDLE, READY, SENT, OWES = range(5)  # a relay; OWES only if it advances before it publishes
CLOSED = -1  # `next` of a row without an open window


class Row(NamedTuple):
    """The one row of `outbox_leader`."""

    epoch: int
    prev: int
    next: int
    last: int
    xids: int = 0  # how many writers' xids lie below the xid of the statement that wrote this version


class Relay(NamedTuple):
    """A relay's own memory, which may be out of date."""

    phase: int = STANDBY
    epoch: int = 0
    wired: bool = True  # False: its connection died with PostgreSQL, it will find out at its next write
    prev: int = 0
    next: int = CLOSED
    last: int = 0
    page: int = 0  # the message in hand: published, not yet advanced past
    polled: int = 0  # the snapshot up to which polling found nothing


class State(NamedTuple):
    status: tuple[int, ...]
    seq: tuple[int, ...]
    keyed: tuple[bool, ...]
    next_seq: int
    row: Row
    flushed: Row  # what a crash of PostgreSQL would leave of the row
    relays: tuple[Relay, Relay]
    broker: tuple[int, ...]  # transactions in the order of first publication
    commits: tuple[int, ...]  # transactions of the key in commit order
    top_epoch: int  # history, for epoch_rises
    epoch_repeated: bool
    went_back: bool  # history, for position_never_back
    relay_crashes: int
    expiries: int
    database_crashes: int
    rollbacks: int


Actions = Iterator[tuple[str, State]]
NAMES = "AB"


def name(transaction: int) -> str:
    return f"T{transaction + 1}"


class Database:
    """Transactions of writers, and the row that relays write."""

    def __init__(self, bounds: Bounds | None = None, protections: Protections | None = None) -> None:
        self.bounds = bounds or Bounds()
        self.on = protections or Protections()

    def initial(self) -> State:
        count, row = self.bounds.transactions, Row(0, 0, CLOSED, 0)
        return State(
            (FREE,) * count, (0,) * count, (False,) * count, 1, row, row, (Relay(), Relay()), (), (), 0, False, False,
            *self.bounds[1:],
        )  # fmt: skip

    # What the database shows

    def snapshot(self, s: State) -> int:
        """Return the set of finished xids, as PostgreSQL would see it now."""
        counted = (COMMITTED, FLUSHED, ROLLED_BACK) + (() if self.on.visible_rows_only else (ROW,))
        seen = sum(1 << x for x, status in enumerate(s.status) if status in counted)
        if not self.on.late_committers:
            seen = (1 << seen.bit_length()) - 1
        return seen

    def rank(self, s: State, x: int) -> int:
        return s.seq[x] if self.on.order_by_seq else x + 1

    def pages(self, s: State, prev: int, upper: int, last: int) -> list[int]:
        """Return what a window still holds behind *last*, in the order of publication."""
        readable = (COMMITTED, FLUSHED) if self.on.visible_rows_only else (ROW, COMMITTED, FLUSHED)
        if not self.on.window_logic:
            prev, upper = 0, -1
        rows = [
            x for x, status in enumerate(s.status)
            if status in readable and upper >> x & 1 and not prev >> x & 1 and self.rank(s, x) > last
        ]  # fmt: skip
        return sorted(rows, key=lambda x: self.rank(s, x))

    def passed(self, s: State) -> set[int]:
        """Return the committed messages that the position has left behind."""
        row, committed = s.row, [x for x, status in enumerate(s.status) if status in (COMMITTED, FLUSHED)]
        if not self.on.window_logic:
            return {x for x in committed if self.rank(s, x) <= row.last}
        upper = 0 if row.next == CLOSED else row.next
        return {x for x in committed if row.prev >> x & 1 or (upper >> x & 1 and self.rank(s, x) <= row.last)}

    # What is written

    def transactions(self, s: State) -> Actions:
        for x, status in enumerate(s.status):
            if status == FREE:
                yield f"{name(x)} takes xid {x + 1}", s._replace(status=put(s.status, x, OPEN))
                break  # xids are handed out in order
            if status == OPEN:
                yield from self.insert(s, x)
            if status == ROW:
                done = COMMITTED if s.database_crashes else FLUSHED
                commits = (*s.commits, x) if s.keyed[x] else s.commits
                yield f"{name(x)} commits", s._replace(status=put(s.status, x, done), commits=commits)
            if status in (OPEN, ROW) and s.rollbacks:
                ended = s._replace(status=put(s.status, x, ROLLED_BACK), rollbacks=s.rollbacks - 1)
                yield f"{name(x)} rolls back", ended
        if s.database_crashes and (COMMITTED in s.status or s.flushed != s.row):
            yield "PostgreSQL flushes its log", self.flush(s)

    def insert(self, s: State, x: int) -> Actions:
        locked = any(s.keyed[other] for other, status in enumerate(s.status) if status == ROW)
        inserted = s._replace(status=put(s.status, x, ROW), seq=put(s.seq, x, s.next_seq), next_seq=s.next_seq + 1)
        yield f"{name(x)} adds a message, seq {s.next_seq}", inserted
        if not (locked and self.on.key_lock):
            keyed = (*s.keyed[:x], True, *s.keyed[x + 1 :])
            yield f"{name(x)} adds a message of the key, seq {s.next_seq}", inserted._replace(keyed=keyed)

    def flush(self, s: State) -> State:
        if not s.database_crashes:
            return s._replace(flushed=s.row)
        status = tuple(FLUSHED if status == COMMITTED else status for status in s.status)
        return s._replace(status=status, flushed=s.row)

    def write(self, s: State, row: Row, durable: bool = False) -> State:
        """Write the leader's row, noting whether the position went back."""
        if s.database_crashes:
            row = row._replace(xids=sum(status != FREE for status in s.status))
        after = s._replace(row=row)
        if not self.passed(s) <= self.passed(after):
            after = after._replace(went_back=True)
        # Without a crash of PostgreSQL to come, what is flushed and when makes no difference.
        return self.flush(after) if durable or not s.database_crashes else after

    def crash_database(self, s: State) -> State:
        """Keep what was flushed; xids above the highest one on disk are handed out again."""
        used = max((x + 1 for x, status in enumerate(s.status) if status == FLUSHED), default=0)
        used = max(used, s.flushed.xids)
        status = tuple(
            now if now in (FREE, FLUSHED) else (ROLLED_BACK if x < used else FREE) for x, now in enumerate(s.status)
        )
        kept = [now == FLUSHED for now in status]
        relays = tuple(self.disconnect(relay) for relay in s.relays)
        return s._replace(
            status=status,
            seq=tuple(seq if keep else 0 for seq, keep in zip(s.seq, kept, strict=True)),
            keyed=tuple(keyed and keep for keyed, keep in zip(s.keyed, kept, strict=True)),
            commits=tuple(x for x in s.commits if kept[x]),
            row=s.flushed._replace(xids=0),
            flushed=s.flushed._replace(xids=0),
            relays=(relays[0], relays[1]),
            database_crashes=s.database_crashes - 1,
        )

    def disconnect(self, relay: Relay) -> Relay:
        if relay.phase != IDLE:
            return relay if relay.phase == STANDBY else relay._replace(wired=False)
        return Relay() if self.on.snapshot_dies_with_connection else relay


def put(values: tuple[int, ...], index: int, value: int) -> tuple[int, ...]:
    return (*values[:index], value, *values[index + 1 :])

"""PostgreSQL as far as keys need it: rows that are changed or locked by one transaction, and how transactions end.

The state of the keys model and its lower half; what is modelled and why is said in keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeVar

from tests.model.key_calls import BEGIN, DEDUP, LOCK, UNIQUE, WRITE, Bounds, Op, Protections, program, read

T = TypeVar("T")

OPEN, COMMITTED, ROLLED_BACK = range(3)
INSERT, LOOK, JUDGE, TAKE = range(4)
ADDED, DUPLICATE, LIVE, CONFLICT = range(4)
UNWRITTEN, WRITTEN, ENDED, PRUNED = range(4)
NONE = NOBODY = -1


class Writer(NamedTuple):
    status: int = OPEN
    at: int = 0  # the place in its program
    phase: int = INSERT
    found: int = NONE  # the holder that it has looked at


class Row(NamedTuple):
    """A row of `outbox_key`, by the message that it names."""

    committed: int = NONE
    writer: int = NOBODY  # who has changed or locked it
    pending: int = NONE  # what he sees


class State(NamedTuple):
    writers: tuple[Writer, ...]
    rows: tuple[Row, ...]
    outcome: tuple[int, ...]
    holder: tuple[int, ...]  # the message that an answer names
    prev: tuple[int, ...]
    began: tuple[int, ...]  # when its call began
    fate: tuple[int, ...]
    log: tuple[int, ...]  # messages with an ordering key by seq
    line: tuple[int, ...]  # the same by commit
    denied: bool  # history: an ended message was called live
    clock: int
    ticks: int
    endings: int
    prunings: int
    dead_retries: int


Actions = Iterator[tuple[str, State]]


class Database:
    """The rows of `outbox_key` and the messages, as writers see and leave them."""

    def __init__(self, bounds: Bounds, protections: Protections | None = None) -> None:
        self.bounds = bounds
        self.on = protections or Protections()
        self.messages = read(self.bounds)
        writers = range(1 + max(message.writer for message in self.messages))
        asked = [[message for message in self.messages if message.writer == writer] for writer in writers]
        self.programs = [program(messages, self.bounds, self.on) for messages in asked]
        self.answered_at = {
            number: at + 1
            for ops in self.programs
            for at, op in enumerate(ops)
            for number in op.call
            if op.kind == WRITE
        }
        names = {op.key for ops in self.programs for op in ops if op.key}
        self.rows = {key: row for row, key in enumerate(sorted(names))}

    def initial(self) -> State:
        count, before = len(self.messages), [message for message in self.messages if message.writer == NOBODY]
        rows = [Row()] * len(self.rows)
        for message in before:
            keys = (message.dedup, message.unique, message.ordering + " lock", message.ordering + message.task)
            for key in self.rows.keys() & set(keys):
                rows[self.rows[key]] = Row(message.number)
        fate = tuple(WRITTEN if message.writer == NOBODY else UNWRITTEN for message in self.messages)
        line = tuple(message.number for message in before if message.ordering)
        none, nobody = (0,) * count, (NONE,) * count
        began = tuple(-1 if message in before and self.bounds.expired else 0 for message in self.messages)
        writers = (Writer(),) * len(self.programs)
        return State(writers, tuple(rows), none, nobody, nobody, began, fate, line, line, False, 0, *self.bounds[4:])

    # Reading

    def op(self, s: State, number: int) -> Op | None:
        writer, ops = s.writers[number], self.programs[number]
        return ops[writer.at] if writer.status == OPEN and writer.at < len(ops) else None

    def waits_for(self, s: State, number: int) -> int:
        """Return the writer that has the row which this one wants to change or lock, or NOBODY."""
        op, phase = self.op(s, number), s.writers[number].phase
        if op is None or op.kind in (BEGIN, WRITE) or phase in (LOOK, JUDGE):
            return NOBODY
        if not self.on.wait_for_inserter and phase == INSERT and op.kind in (DEDUP, UNIQUE):
            return NOBODY
        holder = s.rows[self.rows[op.key]].writer
        return NOBODY if holder == number else holder

    def sees(self, s: State, number: int, key: str) -> int:
        row = s.rows[self.rows[key]]
        return row.pending if row.writer == number else row.committed

    def is_committed(self, s: State, message: int) -> bool:
        writer = self.messages[message].writer
        written = s.fate[message] != UNWRITTEN
        return written and (writer == NOBODY or s.writers[writer].status == COMMITTED)

    def is_live(self, s: State, message: int, number: int) -> bool:
        """Is the message written, not ended, and visible to this writer."""
        own = self.messages[message].writer == number
        return s.fate[message] == WRITTEN and (own or self.is_committed(s, message))

    def is_over(self, s: State, message: int, now: int) -> bool:
        return s.began[message] < now  # a window is one tick

    # Writing

    def set(self, s: State, number: int, key: str, message: int) -> State:
        row = self.rows[key]
        return s._replace(rows=put(s.rows, row, Row(s.rows[row].committed, number, message)))

    def go(self, s: State, number: int, phase: int, found: int = NONE) -> State:
        return with_writer(s, number, Writer(OPEN, s.writers[number].at, phase, found))

    def next(self, s: State, number: int) -> State:
        """Go to the next statement that there is something to do for."""
        ops, at = self.programs[number], s.writers[number].at + 1
        while at < len(ops) and not self.applies(s, number, ops[at]):
            at += 1
        return with_writer(s, number, Writer(at=at))

    def applies(self, s: State, number: int, op: Op) -> bool:
        outcome = s.outcome[op.message.number]
        if op.kind == LOCK:
            return outcome == ADDED and s.rows[self.rows[op.key]].writer != number
        return op.kind in (BEGIN, WRITE) or outcome == ADDED

    def commit(self, s: State, number: int) -> State:
        rows = tuple(Row(row.pending) if row.writer == number else row for row in s.rows)
        line = (*s.line, *(message for message in s.log if self.messages[message].writer == number))
        return with_writer(s, number, Writer(COMMITTED))._replace(rows=rows, line=line)

    # Ending

    def roll_back(self, s: State, number: int) -> State:
        rows = tuple(Row(row.committed) if row.writer == number else row for row in s.rows)
        log = tuple(message for message in s.log if self.messages[message].writer != number)
        s = with_writer(s, number, Writer(ROLLED_BACK))._replace(rows=rows, log=log)
        for message in [message.number for message in self.messages if message.writer == number]:
            s = s._replace(outcome=put(s.outcome, message, ADDED), holder=put(s.holder, message, NONE))
            s = s._replace(prev=put(s.prev, message, NONE), began=put(s.began, message, 0))
            s = s._replace(fate=put(s.fate, message, UNWRITTEN))
        return s

    def prune(self, s: State, message: int) -> State:
        asked = self.messages[message]
        for key, row in self.rows.items():
            kept = key == asked.dedup and not self.is_over(s, message, s.clock)
            named = s.rows[row].committed == message or (key == asked.unique and not self.on.prune_by_holder)
            if named and not kept and s.rows[row].writer == NOBODY:
                s = s._replace(rows=put(s.rows, row, Row()))
        return s._replace(fate=put(s.fate, message, PRUNED))

    def retry(self, s: State, message: int) -> Actions:
        """The operator retries a dead letter: its receipt goes, so it is live again."""
        again, row = s._replace(fate=put(s.fate, message, WRITTEN)), self.rows.get(self.messages[message].unique)
        if row is not None and self.on.retry_takes_key:
            holder = s.rows[row].committed
            if s.rows[row].writer != NOBODY or (holder != NONE and self.is_live(s, holder, NOBODY)):
                return  # waits, or is refused
            again = again._replace(rows=put(again.rows, row, Row(message)))
        yield f"operator retries {name(message)}", again


def name(message: int) -> str:
    return f"m{message + 1}"


def put(values: tuple[T, ...], index: int, value: T) -> tuple[T, ...]:
    return (*values[:index], value, *values[index + 1 :])


def with_writer(s: State, number: int, writer: Writer) -> State:
    return s._replace(writers=put(s.writers, number, writer))

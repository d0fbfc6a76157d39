"""Writers that ask for the same keys at the same time: `outbox_write()` under READ COMMITTED.

Modelled: transactions of one `add` or `add_many` each, statement by statement: INSERT ON CONFLICT DO NOTHING, the look
at the holder, the look at its receipt, the UPDATE that takes over; the lock row of an ordering key, `key_prev`, the
messages themselves. PostgreSQL: INSERT and UPDATE wait for whoever has changed or locked the
row until that transaction ends, then judge the row anew; SELECT sees what is committed and one's own.

Bounds: `Bounds`; how writers are written down is said in key_calls.

Disturbances: a transaction rolls back at any point, also while it waits; a consumer ends a message; retention prunes an
ended one; an operator retries a dead letter; the length of a dedup window passes.

Invariants
- at_most_one_live: no two committed messages of one unique key that have not ended
- one_per_dedup_key: no two committed messages of one dedup key whose calls began within the window
- nobody_loses_all: whoever is told "duplicate" or "live" is told a message that is committed or his own, and that had
  not ended when it was called live; so of those who ask for a key and commit, one has a message
- no_deadlock: no circle of transactions that wait for each other
- chain_is_a_line: in each ordering key and task, commit order is the order of the log, and `key_prev` names the message
  before, unless that is pruned
- conflict_leaves_nothing: a committed key names a message that was written
- all_end: every transaction can end without help (see explorer)

Abstracted away, and why nothing is hidden by that
- The insert and the lock of an ordering key's row are one step: who finds the row gone inserts again.
- Pruning is one step that leaves locked keys alone (SKIP LOCKED): a retention that waits for them would need the order
  of locks, too. It keeps a dedup key until its window has passed.
- What an UPDATE without its compare-and-set finds is judged when it wakes: PostgreSQL would miss a row that was deleted
  and inserted again in between. That is a matter of the removal only.
- `dead retry` is one step: it has locked the row of the unique key, so it waits for whoever takes the key over.
- Refusals are counted by inserting a row: nobody waits there.

Found by this model, and fixed
- `repeat_follows_first`: within one call, the repeat of a message that is then refused was told an id never written
- a counter of refusals that sessions share, between two calls of one batch: a deadlock. Refusals are rows of their own
  now, and everything with a key is one call (`one_call`)
Found by this model, for parts that are not built yet
- `retry_takes_key`, `judge_under_lock`: bind whoever builds `dead retry`, which makes an ended message live again
- `prune_by_holder` and SKIP LOCKED bind retention
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations

from tests.model.explorer import Removal
from tests.model.key_calls import BEGIN, DEDUP, LINK, LOCK, UNIQUE, WRITE, Bounds, Op, Protections
from tests.model.key_database import (
    ADDED,
    COMMITTED,
    CONFLICT,
    DUPLICATE,
    ENDED,
    INSERT,
    JUDGE,
    LIVE,
    LOOK,
    NOBODY,
    NONE,
    OPEN,
    PRUNED,
    TAKE,
    UNWRITTEN,
    WRITTEN,
    Actions,
    Database,
    State,
    Writer,
    name,
    put,
    with_writer,
)

__all__ = ["DEEP", "EXPLORED", "REMOVALS", "Bounds", "Keys", "Protections", "State"]

# Three for one key, where the third meets what two have left; two for two keys in opposite order; repeats within a
# call; windows and unique keys that are taken over; lines of two tasks; chunks.
EXPLORED = (
    Bounds("d1 / d1 / d1'", before="d1", expired=True, ticks=1),
    Bounds("d1+d2 / d2+d1 / d1'", ticks=1),
    Bounds("u1 / u1 / u1", before="u1", endings=2, prunings=1, dead_retries=1),
    Bounds("d1u1+d2 / d2'+d1u1 / u1", before="u1", endings=1),
    Bounds("d1u1+d1 / u1+u1 / d1", before="u1", endings=1, prunings=1),
    Bounds("u2+u1 / u1+u2 / u2", before="u1+u2", chunk_size=1, endings=1),
    Bounds("o1+o1* / o1 / o1*", before="o1", endings=1, prunings=1),
    Bounds("o2+o1 / o1+o2 / o1", before="o1", chunk_size=1, endings=1, prunings=1),
    Bounds("d1u1o1+d2u2o2 / d2u2o2+d1u1o1", before="d1u1o1", expired=True, chunk_size=1, endings=1, prunings=1),
)

# Too long for every test run.
DEEP = (
    Bounds("d1+d2 / d2+d1 / d1'", before="d1", expired=True, ticks=2),
    Bounds("u1 / u1 / u1 / u1", before="u1", endings=3, prunings=2, dead_retries=1),
    Bounds("d1u1+d2u2 / d2u2+d1'u1 / u1+d2", before="u1", endings=2, prunings=1),
    Bounds("d1u1o1+d2u2o2 / d2u2o2+d1u1o1", before="d1u1o1+d2u2o2", expired=True, endings=2, prunings=2),
)

TWO = Bounds("u1 / u1")
REMOVALS: Mapping[str, Removal[Bounds]] = {
    "sorted_keys": Removal("no_deadlock", Bounds("d1+d2 / d2+d1")),
    "one_call": Removal("no_deadlock", Bounds("u1+u2 / u2+u1", chunk_size=1)),
    "wait_for_inserter": Removal("nobody_loses_all", Bounds("d1 / d1")),
    "compare_and_set_unique": Removal("at_most_one_live", TWO._replace(before="u1", endings=1)),
    "compare_and_set_dedup": Removal("one_per_dedup_key", Bounds("d1 / d1", before="d1", expired=True)),
    "take_back": Removal("conflict_leaves_nothing", Bounds("d1+d2'", before="d2")),
    "take_back_rejected": Removal("conflict_leaves_nothing", Bounds("d1u1", before="u1")),
    "repeat_follows_first": Removal("nobody_loses_all", Bounds("d1u1+d1u1", before="u1")),
    "claimed_in_call": Removal("at_most_one_live", Bounds("u1+u1")),
    "liveness_from_receipt": Removal("nobody_loses_all", Bounds("u1", before="u1", endings=1)),
    "lock_row": Removal("chain_is_a_line", Bounds("o1 / o1")),
    "prune_by_holder": Removal("at_most_one_live", TWO._replace(before="u1", endings=1, prunings=1)),
    "retry_takes_key": Removal("at_most_one_live", Bounds("u1", before="u1", endings=1, dead_retries=1)),
    "judge_under_lock": Removal("at_most_one_live", Bounds("u1", before="u1", endings=1, dead_retries=1)),
}


class Keys(Database):
    """The model; see the module's docstring."""

    liveness = "all_end"

    # Actions

    def steps(self, s: State) -> Actions:
        for number, writer in enumerate(s.writers):
            op = self.op(s, number)
            if writer.status == OPEN and op is None:
                yield f"T{number + 1} commits", self.commit(s, number)
            elif op is not None and self.waits_for(s, number) == NOBODY:
                yield self.act(s, number, op)

    def act(self, s: State, number: int, op: Op) -> tuple[str, State]:
        who = f"T{number + 1}"
        if op.kind in (DEDUP, UNIQUE):
            return (self.insert, self.look, self.judge, self.take)[s.writers[number].phase](s, number, op)
        if op.kind == BEGIN:
            now = tuple(s.clock if each in op.call else began for each, began in enumerate(s.began))
            return f"{who} begins a call", self.next(s._replace(began=now), number)
        if op.kind == LINK:
            return self.link(s, number, op)
        if op.kind == WRITE:
            return f"{who} writes its messages and has its answer", self.write(s, number, op)
        named = self.sees(s, number, op.key)  # LOCK
        locked = self.set(s, number, op.key, op.message.number if named == NONE else named)
        return f"{who} {'locks' if op.kind == LOCK else 'counts in'} {op.key}", self.next(locked, number)

    def insert(self, s: State, number: int, op: Op) -> tuple[str, State]:
        """INSERT ON CONFLICT DO NOTHING."""
        who, row = f"T{number + 1}", s.rows[self.rows[op.key]]
        if row.writer not in (number, NOBODY) and row.pending != NONE:  # did not wait
            outcome = DUPLICATE if op.kind == DEDUP else LIVE
            return f"{who} does not wait for {op.key}", self.refuse(s, number, op, outcome, row.pending)
        if self.sees(s, number, op.key) == NONE:
            return f"{who} inserts {op.key}", self.next(self.set(s, number, op.key, op.message.number), number)
        return f"{who} finds {op.key} taken", self.go(s, number, LOOK)

    def look(self, s: State, number: int, op: Op) -> tuple[str, State]:
        who, found, message = f"T{number + 1}", self.sees(s, number, op.key), op.message
        if found == NONE:
            return f"{who} finds {op.key} gone", self.go(s, number, INSERT)
        if op.kind == UNIQUE:
            return f"{who} sees {name(found)} behind {op.key}", self.go(s, number, JUDGE, found)
        if self.is_over(s, found, s.began[message.number]):
            return f"{who} sees {name(found)} behind {op.key}, its window over", self.go(s, number, TAKE, found)
        if self.messages[found].body == message.body:
            said = f"{who} sees that {name(message.number)} repeats {name(found)}"
            return said, self.refuse(s, number, op, DUPLICATE, found)
        return f"{who} meets a conflict: {op.key} is {name(found)}", self.give_up(s, number, op)

    def judge(self, s: State, number: int, op: Op) -> tuple[str, State]:
        who, found = f"T{number + 1}", s.writers[number].found
        claimed = found in op.call and self.on.claimed_in_call
        if claimed or self.is_live(s, found, number) or not self.on.liveness_from_receipt:
            denied = s._replace(denied=s.denied or s.fate[found] in (ENDED, PRUNED))
            return f"{who} is refused {op.key}: {name(found)} is live", self.refuse(denied, number, op, LIVE, found)
        return f"{who} sees that {name(found)} has ended", self.go(s, number, TAKE, found)

    def take(self, s: State, number: int, op: Op) -> tuple[str, State]:
        """UPDATE that takes the key over from the message that was looked at."""
        who, found, named = f"T{number + 1}", s.writers[number].found, self.sees(s, number, op.key)
        compares = self.on.compare_and_set_dedup if op.kind == DEDUP else self.on.compare_and_set_unique
        revived = op.kind == UNIQUE and self.on.judge_under_lock and self.is_live(s, found, number)
        if named == NONE or (compares and named != found) or revived:
            return f"{who} finds {op.key} changed", self.go(s, number, INSERT)
        return f"{who} takes {op.key} over", self.next(self.set(s, number, op.key, op.message.number), number)

    def refuse(self, s: State, number: int, op: Op, outcome: int, found: int) -> State:
        message = op.message.number
        s = s._replace(outcome=put(s.outcome, message, outcome), holder=put(s.holder, message, found))
        if outcome == LIVE and op.message.dedup and self.on.take_back_rejected:
            s = self.give_back(s, number, (message,))
        return self.next(s, number)

    def give_up(self, s: State, number: int, op: Op) -> State:
        """A conflict ends the call and the batch; the transaction may still commit."""
        asked = [message.number for message in self.messages if message.writer == number]
        for message in asked:
            if self.answered_at[message] > s.writers[number].at:
                s = s._replace(outcome=put(s.outcome, message, CONFLICT))
        s = self.give_back(s, number, op.call) if self.on.take_back else s
        return with_writer(s, number, Writer(at=len(self.programs[number])))

    def give_back(self, s: State, number: int, messages: tuple[int, ...]) -> State:
        for key in {self.messages[message].dedup for message in messages} - {""}:
            if self.sees(s, number, key) in messages:
                s = self.set(s, number, key, NONE)
        return s

    def link(self, s: State, number: int, op: Op) -> tuple[str, State]:
        who, message = f"T{number + 1}", op.message.number
        if s.writers[number].phase == INSERT:
            read = s._replace(prev=put(s.prev, message, self.sees(s, number, op.key)))
            return f"{who} reads the end of {op.key}", self.go(read, number, TAKE)
        last = self.set(s, number, op.key, message)
        return f"{who} puts {name(message)} at the end of {op.key}", self.next(last, number)

    def write(self, s: State, number: int, op: Op) -> State:
        for message in op.call:
            first = s.holder[message]
            if s.outcome[message] == ADDED:
                log = (*s.log, message) if self.messages[message].ordering else s.log
                s = s._replace(fate=put(s.fate, message, WRITTEN), log=log)
            elif first in op.call and s.outcome[first] == LIVE and self.on.repeat_follows_first:
                holder = put(s.holder, message, s.holder[first])
                s = s._replace(outcome=put(s.outcome, message, LIVE), holder=holder)
        return self.next(s, number)

    def disturbances(self, s: State) -> Actions:
        for number, writer in enumerate(s.writers):
            if writer.status == OPEN:
                yield f"T{number + 1} rolls back", self.roll_back(s, number)
        if s.ticks:
            yield "the length of a window passes", s._replace(clock=s.clock + 1, ticks=s.ticks - 1)
        for message in range(len(self.messages)):
            if not self.is_committed(s, message):
                continue
            if s.fate[message] == WRITTEN and s.endings:
                ended = s._replace(endings=s.endings - 1, fate=put(s.fate, message, ENDED))
                yield f"{name(message)} ends", ended
            elif s.fate[message] == ENDED and s.prunings:
                yield f"retention prunes {name(message)}", self.prune(s._replace(prunings=s.prunings - 1), message)
            if s.fate[message] == ENDED and s.dead_retries:
                yield from self.retry(s._replace(dead_retries=s.dead_retries - 1), message)

    # Properties

    def settled(self, s: State) -> bool:
        return all(writer.status != OPEN for writer in s.writers)

    @property
    def invariants(self) -> Mapping[str, Callable[[State], bool]]:
        return {
            "at_most_one_live": self.at_most_one_live,
            "one_per_dedup_key": self.one_per_dedup_key,
            "nobody_loses_all": self.nobody_loses_all,
            "no_deadlock": self.no_deadlock,
            "chain_is_a_line": self.chain_is_a_line,
            "conflict_leaves_nothing": self.conflict_leaves_nothing,
        }

    def at_most_one_live(self, s: State) -> bool:
        live = [each.unique for each in self.messages if each.unique and self.is_live(s, each.number, NOBODY)]
        return len(live) == len(set(live))

    def one_per_dedup_key(self, s: State) -> bool:
        there = [each for each in self.messages if each.dedup and self.is_committed(s, each.number)]
        return all(
            one.dedup != other.dedup or s.began[one.number] != s.began[other.number]
            for one, other in combinations(there, 2)
        )

    def nobody_loses_all(self, s: State) -> bool:
        if s.denied:
            return False
        for each in self.messages:
            if s.outcome[each.number] not in (DUPLICATE, LIVE):
                continue
            told, writer = s.holder[each.number], s.writers[each.writer]
            answered = writer.status == COMMITTED or writer.at >= self.answered_at[each.number]
            own = self.messages[told].writer == each.writer and s.fate[told] != UNWRITTEN
            if answered and not own and not self.is_committed(s, told):
                return False
        return True

    def no_deadlock(self, s: State) -> bool:
        for number in range(len(s.writers)):
            last = number
            for _ in s.writers:  # a circle is no longer than all of them
                last = self.waits_for(s, last) if last != NOBODY else NOBODY
            if last != NOBODY:
                return False
        return True

    def chain_is_a_line(self, s: State) -> bool:
        last: dict[tuple[str, str], int] = {}
        for message in s.line:
            line = (self.messages[message].ordering, self.messages[message].task)
            before = last.get(line, NONE)
            forgotten = before != NONE and s.fate[before] == PRUNED and s.prev[message] == NONE
            if s.prev[message] != before and not forgotten:
                return False
            if before != NONE and s.log.index(before) > s.log.index(message):
                return False
            last[line] = message
        return True

    def conflict_leaves_nothing(self, s: State) -> bool:
        return all(row.committed == NONE or self.is_committed(s, row.committed) for row in s.rows)

    @property
    def landmarks(self) -> Mapping[str, Callable[[State], bool]]:
        return {
            "two wait for one": lambda s: self.waiting(s) > 1,
            "two are about to take one key over": lambda s: (
                sum(writer.phase == TAKE and writer.found != NONE for writer in s.writers) > 1
            ),
            "a holder ended between the look and the answer": lambda s: any(
                writer.phase == JUDGE and s.fate[writer.found] == ENDED for writer in s.writers
            ),
            "committed after a conflict": lambda s: self.committed_with(s, CONFLICT),
            "committed after a refusal": lambda s: self.committed_with(s, LIVE),
            "a line of three": lambda s: any(s.prev[last] in s.line[1:] for last in s.line),
            "a new line behind a pruned message": self.begins_anew,
        }

    def waiting(self, s: State) -> int:
        return sum(self.waits_for(s, number) != NOBODY for number in range(len(s.writers)))

    def committed_with(self, s: State, outcome: int) -> bool:
        told = [each.writer for each in self.messages if s.outcome[each.number] == outcome]
        return any(s.writers[writer].status == COMMITTED for writer in told)

    def begins_anew(self, s: State) -> bool:
        pruned = [message for message in s.line if s.fate[message] == PRUNED]
        tasks = {self.messages[message].task for message in pruned}
        later = [message for message in s.line if message not in pruned and self.messages[message].task in tasks]
        return any(s.prev[message] == NONE for message in later)

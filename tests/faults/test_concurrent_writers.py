"""Sixteen writers on few keys, some rolled back, some at other isolation levels, with consumers that end messages.

Everything they were told is written down and held against what has committed. Two triggers of this test note which
snapshot wrote a message and which transaction wrote a receipt: so "before" is never a matter of clocks.
"""

import itertools
import os
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from outbox import Added, DedupConflict, Message, Outbox

OUTBOX = Outbox()
WRITERS = 16
TASKS = ("storm.one", "storm.two")
LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")

PREPARE = """
CREATE TABLE storm_message (id uuid PRIMARY KEY, snapshot pg_snapshot NOT NULL, level text NOT NULL);
CREATE TABLE storm_receipt (message_id uuid PRIMARY KEY, xid xid8 NOT NULL);
CREATE TABLE storm_told (
    committed boolean, outcome text, id uuid, dedup_key text, unique_key text, ordering_key text, body int,
    own boolean);
CREATE FUNCTION storm_note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF TG_TABLE_NAME = 'outbox_message' THEN
        INSERT INTO public.storm_message
            VALUES (NEW.id, pg_current_snapshot(), current_setting('transaction_isolation'));
    ELSE
        INSERT INTO public.storm_receipt VALUES (NEW.message_id, pg_current_xact_id());
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER storm_note AFTER INSERT ON outbox_message FOR EACH ROW EXECUTE FUNCTION storm_note();
CREATE TRIGGER storm_note AFTER INSERT ON inbox_receipt FOR EACH ROW EXECUTE FUNCTION storm_note();
INSERT INTO inbox_consumer (task, receipt_timeout) VALUES ('storm.one', '1 min'), ('storm.two', '1 min');
"""

# Each names what breaks one rule. "own": it names a message of the same transaction.
RULES = {
    "a message of a transaction that was rolled back": """
        SELECT id FROM outbox_message EXCEPT SELECT id FROM storm_told WHERE committed AND outcome = 'added'""",
    "a message that was promised and is not there": """
        SELECT id FROM storm_told WHERE committed AND outcome = 'added' EXCEPT SELECT id FROM outbox_message""",
    "a dedup key with two messages": """
        SELECT dedup_key FROM storm_told WHERE committed AND outcome = 'added' AND dedup_key IS NOT NULL
        GROUP BY 1 HAVING count(*) > 1""",
    "a dedup key that stands for no message, or for another one": """
        SELECT coalesce(k.key, t.dedup_key)
        FROM (SELECT * FROM outbox_key WHERE kind = 'dedup') k
        FULL JOIN (SELECT * FROM storm_told WHERE committed AND outcome = 'added' AND dedup_key IS NOT NULL) t
            ON t.dedup_key = k.key AND t.id = k.message_id
        WHERE k.key IS NULL OR t.id IS NULL""",
    "a duplicate of what is not committed": """
        SELECT t.id FROM storm_told t WHERE t.outcome = 'duplicate' AND (t.committed OR NOT t.own) AND NOT EXISTS (
            SELECT FROM storm_told o JOIN outbox_message m USING (id) WHERE o.id = t.id AND o.outcome = 'added'
                AND o.dedup_key = t.dedup_key AND o.body = t.body)""",
    "a conflict with what is not committed, or has the same body": """
        SELECT t.id FROM storm_told t WHERE t.outcome = 'conflict' AND NOT EXISTS (
            SELECT FROM storm_told o JOIN outbox_message m USING (id) WHERE o.id = t.id AND o.outcome = 'added')""",
    "a rejection for a message that is not committed": """
        SELECT t.id FROM storm_told t WHERE t.outcome = 'live' AND (t.committed OR NOT t.own) AND NOT EXISTS (
            SELECT FROM outbox_message m WHERE m.id = t.id AND (m.unique_key = t.unique_key
                -- With the answer of the earlier message in the batch that has its dedup key.
                OR (m.unique_key IS NOT NULL AND t.dedup_key IS NOT NULL)))""",
    "two live messages with one unique key": """
        SELECT unique_key, id FROM (
            SELECT m.unique_key, m.id, m.xid, s.snapshot, lag(m.id) OVER line AS before
            FROM outbox_message m JOIN storm_message s USING (id) WHERE m.unique_key IS NOT NULL
            WINDOW line AS (PARTITION BY m.unique_key ORDER BY m.seq)) b
        LEFT JOIN storm_receipt r ON r.message_id = b.before
        WHERE before IS NOT NULL AND NOT coalesce(r.xid = b.xid OR pg_visible_in_snapshot(r.xid, b.snapshot), false)""",
    "a unique key that is not held by its last message": """
        SELECT m.unique_key FROM outbox_message m WHERE m.unique_key IS NOT NULL
        GROUP BY 1 HAVING (array_agg(m.id ORDER BY m.seq DESC))[1] IS DISTINCT FROM (
            SELECT k.message_id FROM outbox_key k WHERE k.kind = 'unique' AND k.key = m.unique_key)""",
    "a key that everybody lost": """
        SELECT 'unique', unique_key FROM storm_told
        WHERE committed AND unique_key IS NOT NULL AND outcome <> 'duplicate'
        EXCEPT SELECT 'unique', unique_key FROM outbox_message
        UNION ALL (SELECT 'dedup', dedup_key FROM storm_told
            WHERE committed AND dedup_key IS NOT NULL AND outcome NOT IN ('live', 'conflict')
        EXCEPT SELECT 'dedup', dedup_key FROM storm_told WHERE committed AND outcome = 'added')""",
    "an ordered message that does not follow the one before": """
        SELECT id FROM (SELECT id, key_prev, lag(id) OVER (PARTITION BY ordering_key, task ORDER BY seq) AS before
            FROM outbox_message WHERE ordering_key IS NOT NULL) line
        WHERE key_prev IS DISTINCT FROM before""",
    "an ordered message that was written before the last one had committed": """
        SELECT id FROM (
            SELECT m.id, m.xid, m.task, s.snapshot, s.level,
                lag(m.xid) OVER line AS before, lag(m.task) OVER line AS other
            FROM outbox_message m JOIN storm_message s USING (id) WHERE m.ordering_key IS NOT NULL
            WINDOW line AS (PARTITION BY m.ordering_key ORDER BY m.seq)) line
        WHERE before <> xid AND NOT pg_visible_in_snapshot(before, snapshot)
            -- Above that the snapshot is older than the wait for a message of another task.
            AND (level = 'read committed' OR task = other)""",
    "an ordering key that does not end with its last message": """
        SELECT ordering_key, task FROM outbox_message m WHERE ordering_key IS NOT NULL
        GROUP BY 1, 2 HAVING (array_agg(m.id ORDER BY m.seq DESC))[1] IS DISTINCT FROM (SELECT k.message_id
            FROM outbox_key k WHERE k.kind = 'ordering' AND k.scope = m.task AND k.key = m.ordering_key)""",
    "a rejection that was not counted, or counted in vain": """
        SELECT * FROM (SELECT unique_key, live_id AS id, sum(count) AS counted FROM outbox_rejected GROUP BY 1, 2) r
        FULL JOIN (SELECT m.unique_key, id, count(*) AS told FROM storm_told t JOIN outbox_message m USING (id)
            WHERE t.committed AND t.outcome = 'live' GROUP BY 1, 2) t USING (unique_key, id)
        WHERE counted IS DISTINCT FROM told""",
    "a scheduled message without a plan, or a plan without one": """
        SELECT m.id, d.message_id FROM (SELECT id FROM outbox_message WHERE held) m
        FULL JOIN outbox_due d ON d.message_id = m.id WHERE m.id IS NULL OR d.message_id IS NULL""",
}


@dataclass(frozen=True)
class Plan:
    """One transaction: exactly one add or add_many."""

    messages: list[Message]
    many: bool
    chunk_size: int
    level: str
    savepoint: str
    commits: bool

    def add(self, handle: Any) -> list[Added]:
        if self.many:
            return list(OUTBOX.add_many(handle, self.messages, chunk_size=self.chunk_size))
        return [OUTBOX.add(handle, self.messages[0])]


class Transactions:
    """How a writer works: SQLAlchemy's Session or psycopg's connection."""

    def __init__(self, url: str, raw: bool, undo: ExitStack) -> None:
        self.raw = raw
        if raw:
            self.connection = undo.enter_context(closing(psycopg.connect(url)))
        else:
            self.engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://", 1), pool_size=1)
            undo.callback(self.engine.dispose)

    def run(self, plan: Plan, work: Callable[[Any], list[Added]]) -> None:
        """Begins, works, and ends as planned; whatever is raised, nothing is left open."""
        if not self.raw:
            with Session(self.engine.execution_options(isolation_level=plan.level)) as session:
                session.begin()
                work(session)
                session.commit() if plan.commits else session.rollback()
            return
        self.connection.isolation_level = psycopg.IsolationLevel[plan.level.replace(" ", "_")]
        try:
            self.connection.execute("SELECT 1")  # begins: or the block of a savepoint would be the transaction itself
            work(self.connection)
            self.connection.commit() if plan.commits else self.connection.rollback()
        except BaseException:
            self.connection.rollback()
            raise

    def savepoint(self, handle: Any, work: Callable[[], list[Added]], keeps: bool) -> list[Added]:
        if self.raw:
            with handle.transaction(force_rollback=not keeps):
                return work()
        nested = handle.begin_nested()
        added = work()
        nested.commit() if keeps else nested.rollback()
        return added


Told = tuple[bool, str, UUID, str | None, str | None, str | None, int, bool]


@dataclass
class Storm:
    url: str
    seed: int
    target: int
    told: list[Told] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    _fresh: Iterator[int] = field(default_factory=itertools.count)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _over: threading.Event = field(default_factory=threading.Event)

    def blow(self) -> None:
        with ExitStack() as undo, ThreadPoolExecutor(WRITERS + 2) as pool:
            handles = [Transactions(self.url, number % 2 == 0, undo) for number in range(WRITERS)]
            writers = [pool.submit(self._write, each, number) for number, each in enumerate(handles)]
            consumers = [pool.submit(self._consume, number) for number in range(2)]
            try:
                for each in writers:
                    each.result()
            finally:
                self._over.set()
            for each in consumers:
                each.result()
        with psycopg.connect(self.url) as connection, connection.cursor() as cursor:
            cursor.executemany("INSERT INTO storm_told VALUES (%s, %s, %s, %s, %s, %s, %s, %s)", self.told)

    def _plan(self, dice: random.Random) -> Plan:
        many = dice.random() < 0.3
        # Batches of one kind meet on more keys than those in which kinds are mixed.
        kinds = dice.choice(("d", "u", "o", "duo", "duo")) if many else "duo"
        messages = [self._message(dice, kinds) for _ in range(dice.randint(2, 8) if many else 1)]
        chunk_size = dice.choice((1, 2, 100, 100))
        return Plan(
            consistent(messages) if many else messages,
            many,
            chunk_size,
            dice.choices(LEVELS, (6, 1, 1))[0],
            dice.choices(("none", "released", "again", "undone"), (6, 2, 2, 1))[0],
            dice.random() > 0.15,
        )

    def _message(self, dice: random.Random, kinds: str) -> Message:
        """A new dedup key comes up all the time and is asked for by several writers at once; the others are few."""
        options: dict[str, Any] = {}
        body = 1
        often = 0.4 if kinds == "duo" else 0.9
        if "d" in kinds and dice.random() < often:
            number = next(self._fresh) // 8 + dice.randrange(3)
            options["dedup_key"] = f"d{number}"
            # Nearly always the same body for one key: the rest are conflicts.
            body = 2 if dice.random() < 0.03 else 1
        if "u" in kinds and dice.random() < often:
            options["unique_key"] = f"u{dice.randrange(12)}"
        if "o" in kinds and dice.random() < often:
            options["ordering_key"] = f"o{dice.randrange(8)}"
        elif dice.random() < 0.1:
            options["delay"] = 3600
        # The body is equal where the key is, whatever the task: one task for all that have a dedup key.
        task = TASKS[0] if "dedup_key" in options else dice.choice(TASKS)
        return Message(task, kwargs={"body": body}, **options)

    def _write(self, transactions: Transactions, number: int) -> None:
        dice = random.Random(self.seed * 1000 + number)
        while self.counts["added"] < self.target and not self.faults:
            plan = self._plan(dice)
            for _ in range(100):
                try:
                    self._transact(transactions, plan)
                except (psycopg.Error, sa.exc.DBAPIError) as error:
                    cause = error.orig if isinstance(error, sa.exc.DBAPIError) else error
                    if isinstance(cause, psycopg.errors.SerializationFailure) and plan.level != LEVELS[0]:
                        self._count("run again")  # as documented: the whole transaction, once more
                        continue
                    self.faults.append(f"{plan.level}: {type(cause).__name__}: {cause}")
                break
            else:
                self._count("given up")

    def _transact(self, transactions: Transactions, plan: Plan) -> None:
        kept: list[Added] = []
        undone: list[Added] = []
        conflict: list[DedupConflict] = []

        def add(handle: Any) -> list[Added]:
            try:
                return plan.add(handle)
            except DedupConflict as error:
                conflict.append(error)
                return []

        def work(handle: Any) -> list[Added]:
            if plan.savepoint in ("again", "undone"):
                undone.extend(transactions.savepoint(handle, lambda: add(handle), keeps=False))
            if plan.savepoint in ("none", "again"):
                kept.extend(add(handle))
            elif plan.savepoint == "released":
                kept.extend(transactions.savepoint(handle, lambda: add(handle), keeps=True))
            return kept

        transactions.run(plan, work)
        rows = [*self._rows(plan, kept, plan.commits), *self._rows(plan, undone, committed=False)]
        rows += [(False, "conflict", each.existing, None, None, None, 0, False) for each in conflict]
        with self._lock:
            self.told.extend(rows)
            for row in rows:
                self.counts[row[1] if row[0] or row[1] == "conflict" else "rolled back"] += 1
            self.counts[plan.level] += plan.commits
            self.counts["psycopg" if transactions.raw else "session"] += plan.commits

    def _rows(self, plan: Plan, answers: list[Added], committed: bool) -> Iterator[Told]:
        if not answers:
            return
        own = {each.id for each in answers if not each.duplicate}
        for message, each in zip(plan.messages, answers, strict=True):
            outcome = "live" if each.existing else "duplicate" if each.duplicate else "added"
            body: Any = message.kwargs["body"]
            key = message.dedup_key, message.unique_key, message.ordering_key
            yield committed, outcome, each.id, *key, body, each.id in own

    def _count(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1

    def _consume(self, number: int) -> None:
        """Ends messages that hold a unique key: applied, as a consumer would, or cancelled by the application."""
        dice = random.Random(self.seed * 1000 + WRITERS + number)
        with psycopg.connect(self.url) as connection:
            while not self._over.is_set():
                try:
                    self._end_some(connection, dice)
                except psycopg.Error as error:
                    self.faults.append(f"consumer: {type(error).__name__}: {error}")
                    connection.rollback()

    def _end_some(self, connection: psycopg.Connection[tuple[Any, ...]], dice: random.Random) -> None:
        found = connection.execute(
            "SELECT m.id, m.task FROM outbox_key k JOIN outbox_message m ON m.id = k.message_id"
            " WHERE k.kind = 'unique' AND NOT EXISTS (SELECT FROM inbox_receipt r WHERE r.message_id = m.id)"
        ).fetchall()
        connection.rollback()
        for message_id, task in dice.sample(found, min(len(found), 3)):
            if dice.random() < 0.3:
                outcome = OUTBOX.cancel(connection, message_id).outcome.value
            else:
                outcome = self._apply(connection, message_id, task)
            if dice.random() < 0.2:
                connection.rollback()
            else:
                connection.commit()
                self._count(f"ended: {outcome}")

    @staticmethod
    def _apply(connection: psycopg.Connection[tuple[Any, ...]], message_id: UUID, task: str) -> str:
        lock = "SELECT pg_try_advisory_xact_lock(hashtextextended(%s || ' ' || %s::text, 0))"
        if connection.execute(lock, [task, message_id]).fetchone() != (True,):
            return "busy"
        receipt = (
            "INSERT INTO inbox_receipt (message_id, consumer, status) VALUES (%s, %s, 'applied') ON CONFLICT DO NOTHING"
        )
        return "applied" if connection.execute(receipt, [message_id, task]).rowcount else "finished"


def consistent(messages: list[Message]) -> list[Message]:
    """One body for one dedup key: of a batch that contradicts itself the conflict would name a message of its own."""
    bodies: dict[str, object] = {}
    return [
        each
        for each in messages
        if each.dedup_key is None or bodies.setdefault(each.dedup_key, each.kwargs) == each.kwargs
    ]


def weather(url: str, target: int) -> None:
    seed = int(os.environ.get("OUTBOX_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
    sys.stderr.write(f"seed {seed} (OUTBOX_TEST_SEED={seed} draws the same plans again)\n")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(PREPARE)
    storm = Storm(url, seed, target)
    storm.blow()
    counts = dict(sorted(storm.counts.items()))
    sys.stderr.write(f"{counts}\n")
    assert storm.faults == [], "no deadlock, and nothing else that a writer should not see"
    with psycopg.connect(url) as connection:
        broken = {rule: connection.execute(text.encode()).fetchall()[:5] for rule, text in RULES.items()}
        took_over = connection.execute(
            "SELECT count(unique_key) - count(DISTINCT unique_key) FROM outbox_message"
        ).fetchone()
    assert {rule: rows for rule, rows in broken.items() if rows} == {}
    assert took_over is not None
    wanted = {*LEVELS, "psycopg", "session", "added", "duplicate", "live", "rolled back", "run again"}
    assert not {each for each in wanted if counts.get(each, 0) < 10}, "it was a storm"
    assert took_over[0] > 50
    assert counts.get("given up", 0) == 0


def test_keys_hold_among_sixteen_writers(database: str) -> None:
    weather(database, 1_000)


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_keys_hold_among_sixteen_writers_for_long(database: str) -> None:
    weather(database, 10_000)

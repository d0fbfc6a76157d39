"""One round of questions to the database, as values of gauges. See gauges.py for when and by whom it is asked."""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import psycopg

from outbox.migrations import REVISION, TABLES
from outbox.statements import quoted_schema
from relay.database import Database
from relay.metrics import catalog
from relay.metrics.labels import MOST_QUEUES, Bounded
from relay.queries.gauges import gauge_queries_for

Readings: TypeAlias = dict[str, dict[tuple[str, ...], float]]
"""Name of a metric → labels → value."""

STATES = ("ready", "retrying", "scheduled", "parked")
CATEGORIES = ("dead_letter", "manual_review")
MOST_COUNTED = 100_000
MOST_PROBED = 50_000
_ANSWER_WITHIN = "1000"


class Reader:
    """The questions about one outbox. What was once seen (a queue, a pause) is shown as zero when it is gone."""

    def __init__(
        self,
        schema: str,
        default_queue: str,
        *,
        queue: Bounded | None = None,
        epoch_seen: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._queries = gauge_queries_for(schema)
        self._schema = quoted_schema(schema)
        self._default_queue = default_queue
        self._queue = queue or Bounded(MOST_QUEUES)
        self._epoch_seen = epoch_seen
        self._queues = {default_queue}
        self._paused: set[str] = {"*"}
        self._questions = (
            self._lease,
            self._pending,
            self._unacknowledged,
            self._dead,
            self._pauses,
            self._transactions,
            self._tables,
            self._actions,
        )

    def read(self, connection: Database) -> tuple[Readings, bool]:
        """What was answered, and whether that is everything."""
        readings: Readings = {}
        answered = True
        for question in self._questions:
            try:
                # Each in a transaction of its own: one that takes too long spoils nothing for the others.
                readings |= question(connection)
            except psycopg.Error:
                answered = False
                if connection.closed or connection.broken:
                    break
        return readings, answered

    def _ask(self, connection: Database, statement: bytes, **parameters: object) -> list[tuple[Any, ...]]:
        with connection.transaction():
            connection.execute(self._queries.limit, {"milliseconds": _ANSWER_WITHIN})
            return connection.execute(statement, parameters).fetchall()

    def _lease(self, connection: Database) -> Readings:
        ((epoch, revision),) = self._ask(connection, self._queries.lease)
        self._epoch_seen(epoch)
        return {
            catalog.SCHEMA.name: {(): revision_number(revision)},
            catalog.SCHEMA_EXPECTED.name: {(): revision_number(REVISION)},
        }

    def _pending(self, connection: Database) -> Readings:
        most = {"most": MOST_COUNTED}
        rows = [(*each, "ready") for each in _whole(self._ask(connection, self._queries.ready, **most))]
        planned = self._ask(connection, self._queries.planned, **most)
        rows += [(queue, count, age, state) for queue, state, count, age in planned]
        rows += [(*each, "parked") for each in self._ask(connection, self._queries.parked, **most)]
        named = [((self._named(queue), state), count, age) for queue, count, age, state in rows]
        every = [(queue, state) for queue in self._queues for state in STATES]
        counts, ages = _sums(every, named)
        return {catalog.PENDING.name: counts, catalog.OLDEST_PENDING.name: ages}

    def _unacknowledged(self, connection: Database) -> Readings:
        rows = self._ask(connection, self._queries.unacknowledged, probed=MOST_PROBED)
        named = [((self._named(queue),), count, age) for queue, count, age in rows]
        counts, ages = _sums([(queue,) for queue in self._queues], named)
        return {catalog.UNACKNOWLEDGED.name: counts, catalog.OLDEST_UNACKNOWLEDGED.name: ages}

    def _dead(self, connection: Database) -> Readings:
        rows = self._ask(connection, self._queries.dead, most=MOST_COUNTED)
        found = {(category,): float(count) for category, count in rows}
        return {catalog.DEAD_LETTERS.name: {(category,): 0.0 for category in CATEGORIES} | found}

    def _pauses(self, connection: Database) -> Readings:
        rows = self._ask(connection, self._queries.paused)
        paused = {"*" if queue == "*" else self._queue(queue) for (queue,) in rows}
        self._paused |= paused
        return {catalog.PAUSED.name: {(queue,): float(queue in paused) for queue in self._paused}}

    def _transactions(self, connection: Database) -> Readings:
        ((age,),) = self._ask(connection, self._queries.transactions)
        return {catalog.OLDEST_TRANSACTION.name: {(): age}}

    def _tables(self, connection: Database) -> Readings:
        rows = self._ask(connection, self._queries.tables, schema=self._schema, tables=sorted(TABLES))
        return {
            catalog.TABLE_BYTES.name: {(table,): float(size) for table, size, _ in rows},
            catalog.DEAD_ROWS.name: {(table,): ratio for table, _, ratio in rows},
        }

    def _actions(self, connection: Database) -> Readings:
        rows = self._ask(connection, self._queries.actions)
        return {catalog.ACTIONS.name: {(action,): float(count) for action, count in rows}}

    def _named(self, queue: str | None) -> str:
        name = self._queue(queue or self._default_queue)
        self._queues.add(name)
        return name


def _whole(rows: Iterable[tuple[str | None, int, float, int]]) -> Iterator[tuple[str | None, float, float]]:
    """Counted to the limit: then the sequence says about how many there are, and each queue gets its share of that."""
    found = list(rows)
    counted = sum(count for _, count, _, _ in found)
    factor = max(1.0, found[0][3] / counted) if counted >= MOST_COUNTED else 1.0
    for queue, count, age, _ in found:
        yield queue, round(count * factor), age


def _sums(
    every: Iterable[tuple[str, ...]], rows: Iterable[tuple[tuple[str, ...], float, float | None]]
) -> tuple[dict[tuple[str, ...], float], dict[tuple[str, ...], float]]:
    """Counts added up and the greatest age a label; queues that share `__other__` come in several rows."""
    counts = dict.fromkeys(every, 0.0)
    ages = dict.fromkeys(counts, 0.0)
    for labels, count, age in rows:
        counts[labels] = counts.get(labels, 0.0) + count
        ages[labels] = max(ages.get(labels, 0.0), age or 0.0)
    return counts, ages


def revision_number(revision: str) -> int:
    """`outbox_0007` → 7: a gauge needs a number."""
    digits = re.search(r"\d+$", revision)
    return int(digits[0]) if digits else 0

"""Plans: publish what is scheduled, what a consumer asked for again, what reconcile missed and what was parked.

A plan for a task with a registered consumer stays until the receipt exists; only its time moves on. So a copy that the
broker loses is followed by another one, and a message is forgotten by nothing but its terminal outcome.
"""

import time
from datetime import UTC, datetime
from typing import Any

from relay.database import Database
from relay.dispatch import Dispatch
from relay.events import RetriesPlanned
from relay.lease import LeaseLost
from relay.outcome import Fates
from relay.parking import Parking
from relay.publication import Copy
from relay.queries import Queries
from relay.read import Log
from relay.window import Row

_COLUMNS = len(Row._fields)
_BEGINNING = datetime.min.replace(tzinfo=UTC)
# Looking from the beginning walks over everything that was settled under somebody's open snapshot. While that is cheap
# it is done every time; else only so often, and in between from the last place: late commits wait that long.
_CHEAP_SECONDS = 0.01
_FROM_BEGINNING_SECONDS = 2.0


class Due:
    """One term's look at `outbox_due`."""

    def __init__(
        self,
        connection: Database,
        queries: Queries,
        log: Log,
        dispatch: Dispatch,
        parking: Parking,
        batch_size: int,
    ) -> None:
        self._connection = connection
        self._queries = queries
        self._log = log
        self._dispatch = dispatch
        self._parking = parking
        self._batch_size = batch_size
        term = dispatch.publishing.term
        self._fence: dict[str, Any] = {"epoch": term.epoch, "holder": term.holder}
        self._since = _BEGINNING
        self._from_beginning_at = 0.0

    def step(self) -> int:
        """Publish at most one batch of what is due. Returns how many plans were settled."""
        self._collect()
        read_at = self._log.now()
        rows = self._look()
        if not rows:
            return 0
        plans = _in_order([_Plan(values) for values in rows])
        behind = {plan.row.id for plan in plans if plan.behind}
        copies = [plan.copy for plan in plans]
        fates = self._dispatch.send(copies, self._log.window_number, read_at, self._log.now(), behind, planned=True)
        self._settle(plans, fates)
        self._dispatch.tell(fates)
        return len(rows)

    def _collect(self) -> None:
        collected = self._connection.execute(self._queries.collect, self._fence).rowcount
        if collected:
            self._dispatch.publishing.observer(RetriesPlanned(collected))

    def _look(self) -> list[tuple[Any, ...]]:
        started = time.monotonic()
        if started >= self._from_beginning_at:
            self._since = _BEGINNING
        parameters = {"page": self._batch_size, "since": self._since}
        rows = self._connection.execute(self._queries.due, parameters, binary=True).fetchall()
        if self._since is _BEGINNING and time.monotonic() - started > _CHEAP_SECONDS:
            self._from_beginning_at = started + _FROM_BEGINNING_SECONDS
        if rows and started < self._from_beginning_at:
            self._since = rows[-1][-1]
        return rows

    def _settle(self, plans: "list[_Plan]", fates: Fates) -> None:
        parked = {one.row.id for one in fates.parked}
        over = {row.id for row in fates.expired} | {row.id for row, _ in fates.dead}
        finished: list[str] = []
        published: list[str] = []
        keys: list[str] = []
        for plan in plans:
            if plan.row.id in parked:
                continue
            if plan.row.id not in over:
                kept = plan.consumed and not plan.row.ended
                (published if kept else finished).append(plan.row.id)
            if plan.ordered and plan.row.ordering_key:
                keys.append(plan.row.ordering_key)
        parameters = self._fence | {"finished": finished, "published": published} | fates.parameters()
        if self._connection.execute(self._queries.settle, parameters).fetchone() == (0,):
            raise LeaseLost
        self._parking.release_keys(list(dict.fromkeys(keys)))


class _Plan:
    """A row of the due query."""

    def __init__(self, values: tuple[Any, ...]) -> None:
        self.row = Row._make(values[:_COLUMNS])
        publication, attempt, self.consumed, self.behind, _ = values[_COLUMNS:]
        self.copy = Copy(self.row, publication, attempt)
        self.ordered = self.row.ordering_key is not None and publication == 0


def _in_order(plans: list[_Plan]) -> list[_Plan]:
    """Those with an ordering key in the order of the log, whichever became due first; the others keep their places."""
    ordered = iter(sorted((plan for plan in plans if plan.ordered), key=lambda plan: plan.row.seq))
    return [next(ordered) if plan.ordered else plan for plan in plans]

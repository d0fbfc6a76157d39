"""Plans: publish again what a consumer asked for or what reconcile found missing, when it is due.

A plan for a task with a registered consumer stays until the receipt exists; only its time moves on. So a copy that the
broker loses is followed by another one, and a message is forgotten by nothing but its terminal outcome.
"""

from typing import Any

from relay.database import Database
from relay.lease import LeaseLost
from relay.publication import Copy
from relay.publishing import Publishing
from relay.queries import Queries
from relay.read import Log
from relay.window import Row

_COLUMNS = len(Row._fields)


class Due:
    """One term's look at `outbox_due`."""

    def __init__(
        self, connection: Database, queries: Queries, log: Log, publishing: Publishing, batch_size: int
    ) -> None:
        self._connection = connection
        self._queries = queries
        self._log = log
        self._publishing = publishing
        self._batch_size = batch_size
        self._fence: dict[str, Any] = {"epoch": publishing.term.epoch, "holder": publishing.term.holder}

    def step(self) -> int:
        """Publish at most one batch of what is due. Returns how many copies were published."""
        self._connection.execute(self._queries.collect, self._fence)
        read_at = self._log.now()
        rows = self._connection.execute(self._queries.due, {"page": self._batch_size}).fetchall()
        if not rows:
            return 0
        finished: list[str] = []
        published: list[str] = []
        copies: list[Copy] = []
        for values in rows:
            row, (publication, attempt, has_consumer, receipted) = Row(*values[:_COLUMNS]), values[_COLUMNS:]
            if receipted:
                finished.append(row.id)
            else:
                copies.append(Copy(row, publication, attempt))
                (published if has_consumer else finished).append(row.id)
        if copies:
            self._publishing.publish(copies, self._log.window_number, read_at)
        self._settle(finished, published)
        return len(copies)

    def _settle(self, finished: list[str], published: list[str]) -> None:
        parameters = self._fence | {"finished": finished, "published": published}
        if self._connection.execute(self._queries.settle, parameters).fetchone() == (0,):
            raise LeaseLost

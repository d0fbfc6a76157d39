"""Read the log window by window, and move the position. See window.py for what a window is."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from relay.database import Database
from relay.lease import LeaseLost, Term
from relay.queries import Queries
from relay.window import Batch, Bounds, Page, Row, Window, pages

_END_OF_LOG = 2**63 - 1


class Log:
    """The log as one term sees it. Every write is fenced by the term's epoch."""

    def __init__(self, connection: Database, queries: Queries, term: Term, page_size: int) -> None:
        self._connection = connection
        self._queries = queries
        self._fence: dict[str, Any] = {"epoch": term.epoch, "holder": term.holder}
        self._page_size = page_size
        self._ctid: str | None = None
        self._clock = (datetime.max.replace(tzinfo=UTC), 0.0)
        self.window_number = 0
        self.published = ""
        """The snapshot up to which everything is with the broker."""

    def now(self) -> datetime:
        """The database clock: its value at the last answer plus what has passed here since."""
        told, at = self._clock
        return told + timedelta(seconds=time.monotonic() - at)

    def resume(self) -> Window | None:
        """The window that the last leader left open, if any; raises LeaseLost when the term is over."""
        row = self._connection.execute(self._queries.position, self._fence | {"page": self._page_size}).fetchone()
        if row is None:
            raise LeaseLost
        return self._window(row)

    def open(self) -> Window | None:
        """A new window, durably, or None when nothing new has committed."""
        row = self._write(self._queries.open_at, self._queries.open, page=self._page_size)
        return None if row is None else self._window(row)

    def turn(self, window: Window) -> Window | None:
        """Close this window and open the next in one commit, or None when there is nothing to open."""
        row = self._write(self._queries.turn_at, self._queries.turn, page=self._page_size, window_no=window.number)
        return None if row is None else self._window(row)

    def close(self, window: Window) -> None:
        self._moved(self._write(self._queries.close_at, self._queries.close, window_no=window.number))
        self.published = window.next

    def advance(self, window: Window, last_seq: int) -> None:
        """Everything up to `last_seq` is with the broker."""
        self._moved(
            self._write(self._queries.advance_at, self._queries.advance, window_no=window.number, last_seq=last_seq)
        )

    def batches(self, window: Window) -> Iterator[Batch]:
        """The window's rows in order of seq, a page at a time."""
        if window.rows <= self._page_size:
            read_at = self.now()
            rows = self._rows(window, Page(window.last_seq, _END_OF_LOG, "0", str(_END_OF_LOG)))
            if rows:
                yield Batch(rows[-1].seq, rows, read_at)
            return
        for page in pages(window.last_seq, self._plan(window)):
            read_at = self.now()
            yield Batch(page.high, self._rows(window, page), read_at)

    def _plan(self, window: Window) -> list[Bounds]:
        parameters = {
            "prev": window.prev,
            "next": window.next,
            "last_seq": window.last_seq,
            "page": self._page_size,
        }
        return [Bounds(*row) for row in self._connection.execute(self._queries.plan, parameters)]

    def _rows(self, window: Window, page: Page) -> list[Row]:
        parameters = {
            "prev": window.prev,
            "next": window.next,
            "low": page.low,
            "high": page.high,
            "first_xid": page.first_xid,
            "last_xid": page.last_xid,
        }
        return [Row(*row) for row in self._connection.execute(self._queries.page, parameters)]

    def _write(self, by_ctid: bytes, by_key: bytes, **parameters: Any) -> tuple[Any, ...] | None:
        """By remembered place first, by key when the row has moved (the renewal moves it once a second)."""
        if self._ctid is not None:
            row = self._connection.execute(by_ctid, self._fence | parameters | {"ctid": self._ctid}).fetchone()
            if row is not None:
                return row
        return self._connection.execute(by_key, self._fence | parameters).fetchone()

    def _moved(self, row: tuple[Any, ...] | None) -> None:
        if row is None:
            raise LeaseLost
        self._ctid = row[0]
        self._clock = (row[1], time.monotonic())

    def _window(self, row: tuple[Any, ...]) -> Window | None:
        self._ctid, number, prev, following, last_seq, rows, now = row
        self._clock = (now, time.monotonic())
        self.window_number, self.published = number, prev
        return None if following is None else Window(number, prev, following, last_seq, rows)

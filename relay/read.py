"""Read the log window by window, and move the position. See window.py for what a window is."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from relay.ahead import read_ahead
from relay.appetite import Appetite
from relay.database import Database
from relay.lease import LeaseLost, Term
from relay.outcome import Fates
from relay.queries import Queries
from relay.window import END_OF_LOG, Batch, Bounds, Page, Row, Window, only_page, pages


class Log:
    """The log as one term sees it. Every write is fenced by the term's epoch."""

    def __init__(
        self,
        connection: Database,
        queries: Queries,
        term: Term,
        page_size: int,
        ahead: Callable[[], AbstractContextManager[Database]] | None = None,
    ) -> None:
        """`ahead` makes a second connection: the pages of large windows are read on it while others are published."""
        self._connection = connection
        self._queries = queries
        self._fence: dict[str, Any] = {"epoch": term.epoch, "holder": term.holder}
        self._page_size = page_size
        self.appetite = Appetite(page_size)
        self._ahead = ahead
        self._ctid: str | None = None
        self._clock = (datetime.max.replace(tzinfo=UTC), 0.0)
        self.window_number = 0
        self._resumed = 0
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
        window = self._window(row)
        self._resumed = window.number if window else 0
        return window

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

    def advance_past(self, window: Window, last_seq: int, fates: Fates) -> None:
        """The same, and what becomes of those that were not published."""
        parameters = {"window_no": window.number, "last_seq": last_seq} | fates.parameters()
        self._moved(self._write(self._queries.advance_past_at, self._queries.advance_past, **parameters))

    def parked_keys(self, rows: Sequence[Row]) -> set[str]:
        """The ordering keys among these of which an earlier message is parked."""
        keys = list({row.ordering_key for row in rows if row.ordering_key is not None})
        if not keys:
            return set()
        return {key for (key,) in self._connection.execute(self._queries.parked_keys, {"keys": keys})}

    def batches(self, window: Window) -> Iterator[Batch]:
        """The window's rows in order of seq, a page at a time; those of a large window are read ahead."""
        if window.rows <= self._page_size:
            yield from self._page(self._connection, window, only_page(window))
        elif self._ahead is None:
            yield from self._pages(self._connection, window)
        else:
            with self._ahead() as connection, read_ahead(self._pages(connection, window)) as batches:
                yield from batches

    def _pages(self, connection: Database, window: Window) -> Iterator[Batch]:
        for page in pages(window.last_seq, self._plan(connection, window)):
            yield from self._page(connection, window, page)

    def _page(self, connection: Database, window: Window, page: Page) -> Iterator[Batch]:
        """In parts as large as the messages' size allows."""
        low = page.low
        while True:
            most, read_at = self.appetite.rows, self.now()
            rows = self._rows(connection, window, replace(page, low=low), most)
            self.appetite.took(len(rows), sum(len(row.body) for row in rows))
            last = len(rows) < most
            if rows or page.high != END_OF_LOG:
                # The page's own bound when it is finished: a re-read after a crash then begins where the next one does.
                yield Batch(page.high if last and page.high != END_OF_LOG else rows[-1].seq, rows, read_at)
            if last:
                return
            low = rows[-1].seq

    def _plan(self, connection: Database, window: Window) -> list[Bounds]:
        parameters = {
            "prev": window.prev,
            "next": window.next,
            "last_seq": window.last_seq,
            "page": self._page_size,
        }
        return [Bounds(*row) for row in connection.execute(self._queries.plan, parameters)]

    def _rows(self, connection: Database, window: Window, page: Page, most: int) -> list[Row]:
        query = self._page_query(window, page)
        parameters = {
            "prev": window.prev,
            "next": window.next,
            "low": page.low,
            "high": page.high,
            "first_xid": page.first_xid,
            "last_xid": page.last_xid,
            "xids": list(page.xids),
            "most": most,
        }
        return list(map(Row._make, connection.execute(query, parameters, binary=True)))

    def _page_query(self, window: Window, page: Page) -> bytes:
        resumed = window.number == self._resumed
        if page.high == END_OF_LOG:
            return self._queries.only_page_resumed if resumed else self._queries.only_page
        return self._queries.page_resumed if resumed else self._queries.page

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

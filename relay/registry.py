"""A relay's line in `outbox_relay`: how status and the other relays know that it is there."""

import threading
import time

from relay.database import Database
from relay.queries import Queries
from relay.settings import RelaySettings

_EVERY_SECONDS = 1.0


class Registration:
    """Written by the lease thread; the work thread reports what it last saw of the broker."""

    def __init__(self, settings: RelaySettings, queries: Queries, version: str) -> None:
        self._queries = queries
        self._row = {"holder": settings.holder, "name": settings.name, "version": version}
        self._lock = threading.Lock()
        self._broker_ok = False
        self._last_error: str | None = None
        self._next = 0.0

    def broker_answered(self) -> None:
        with self._lock:
            self._broker_ok, self._last_error = True, None

    def failed(self, error: str) -> None:
        with self._lock:
            self._last_error = error

    def refresh(self, connection: Database) -> None:
        """At most once a second; broker_ok_at moves only if the broker answered since the last time."""
        if time.monotonic() < self._next:
            return
        with self._lock:
            parameters = self._row | {"broker_ok": self._broker_ok, "last_error": self._last_error}
            self._broker_ok = False
        connection.execute(self._queries.seen, parameters)
        self._next = time.monotonic() + _EVERY_SECONDS

    def remove(self, connection: Database) -> None:
        connection.execute(self._queries.gone, self._row)

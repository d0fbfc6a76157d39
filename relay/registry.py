"""A relay's line in `outbox_relay`: how status and the other relays know that it is there, and whether it is of use."""

import threading
import time
from datetime import timedelta

from relay.database import Database
from relay.queries import Queries
from relay.settings import RelaySettings

_EVERY_SECONDS = 1.0
_PROBE_SECONDS = 5.0


class Registration:
    """Written by the lease thread; the work thread reports what it last saw of the broker."""

    def __init__(self, settings: RelaySettings, queries: Queries, version: str) -> None:
        self._queries = queries
        self._row = {"holder": settings.holder, "name": settings.name, "version": version}
        # Two probes: a peer that answers is never thought silent, and one that fell silent with us is known to be.
        self._probe_seconds = min(_PROBE_SECONDS, settings.resign_seconds / 3)
        self._recent = timedelta(seconds=2 * self._probe_seconds)
        self._lock = threading.Lock()
        self._broker_ok = False
        self._broker_lost_at: float | None = None
        self._last_error: str | None = None
        self._next_probe = 0.0
        self._next = 0.0
        self.seen_at: float | None = None
        """When the line was last written, on the monotonic clock."""

    def broker_answered(self) -> None:
        with self._lock:
            self._broker_ok, self._broker_lost_at, self._last_error = True, None, None
            self._next_probe = time.monotonic() + self._probe_seconds

    def broker_failed(self, error: str) -> None:
        with self._lock:
            self._last_error = error
            self._next_probe = time.monotonic() + self._probe_seconds
            if self._broker_lost_at is None:
                self._broker_lost_at = time.monotonic()

    def failed(self, error: str) -> None:
        with self._lock:
            self._last_error = error

    @property
    def last_error(self) -> str | None:
        with self._lock:
            return self._last_error

    def broker_lost_for(self) -> float:
        """Seconds since the first try that failed, with none that succeeded after it; 0 while it answers."""
        with self._lock:
            return 0.0 if self._broker_lost_at is None else time.monotonic() - self._broker_lost_at

    def probe_due(self) -> bool:
        """Whether the broker has to be asked again to know if it answers: only one who publishes knows without."""
        with self._lock:
            return time.monotonic() >= self._next_probe

    def refresh(self, connection: Database) -> None:
        """At most once a second; broker_ok_at moves only if the broker answered since the last time."""
        if time.monotonic() < self._next:
            return
        with self._lock:
            parameters = self._row | {"broker_ok": self._broker_ok, "last_error": self._last_error}
            self._broker_ok = False
        connection.execute(self._queries.seen, parameters)
        self.seen_at = time.monotonic()
        self._next = self.seen_at + _EVERY_SECONDS

    def better_peer(self, connection: Database) -> bool:
        """Whether another relay is there that reached the broker just now."""
        row = connection.execute(
            self._queries.better_peer, {"holder": self._row["holder"], "recent": self._recent}
        ).fetchone()
        return row is not None and bool(row[0])

    def remove(self, connection: Database) -> None:
        connection.execute(self._queries.gone, self._row)

"""An operator stops the publication of a queue, or of everything, and lets it go again.

The row in `outbox_pause` is the pause, for every relay and across restarts. Messages are written as ever: those of a
paused queue wait in `outbox_due`, with everything paused the log is not read. Whoever did it is in `outbox_audit`, by
the same statement.
"""

import getpass
import os
import socket
from dataclasses import dataclass
from datetime import datetime, timedelta

from outbox.errors import ConfigurationError
from outbox.message import QUEUE_NAME
from relay.database import Database
from relay.queries.pause import EVERYTHING, PauseQueries

_LONGEST_REASON = 500


@dataclass(frozen=True, slots=True)
class Pause:
    queue: str
    by: str
    why: str
    at: datetime
    until: datetime | None

    @property
    def shown_queue(self) -> str:
        return "everything" if self.queue == EVERYTHING else f"queue {self.queue}"


class Pauses:
    """The pauses of one outbox."""

    def __init__(self, connection: Database, queries: PauseQueries) -> None:
        self._connection = connection
        self._queries = queries

    def pause(self, queue: str, why: str, length: timedelta | None, by: str) -> Pause:
        """Pause it; a second pause of the same queue replaces reason and end."""
        parameters = {"queue": checked_queue(queue), "why": checked_reason(why), "length": length, "by": by}
        [row] = self._connection.execute(self._queries.pause, parameters).fetchall()
        return Pause(*row)

    def resume(self, queue: str, by: str) -> Pause | None:
        """End it; returns what was in force, None if nothing was."""
        rows = self._connection.execute(self._queries.resume, {"queue": checked_queue(queue), "by": by}).fetchall()
        return Pause(*rows[0]) if rows else None

    def in_force(self) -> tuple[Pause, ...]:
        return tuple(Pause(*row) for row in self._connection.execute(self._queries.in_force, {}))


def checked_queue(queue: str) -> str:
    if queue != EVERYTHING and not QUEUE_NAME.fullmatch(queue):
        raise ConfigurationError(f"{queue[:60]!a} is not a queue name: letters, digits and _ . : @ / # -, at most 255")
    return queue


def checked_reason(why: str) -> str:
    if not why.strip() or not why.isprintable() or len(why) > _LONGEST_REASON:
        raise ConfigurationError(
            f"--reason must be 1 to {_LONGEST_REASON} printable characters: it tells the others why nothing moves"
        )
    return why.strip()


def operator() -> str:
    """Who is at the keyboard, as far as the machine knows."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container's user often has no name
        name = f"uid {os.getuid()}"
    return f"{name}@{socket.gethostname()}"

"""A connection to PostgreSQL that never waits for ever, and knows whether it has a session of its own.

psycopg waits for an answer as long as TCP keeps the line up. A middlebox that acknowledges packets and swallows what
is in them would so stop a relay without an error. Here every statement has a deadline, and its caller may say that
nobody wants the answer any more (the term it was for is over). In both cases the connection is closed: what became of
the statement is unknown, and so is the state of the session.
"""

import select
import time
from collections.abc import Callable
from typing import Any, TypeVar

import psycopg
from psycopg import waiting
from psycopg.abc import PQGen

Result = TypeVar("Result")

_LOOK_SECONDS = 0.25
# Plain numbers: arithmetic on the enumerations of psycopg costs more than the rest of an exchange.
_READ, _WRITE = int(waiting.Wait.R), int(waiting.Wait.W)
_EVENTS = {_READ: select.POLLIN, _WRITE: select.POLLOUT, _READ | _WRITE: select.POLLIN | select.POLLOUT}
_READY: dict[int, waiting.Ready] = {
    select.POLLIN: waiting.Ready.R,
    select.POLLOUT: waiting.Ready.W,
    select.POLLIN | select.POLLOUT: waiting.Ready.RW,
}


class Session(psycopg.Connection[tuple[Any, ...]]):
    """Made by `relay.database.connect`."""

    deadline: float = 65.0
    """Seconds without an answer after which the connection is given up."""
    own: bool = True
    """False behind a pooler: the next statement may run in another session, so nothing may be kept in one."""

    def wanted(self) -> bool:
        """Asked while an answer is late; false gives the connection up."""
        return True

    def wanted_while(self, wanted: Callable[[], bool]) -> None:
        self.wanted = wanted  # type: ignore[method-assign]

    def wait(self, gen: PQGen[Result], *given: Any, **options: Any) -> Result:
        """Drive one exchange with the server. Callers inside psycopg that bring their own timeout keep it."""
        if given or options:
            return super().wait(gen, *given, **options)
        try:
            return self._exchange(gen)
        except StopIteration as end:
            result: Result = end.value
            return result

    def _exchange(self, gen: PQGen[Result]) -> Result:
        """Ends with the generator's StopIteration."""
        asked = next(gen)
        poller, line = select.poll(), self.pgconn.socket
        poller.register(line, _EVENTS[asked])
        began, patience = time.monotonic(), min(_LOOK_SECONDS, self.deadline) * 1000
        while True:
            found = poller.poll(patience)
            if found:
                # On trouble libpq must look itself: reading or writing tells it what is wrong.
                said = gen.send(_READY.get(found[0][1]) or waiting.Ready(asked))
            else:
                self._require_patience(began)
                said = gen.send(waiting.Ready.NONE)
            if said != asked:
                asked = said
                poller.modify(line, _EVENTS[asked])

    def _require_patience(self, began: float) -> None:
        late = time.monotonic() >= began + self.deadline
        if late or not self.wanted():
            self.pgconn.finish()
            why = f"no answer for {self.deadline:g} s" if late else "the answer is not wanted any more"
            raise psycopg.OperationalError(f"the connection to PostgreSQL was given up: {why}")

    def notified(self) -> bool:
        """Whether a notification has come; raises when the server has closed the connection."""
        self.pgconn.consume_input()
        found = False
        while self.pgconn.notifies() is not None:
            found = True
        return found

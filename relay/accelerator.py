"""The accelerator: an advisory lock that ends with its session, so that a dead leader is noticed at once.

It never decides who leads; the lease row does. What the lock can say is only: *the session that took it has ended*.
For that to be worth something the row must be truthful about it:

- The lock of the next epoch is taken **before** the row is written with that epoch and `holds_lock`. The other way
  round a standby that looks in between would find a living leader's lock free.
- Its key contains the epoch. A frozen leader keeps its session and so its lock; with one key for all, its successor
  could never have one.
- It lives on the connection that renews. When that breaks, the server frees the lock although the leader lives. The
  leader watches the socket, reconnects, tries the lock again and renews at once, and every renewal writes whether it
  has the lock *now*. Until that renewal the row is wrong; the standby's grace covers this moment: it gives up when
  `expires_at` has moved. If the lock cannot be had again (the old session still hangs on the server, or a standby is
  just probing it), the renewal says `holds_lock = false`, and a free lock means nothing until a later renewal got it.
- A probe gives the lock back in the very statement that took it. Two probes that meet, or a probe that meets the
  leader's own attempt, cost one poll or one renewal without the lock, never the lease.
- Whoever squats on the lock (anyone who may connect can) makes failover as slow as the lease, nothing else.

Behind a pooler there is no session to take a lock in: `take` says no, the row says `holds_lock = false`, and a dead
leader is replaced when its lease runs out.
"""

from relay.queries import Queries
from relay.session import Session


class Accelerator:
    """The lock as one connection has it. Forgotten with the connection."""

    def __init__(self, connection: Session, queries: Queries) -> None:
        self._connection = connection
        self._queries = queries
        self._held: int | None = None

    def take(self, epoch: int) -> bool:
        """Whether this session has the lock of this epoch now. Never waits."""
        if not self._connection.own or self._held == epoch:
            return self._held == epoch
        self.drop()
        row = self._connection.execute(self._queries.lock, {"epoch": epoch}).fetchone()
        if row is not None and row[0]:
            self._held = epoch
        return self._held == epoch

    def drop(self) -> None:
        if self._held is not None:
            self._connection.execute(self._queries.unlock, {"epoch": self._held})
            self._held = None

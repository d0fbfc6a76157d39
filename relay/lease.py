"""The pure part of leadership: what a relay may believe about its own lease, and for how long.

The database row is the authority. A relay only decides when to stop trusting itself, and it does so on its own
monotonic clock, started *before* the request that took or renewed the lease: a slow reply must shorten trust,
never lengthen it.
"""

from dataclasses import dataclass, replace
from uuid import UUID


class LeaseLost(Exception):
    """A fenced statement touched no row, or trust ran out: the term is over. Not an error; stop quietly."""


@dataclass(frozen=True, slots=True)
class Term:
    """One relay's view of one lease."""

    epoch: int
    holder: UUID
    trusted_until: float
    """On the monotonic clock of this process."""

    def trusted(self, now: float) -> bool:
        return now < self.trusted_until

    def renewed(self, started: float, ttl: float) -> "Term":
        return replace(self, trusted_until=max(self.trusted_until, trusted_until(started, ttl)))


def trusted_until(started: float, ttl: float) -> float:
    """A tenth of the TTL is kept back for clock drift between this host and the database."""
    return started + ttl * 0.9

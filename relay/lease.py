"""The pure part of leadership: what a relay may believe about its own lease and about another's, and for how long.

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


@dataclass(frozen=True, slots=True)
class Look:
    """What a standby saw of the lease."""

    epoch: int
    expires_at: str
    """As the database wrote it: only ever compared for being the same."""
    free: bool
    """Nobody's, our own, expired, or so far ahead that the database clock must have jumped back."""
    lock_free: bool
    """The row says that its holder has a lock, and nobody has it: the holder's session has ended."""


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A free lock, and until when its holder may still show that it lives."""

    epoch: int
    expires_at: str
    until: float

    def confirmed(self, now: float) -> bool:
        return now >= self.until


def suspect(before: Suspicion | None, look: Look, now: float, grace: float) -> Suspicion | None:
    """A leader that lost only its session renews at once: then the expiry has moved, and the suspicion is void."""
    if look.free or not look.lock_free:
        return None
    if before is not None and (before.epoch, before.expires_at) == (look.epoch, look.expires_at):
        return before
    return Suspicion(look.epoch, look.expires_at, now + grace)

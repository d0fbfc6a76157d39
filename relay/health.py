"""Is this process alive, and is it ready? Pure: decided from what the relays last did, never by asking a server.

alive   Every loop has moved lately: the work loop of a leader, the waiting loop of a standby. A broker that is away
        does not make a relay less alive: each try to publish counts as a move, and a restart would mend nothing.
ready   Every relay has lately written its line in `outbox_relay`: so its connection works, the schema is the one it
        needs, and it is known to the others. A standby is ready. A broker that is away does not make it unready either:
        the lease and the backlog are looked after, and traffic goes nowhere else.
"""

from collections.abc import Iterable
from dataclasses import dataclass

_LEAST_SECONDS = 10.0
_TERMS = 3
# One try may wait for a connection, for its greeting and for an answer; after it comes the longest pause.
_WAITS_A_TRY = 3
_LONGEST_PAUSE = 10.0
# The line is written once a second; after this long `outbox status` calls the relay gone.
_SEEN_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Vitals:
    """What is known of one relay; times are ages in seconds."""

    outbox: str
    moved: float | None
    """Since its loop last moved; None: it has not begun."""
    registered: float | None
    """Since it last wrote its line in `outbox_relay`; None: never."""
    patience: float
    """How long it may stand still and count as alive."""
    trouble: str | None = None
    """The last error of the database, if that is why."""


@dataclass(frozen=True, slots=True)
class Verdict:
    good: bool
    reason: str


def patience(lease_ttl: float, broker_timeout: float) -> float:
    """How long a loop may take for one round, a hanging broker included."""
    return max(_LEAST_SECONDS, _TERMS * lease_ttl, _WAITS_A_TRY * broker_timeout + _LONGEST_PAUSE)


def alive(relays: Iterable[Vitals]) -> Verdict:
    stuck = [
        f"outbox {each.outbox}: the relay's loop has not moved for {each.moved:.0f} s (limit {each.patience:.0f} s)"
        for each in relays
        if each.moved is not None and each.moved > each.patience
    ]
    return Verdict(not stuck, "; ".join(stuck) or "ok")


def ready(relays: Iterable[Vitals]) -> Verdict:
    reasons = [reason for each in relays if (reason := _unready(each))]
    return Verdict(not reasons, "; ".join(reasons) or "ok")


def _unready(relay: Vitals) -> str | None:
    if relay.registered is not None and relay.registered <= _SEEN_SECONDS:
        return None
    since = "not yet" if relay.registered is None else f"not for {relay.registered:.0f} s"
    trouble = f": {relay.trouble}" if relay.trouble else ""
    return f"outbox {relay.outbox}: {since} registered in the database{trouble}"

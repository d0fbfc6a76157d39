"""All models in one list: what is explored, and what fails without each protection."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, TypeVar

from tests.model import attempts, canary, log_and_leader, order, receipts, reconcile
from tests.model.explorer import Model, Removal, Trace, shortest_trace

__all__ = ["ATTEMPTS", "CANARY", "CATALOG", "LOG_AND_LEADER", "ORDER", "RECEIPTS", "RECONCILE", "Broken", "Entry"]

B = TypeVar("B", bound=tuple[Any, ...])
P = TypeVar("P")


class Broken(NamedTuple):
    """A model without one protection."""

    model: Model[Any]
    violates: str
    also: tuple[str, ...]


@dataclass(frozen=True)
class Entry:
    """One model, whole and broken."""

    name: str
    explored: Mapping[str, Model[Any]]  # by the bounds in words
    broken: Mapping[str, Broken]  # by the protection removed
    protections: frozenset[str]

    def trace_without(self, protection: str, violates: str | None = None) -> Trace:
        """Return the shortest trace that breaks the named property once the protection is removed."""
        broken = self.broken[protection]
        trace = shortest_trace(broken.model, violates or broken.violates)
        if trace is None:
            raise AssertionError(f"{violates or broken.violates} holds without {protection}")
        return trace


def entry(
    name: str,
    build: Callable[[B, P], Model[Any]],
    whole: P,
    explored: Sequence[B],
    removals: Mapping[str, Removal[B]],
) -> Entry:
    def without(protection: str, removal: Removal[B]) -> Broken:
        off = dict.fromkeys((protection, *removal.also), False)
        return Broken(build(removal.bounds, replace(whole, **off)), removal.violates, removal.also)  # type: ignore[type-var]

    return Entry(
        name,
        {in_words(bounds): build(bounds, whole) for bounds in explored},
        {protection: without(protection, removal) for protection, removal in removals.items()},
        frozenset(field.name for field in fields(whole)),  # type: ignore[arg-type]
    )


def in_words(bounds: tuple[Any, ...]) -> str:
    """Say what is bounded by what: `3 transactions, 1 expiries, retention`."""
    values: Mapping[str, int] = bounds._asdict()  # type: ignore[attr-defined]
    words = [
        name if value is True else f"{value} {name}" for name, value in values.items() if value
    ]  # fmt: skip
    return ", ".join(words).replace("_", " ")


LOG_AND_LEADER = entry(
    "log and leader",
    log_and_leader.LogAndLeader,
    log_and_leader.Protections(),
    log_and_leader.EXPLORED,
    log_and_leader.REMOVALS,
)
RECEIPTS = entry("receipts", receipts.Receipts, receipts.Protections(), receipts.EXPLORED, receipts.REMOVALS)
RECONCILE = entry("reconcile", reconcile.Reconcile, reconcile.Protections(), reconcile.EXPLORED, reconcile.REMOVALS)
ORDER = entry("order", order.Order, order.Protections(), order.EXPLORED, order.REMOVALS)
CANARY = entry("canary", canary.Canary, canary.Protections(), canary.EXPLORED, canary.REMOVALS)
ATTEMPTS = entry("attempts", attempts.Attempts, attempts.Protections(), attempts.EXPLORED, attempts.REMOVALS)
CATALOG = (LOG_AND_LEADER, RECEIPTS, RECONCILE, ORDER, CANARY, ATTEMPTS)

"""All models in one list: what is explored, and what fails without each protection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from tests.model import attempts, canary, keys, log_and_leader, order, receipts, reconcile
from tests.model.explorer import Model, Removal, Trace, shortest_trace

__all__ = ["ATTEMPTS", "CANARY", "CATALOG", "KEYS", "LOG_AND_LEADER", "ORDER", "RECEIPTS", "RECONCILE"]
__all__ += ["Broken", "Entry"]


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
    deep: Mapping[str, Model[Any]]  # the same at larger bounds
    broken: Mapping[str, Broken]  # by the protection removed
    protections: frozenset[str]

    def trace_without(self, protection: str, violates: str | None = None) -> Trace:
        """Return the shortest trace that breaks the named property once the protection is removed."""
        broken = self.broken[protection]
        trace = shortest_trace(broken.model, violates or broken.violates)
        if trace is None:
            raise AssertionError(f"{violates or broken.violates} holds without {protection}")
        return trace


def entry(name: str, module: Any, build: Callable[[Any, Any], Model[Any]]) -> Entry:
    whole = module.Protections()

    def without(protection: str, removal: Removal[Any]) -> Broken:
        off = dict.fromkeys((protection, *removal.also), False)
        return Broken(build(removal.bounds, replace(whole, **off)), removal.violates, removal.also)

    return Entry(
        name,
        {in_words(bounds): build(bounds, whole) for bounds in module.EXPLORED},
        {in_words(bounds): build(bounds, whole) for bounds in module.DEEP},
        {protection: without(protection, removal) for protection, removal in module.REMOVALS.items()},
        frozenset(field.name for field in fields(whole)),
    )


def in_words(bounds: Any) -> str:
    """Say what is bounded by what: `3 transactions, 1 expiries, retention`."""
    values: Mapping[str, int] = bounds._asdict()
    words = [name if value is True else f"{value} {name}" for name, value in values.items() if value]
    return ", ".join(words).replace("_", " ")


LOG_AND_LEADER = entry("log and leader", log_and_leader, log_and_leader.LogAndLeader)
RECEIPTS = entry("receipts", receipts, receipts.Receipts)
RECONCILE = entry("reconcile", reconcile, reconcile.Reconcile)
ORDER = entry("order", order, order.Order)
CANARY = entry("canary", canary, canary.Canary)
ATTEMPTS = entry("attempts", attempts, attempts.Attempts)
KEYS = entry("keys", keys, keys.Keys)
CATALOG = (LOG_AND_LEADER, RECEIPTS, RECONCILE, ORDER, CANARY, ATTEMPTS, KEYS)

"""Print what the models cover, as Markdown. Options: `--trace NAME` for one trace, `--deep` for larger bounds."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

from tests.model.catalog import CATALOG, Entry
from tests.model.explorer import explore


def main(arguments: Sequence[str] | None = None) -> int:
    names = sorted({name for entry in CATALOG for name in entry.broken})
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--trace", metavar="NAME", choices=names, help="a protection to remove: %(choices)s")
    parser.add_argument("--deep", action="store_true", help="explore at larger bounds too: minutes, not seconds")
    chosen = parser.parse_args(arguments)
    for line in one_trace(chosen.trace) if chosen.trace else tables(chosen.deep):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    return 0


def tables(deep: bool) -> Iterator[str]:
    yield from ("| model | bounds | states | transitions | seconds | violations |", "|---|---|--:|--:|--:|---|")
    for entry in CATALOG:
        for bounds, model in {**entry.explored, **(entry.deep if deep else {})}.items():
            found = explore(model)
            violated = ", ".join(found.violations) or "none"
            size = f"{found.states:,} | {found.transitions:,} | {found.seconds:.1f}"
            yield f"| {entry.name} | {bounds} | {size} | {violated} |"
    yield ""
    yield from ("| model | removed protection | violated | shortest trace |", "|---|---|---|--:|")
    for entry in CATALOG:
        for name, broken in entry.broken.items():
            removed = " and ".join(f"`{protection}`" for protection in (name, *broken.also))
            steps = len(entry.trace_without(name))
            yield f"| {entry.name} | {removed} | `{broken.violates}` | {steps} |"


def one_trace(protection: str) -> Iterator[str]:
    for entry in CATALOG:
        if protection in entry.broken:
            yield from trace_of(entry, protection)


def trace_of(entry: Entry, protection: str) -> Iterator[str]:
    broken = entry.broken[protection]
    removed = " and ".join(f"`{name}`" for name in (protection, *broken.also))
    yield f"{entry.name}: without {removed}, `{broken.violates}` fails:"
    yield ""
    for number, label in enumerate(entry.trace_without(protection), 1):
        yield f"{number}. {label}"


if __name__ == "__main__":
    raise SystemExit(main())

"""`make bench`: measure, print, write build/bench.json. A missed goal is shown, not hidden; it fails nothing.

python -m benchmarks [NAME ...]     a figure's name, or a module's (relay_redis, endurance, latency, growth ...)
"""

import sys
import time
from pathlib import Path
from types import ModuleType

from benchmarks import endurance, figures, growth, latency, relay_redis, relay_transports, wakeup, write_cost
from benchmarks.scene import scene

MODULES = (relay_redis, relay_transports, latency, wakeup, write_cost, endurance, growth)
TARGET = Path("build") / "bench.json"


def main(wanted: list[str]) -> int:
    known = {name for module in MODULES for name in (_short(module), *module.NAMES)}
    if unknown := sorted(set(wanted) - known):
        print(f"no such figure: {', '.join(unknown)}; there are {', '.join(sorted(known))}", file=sys.stderr)
        return 2
    found: dict[str, figures.Figure] = {}
    if not wanted:
        TARGET.unlink(missing_ok=True)  # a full run leaves nothing of an earlier one
    for module in MODULES:
        if not wanted or {_short(module), *module.NAMES} & set(wanted):
            found |= _measured(module)
            figures.write(found, TARGET)
    print()
    for name, figure in found.items():
        print(figure.line(name))
    print(f"written to {TARGET}")
    return 0


def _measured(module: ModuleType) -> dict[str, figures.Figure]:
    """On servers of its own. What cannot be measured is missing, and the rest is measured all the same."""
    print(f"{_short(module)}:", flush=True)
    started = time.monotonic()
    try:
        with scene() as stage:
            found: dict[str, figures.Figure] = module.figures(stage)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a test fixture that cannot have its server says so with one of pytest's own
        print(f"  not measured: {type(error).__name__}: {error}", flush=True)
        found = {name: figures.missing("see docs/performance.md") for name in module.NAMES if module is not growth}
    for name, figure in found.items():
        print(f"  {figure.line(name)}", flush=True)
    print(f"  {time.monotonic() - started:.0f} s", flush=True)
    return found


def _short(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

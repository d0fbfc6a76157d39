"""`make bench`: measure, print, write build/bench.json. A missed goal is shown, not hidden; it fails nothing."""

from pathlib import Path

from benchmarks import figures, relay_redis, write_cost
from benchmarks.scene import scene


def main() -> None:
    found: dict[str, figures.Figure] = {}
    with scene() as stage:
        for module in (relay_redis, write_cost):
            found |= module.figures(stage)
    for name, figure in found.items():
        verdict = "ok" if figure.ok else "MISSED"
        print(f"{name:<28} {figure.value:>10g} {figure.unit:<6} goal {figure.goal:<8} {verdict}")
    target = Path("build") / "bench.json"
    figures.write(found, target)
    print(f"written to {target}")


main()

"""Figures with their goals, and the file they are written to."""

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured value, or None when what it measures is not there."""

    value: float | None
    unit: str
    goal: str
    ok: bool

    def line(self, name: str) -> str:
        shown = "missing" if self.value is None else f"{self.value:g}"
        verdict = "ok" if self.ok else "MISSED"
        return f"{name:<32} {shown:>10} {self.unit:<6} goal {self.goal:<9} {verdict}"


def at_least(value: float, goal: float, unit: str = "ratio") -> Figure:
    return Figure(_rounded(value), unit, f">= {goal:g}", value >= goal)


def at_most(value: float, goal: float, unit: str = "ratio") -> Figure:
    return Figure(_rounded(value), unit, f"<= {goal:.4g}", value <= goal)


def missing(goal: str, unit: str = "ratio") -> Figure:
    return Figure(None, unit, goal, ok=False)


def in_turn(repeats: int, *runs: Callable[[], float]) -> list[list[float]]:
    """Run them one after the other, several times, so that a slow moment of the machine hits all of them."""
    results: list[list[float]] = [[] for _ in runs]
    for _ in range(repeats):
        for result, run in zip(results, runs, strict=True):
            result.append(run())
    return results


def ratio(upper: Sequence[float], lower: Sequence[float]) -> float:
    """The median of the paired ratios."""
    return statistics.median(one / other for one, other in zip(upper, lower, strict=True))


def write(figures: dict[str, Figure], target: Path) -> None:
    """Figures of an earlier run that were not measured anew stay as they are."""
    target.parent.mkdir(exist_ok=True)
    kept = json.loads(target.read_text()) if target.exists() else {}
    kept |= {name: asdict(figure) for name, figure in figures.items()}
    target.write_text(json.dumps(kept, indent=2) + "\n")


def _rounded(value: float) -> float:
    return float(f"{value:.3g}") if abs(value) < 100 else round(value, 1)

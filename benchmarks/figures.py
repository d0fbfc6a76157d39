"""Figures with their goals, and the file they are written to."""

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Figure:
    value: float
    unit: str
    goal: str
    ok: bool


def at_least(value: float, goal: float, unit: str = "ratio") -> Figure:
    return Figure(round(value, 3), unit, f">= {goal:g}", value >= goal)


def at_most(value: float, goal: float, unit: str = "ratio") -> Figure:
    return Figure(round(value, 3), unit, f"<= {goal:g}", value <= goal)


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
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps({name: asdict(figure) for name, figure in figures.items()}, indent=2) + "\n")

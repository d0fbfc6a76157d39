"""Contestants as processes of their own, and what the kernel says about them."""

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from benchmarks.scene import QUEUE, Scene
from relay.embedded import Process
from relay.embedded.guardian import family

ROOT = Path(__file__).resolve().parents[1]
_TICK = os.sysconf("SC_CLK_TCK")
_STOP_WITHIN = 20.0


def relay(scene: Scene, settings: Mapping[str, str] | None = None) -> Process:
    """The real thing, `outbox relay`, with nothing of our environment but the path."""
    ours = {
        "OUTBOX_DATABASE_URL": scene.database_url,
        "OUTBOX_BROKER_URL": scene.broker_url,
        "OUTBOX_DEFAULT_QUEUE": QUEUE,
        "OUTBOX_HTTP": "",
    }
    return start(scene, "relay", ["-m", "relay", "relay"], {**ours, **(settings or {})})


def start(scene: Scene, name: str, arguments: Iterable[str], env: Mapping[str, str] | None = None) -> Process:
    """A Python program of this folder or of ours."""
    return Process.start(
        [sys.executable, *arguments],
        name=name,
        log=scene.folder / f"{name}.log",
        env={"PATH": os.environ.get("PATH", os.defpath), "PYTHONPATH": str(ROOT), **(env or {})},
        cwd=ROOT,
    )


def stop(process: Process) -> None:
    process.terminate(_STOP_WITHIN)


def cpu_seconds(*roots: int) -> float:
    """Processor time of these processes and all below them, those included that have ended meanwhile."""
    return sum(_ticks(pid, reaped=pid == root) for root in roots for pid in family(root)) / _TICK


def peak_rss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise LookupError(f"no peak memory of process {pid}")


def _ticks(pid: int, *, reaped: bool) -> int:
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:  # it has just ended; its parent's count has it
        return 0
    own, children = sum(map(int, words[11:13])), sum(map(int, words[13:15]))
    return own + children if reaped else own

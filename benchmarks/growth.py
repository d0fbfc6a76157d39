"""How the relay's speed changes with sizes; written to build/bench-growth.json, no goals."""

import json
from pathlib import Path

from benchmarks import wakeup
from benchmarks.broker import RedisDepth
from benchmarks.figures import Figure
from benchmarks.race import Run
from benchmarks.relay_redis import relay_run
from benchmarks.scene import Scene

BATCHES = (50, 100, 250, 500, 1000, 2000)
# Payload bytes → how many messages make about half a second.
MESSAGES = {100: 100_000, 1_000: 100_000, 4_000: 40_000, 16_000: 10_000, 64_000: 4_000}
BACKLOGS = (1_000, 10_000, 100_000, 1_000_000)
WRITERS = (1, 4, 8, 16)
TARGET = Path("build") / "bench-growth.json"
NAMES = ("growth",)

Rows = list[dict[str, float]]


def figures(scene: Scene) -> dict[str, Figure]:
    depth = RedisDepth(scene.broker_url)
    found: dict[str, Rows] = {
        "batch_size": [
            _row("messages", batch, relay_run(scene, depth, 60_000, OUTBOX_BATCH_SIZE=str(batch))) for batch in BATCHES
        ],
        "payload": [
            _row("bytes", size, relay_run(scene, depth, count, note_bytes=size)) for size, count in MESSAGES.items()
        ],
        "backlog": [_row("messages", count, relay_run(scene, depth, count)) for count in BACKLOGS],
        "writers": _writers(scene),
    }
    depth.close()
    for name, rows in found.items():
        for row in rows:
            print(f"  {name}: " + ", ".join(f"{key} {value:,g}" for key, value in row.items()))
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(json.dumps(found, indent=2) + "\n")
    return {}


def _row(what: str, size: int, run: Run) -> dict[str, float]:
    if len(run.looks) < 2:  # it came between two looks
        return {what: size, "first_after_seconds": round(run.first_after, 2)}
    return {
        what: size,
        "messages_per_second": round(run.rate),
        "cpu_us": round(run.cpu_per_message * 1e6, 2),
        "first_after_seconds": round(run.first_after, 2),
        "peak_rss_mb": round(run.peak_rss_mb),
    }


def _writers(scene: Scene) -> Rows:
    if wakeup.pgbench(scene) is None:
        return []
    wakeup.prepare(scene)
    rows: Rows = []
    for writers in WRITERS:
        gate, poll = (wakeup.throughput(scene, how, writers) for how in ("gate", "poll"))
        rows.append({"writers": writers, "gate_tps": round(gate), "poll_tps": round(poll), "ratio": gate / poll})
    return rows

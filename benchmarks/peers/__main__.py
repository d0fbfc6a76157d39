"""`make bench-peers`: each peer and our relay in turn on the same servers; writes build/bench-peers.json."""

import json
import statistics
import subprocess
from dataclasses import dataclass
from pathlib import Path

from psycopg import sql

from benchmarks.broker import RedisDepth
from benchmarks.figures import in_turn, ratio
from benchmarks.processes import ROOT
from benchmarks.relay_redis import relay_run
from benchmarks.scene import Scene, scene

INTERPRETER = ROOT / "build" / "peers-venv" / "bin" / "python"
TARGET = ROOT / "build" / "bench-peers.json"
OURS = 100_000
REPEATS = 3
SECONDS = 120


@dataclass(frozen=True, slots=True)
class Peer:
    script: str
    count: int
    measured: str
    """What its figure is; ours is always: read from the log, published to Redis, position advanced."""


PEERS = {
    "django-celery-outbox": Peer(
        "django_outbox.py", 5_000, "published to Celery on Redis by its relay, batch 500; the same job as ours"
    ),
    "procrastinate": Peer(
        "procrastinate_jobs.py", 2_000, "empty jobs executed, 10 at a time; no broker, execution included"
    ),
    "pgqueuer": Peer("pgqueuer_jobs.py", 20_000, "empty jobs executed, batch 500; no broker, execution included"),
}


def main() -> None:
    found: dict[str, dict[str, object]] = {}
    with scene() as stage:
        depth = RedisDepth(stage.broker_url)
        for name, peer in PEERS.items():
            try:
                found[name] = compared(stage, depth, name, peer)
            except (RuntimeError, subprocess.SubprocessError, ValueError, IndexError) as error:
                found[name] = {"missing": str(error)[-500:]}
            print(f"{name}: {json.dumps(found[name])}", flush=True)
        depth.close()
    TARGET.write_text(json.dumps(found, indent=2) + "\n")
    print(f"written to {TARGET.relative_to(ROOT)}")


def compared(stage: Scene, depth: RedisDepth, name: str, peer: Peer) -> dict[str, object]:
    with stage.connect() as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))

    def theirs() -> float:
        stage.clear()
        return _rate(peer, stage, name)

    our_rates, their_rates = in_turn(REPEATS, lambda: relay_run(stage, depth, OURS).rate, theirs)
    return {
        "ours_per_second": round(statistics.median(our_rates)),
        "theirs_per_second": round(statistics.median(their_rates)),
        "ours_x_theirs": round(ratio(our_rates, their_rates), 1),
        "theirs_is": peer.measured,
    }


def _rate(peer: Peer, stage: Scene, database: str) -> float:
    command: list[str | Path] = [INTERPRETER, Path(__file__).with_name(peer.script)]
    said = subprocess.run(
        [*map(str, command), stage.postgres.url(database), stage.broker_url, str(peer.count)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    if said.returncode != 0:
        raise RuntimeError(said.stderr)
    return float(json.loads(said.stdout.strip().splitlines()[-1])["rate"])


if __name__ == "__main__":
    main()

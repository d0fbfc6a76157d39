"""What the wake-up costs the writers: transactions a second of 8 of them flat out, relay woken ÷ polling."""

import re
import shutil
import subprocess
import time
from pathlib import Path

from benchmarks import processes
from benchmarks.figures import Figure, at_least, in_turn, missing, ratio
from benchmarks.race import DidNotFinish
from benchmarks.scene import Scene
from relay.embedded import wait_until

WRITERS = 8
SECONDS = 5
REPEATS = 5
_TABLES = b"""
CREATE TABLE IF NOT EXISTS wake_account (id int PRIMARY KEY, balance bigint NOT NULL);
INSERT INTO wake_account SELECT i, 0 FROM generate_series(1, 100000) i ON CONFLICT DO NOTHING;
CREATE TABLE IF NOT EXISTS wake_order (id bigserial PRIMARY KEY, account int)"""
_SCRIPT = """
\\set account random(1, 100000)
BEGIN;
SELECT balance FROM wake_account WHERE id = :account;
INSERT INTO wake_order (account) VALUES (:account);
UPDATE wake_account SET balance = balance + 1 WHERE id = :account;
INSERT INTO outbox_message (id, task, kwargs, body_hash)
    VALUES (gen_random_uuid(), 'bench.task', '{"order_id": 7}', sha256('hash'));
COMMIT;
"""

NAMES = ("wakeup_writer_ratio",)


def figures(scene: Scene) -> dict[str, Figure]:
    if pgbench(scene) is None:
        print("  pgbench is not installed: install postgresql-contrib or postgresql")
        return {"wakeup_writer_ratio": missing(">= 0.93")}
    prepare(scene)
    throughput(scene, "gate", WRITERS)  # the tables' first pages, the server's caches
    gate, poll = in_turn(
        REPEATS, lambda: throughput(scene, "gate", WRITERS), lambda: throughput(scene, "poll", WRITERS)
    )
    print(f"  transactions/s: gate {[round(tps) for tps in gate]}, poll {[round(tps) for tps in poll]}")
    return {"wakeup_writer_ratio": at_least(ratio(gate, poll), 0.93)}


def prepare(scene: Scene) -> None:
    with scene.connect() as connection:
        connection.execute(_TABLES)
    (scene.folder / "writers.sql").write_text(_SCRIPT)


def throughput(scene: Scene, wakeup: str, writers: int) -> float:
    """Transactions a second while a live relay publishes what they write."""
    program = pgbench(scene)
    assert program is not None
    scene.clear()
    relay = processes.relay(scene, {"OUTBOX_WAKEUP": wakeup})
    try:
        wait_until(lambda: _led(scene), 20, "a leader")
        time.sleep(0.3)  # it has gone to sleep, or polls at leisure
        command = [program, "-n", "-M", "prepared", "-f", scene.folder / "writers.sql", "-T", str(SECONDS)]
        said = subprocess.run(
            [*map(str, command), "-c", str(writers), "-j", "2", scene.database_url],
            env=dict(scene.postgres.binaries.environment()),
            capture_output=True,
            text=True,
            timeout=SECONDS + 60,
            check=False,
        )
        found = re.search(r"tps = ([\d.]+)", said.stdout)
        if found is None or not relay.alive:
            raise DidNotFinish(f"the writers failed: {said.stderr[-500:]}{relay.tail()}")
        return float(found[1])
    finally:
        processes.stop(relay)


def pgbench(scene: Scene) -> Path | None:
    """The server's own, or one from the system."""
    own = scene.postgres.binaries.folder / "pgbench"
    found = own if own.exists() else shutil.which("pgbench")
    return Path(found) if found else None


def _led(scene: Scene) -> bool:
    with scene.connect() as connection:
        row = connection.execute("SELECT holder IS NOT NULL FROM outbox_leader").fetchone()
    return row is not None and bool(row[0])

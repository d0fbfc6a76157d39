"""What size and other people's transactions do to the relay: an open snapshot, old rows, a large backlog, memory."""

import statistics

from benchmarks import processes
from benchmarks.broker import RedisDepth
from benchmarks.figures import Figure, at_least, at_most, in_turn, ratio
from benchmarks.race import Run, race
from benchmarks.relay_redis import relay_run, servers
from benchmarks.scene import Scene

SNAPSHOT_BACKLOG, EDGE = 500_000, 20_000
OLD_ROWS, OLD_NOTE_BYTES = 5_000_000, 20
SMALL, LARGE = 100_000, 1_000_000
LONG_REPEATS, REPEATS = 2, 3

NAMES = ("relay_open_snapshot_last_first", "relay_5m_rows_ratio", "relay_1m_backlog_ratio", "relay_rss_mb_1m")


def figures(scene: Scene) -> dict[str, Figure]:
    depth = RedisDepth(scene.broker_url)
    found = {
        "relay_open_snapshot_last_first": at_least(
            statistics.median(open_snapshot(scene, depth) for _ in range(LONG_REPEATS)), 0.9
        ),
        **large_backlog(scene, depth),
        "relay_5m_rows_ratio": old_rows(scene, depth),
    }
    depth.close()
    return found


def open_snapshot(scene: Scene, depth: RedisDepth) -> float:
    """Nothing that dies while the foreign transaction is open can be removed: who leaves dead rows slows down."""
    scene.clear()
    scene.fill_outbox(SNAPSHOT_BACKLOG)
    with scene.connect() as foreign, foreign.transaction():
        foreign.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        foreign.execute("SELECT count(*) FROM outbox_leader")
        run = race(lambda: processes.relay(scene), depth, SNAPSHOT_BACKLOG, servers(scene))
    seen = run.looks[-1][1] - run.looks[0][1]
    first, last = run.rate_between(0, EDGE), run.rate_between(seen - EDGE, seen)
    print(f"  beside an open snapshot: {first:,.0f}/s at first, {last:,.0f}/s at last", flush=True)
    return last / first


def large_backlog(scene: Scene, depth: RedisDepth) -> dict[str, Figure]:
    """Both with what the relay does before the first message: a large backlog is planned before it is read."""
    small, large = list[Run](), list[Run]()
    for _ in range(LONG_REPEATS):
        small.append(relay_run(scene, depth, SMALL))
        large.append(relay_run(scene, depth, LARGE))
    scene.clear()
    starts = [max(0.0, many.first_after - few.first_after) for few, many in zip(small, large, strict=True)]
    for few, many in zip(small, large, strict=True):
        print(f"  backlog {SMALL:,}: {few.rate:,.0f}/s, {LARGE:,}: {many.rate:,.0f}/s", flush=True)
    rates = [LARGE / (LARGE / run.rate + start) for run, start in zip(large, starts, strict=True)]
    return {
        "relay_1m_backlog_ratio": at_least(ratio(rates, [run.rate for run in small]), 0.7),
        "relay_rss_mb_1m": at_most(max(run.peak_rss_mb for run in large), 256, "MB"),
    }


def old_rows(scene: Scene, depth: RedisDepth) -> Figure:
    """Two databases side by side, so that they can be taken in turn."""
    full = scene.beside("old")
    full.fill_outbox(OLD_ROWS, OLD_NOTE_BYTES)

    def rate(of: Scene) -> float:
        of.settle()
        of.fill_outbox(SMALL)
        return race(lambda: processes.relay(of), depth, SMALL, servers(of)).rate

    scene.clear()
    with_old, without = in_turn(REPEATS, lambda: rate(full), lambda: rate(scene))
    print(f"  with old rows: {with_old[-1]:,.0f}/s, without: {without[-1]:,.0f}/s (last of {REPEATS})", flush=True)
    return at_least(ratio(with_old, without), 0.9)

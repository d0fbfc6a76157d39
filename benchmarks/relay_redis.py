"""The relay to Redis against the relay people write by hand, and against Redis itself."""

import statistics

from benchmarks import processes
from benchmarks.broker import RedisDepth
from benchmarks.figures import Figure, at_least, at_most, in_turn, ratio
from benchmarks.race import Run, race
from benchmarks.scene import NOTE_BYTES, Scene

OURS, NAIVE, RAW = 150_000, 4_000, 200_000
REPEATS = 5
CLOSE = 10_000

NAMES = ("relay_redis_x_naive", "relay_redis_of_limit", "relay_cpu_of_naive")


def figures(scene: Scene) -> dict[str, Figure]:
    depth = RedisDepth(scene.broker_url)
    ours, naive = list[Run](), list[Run]()
    size = 0

    def relay() -> float:
        nonlocal size
        ours.append(relay_run(scene, depth, OURS))
        size = depth.message_bytes()
        return ours[-1].rate

    def by_hand() -> float:
        naive.append(naive_run(scene, depth, NAIVE))
        return naive[-1].rate

    def raw() -> float:
        return limit_run(scene, depth, RAW, size).rate

    our_rates, naive_rates, raw_rates = in_turn(REPEATS, relay, by_hand, raw)
    scene.clear()
    depth.close()
    our_cpu, naive_cpu = [run.cpu_per_message for run in ours], [run.cpu_per_message for run in naive]
    for what, rates in {"relay": our_rates, "by hand": naive_rates, "limit": raw_rates}.items():
        print(f"  {what}: {statistics.median(rates):,.0f}/s of {size} bytes")
    for what, cpu in {"relay": our_cpu, "by hand": naive_cpu}.items():
        print(f"  {what}: {statistics.median(cpu) * 1e6:.1f} us of CPU a message")
    return {
        "relay_redis_x_naive": at_least(ratio(our_rates, naive_rates), 60),
        "relay_redis_of_limit": at_least(ratio(our_rates, raw_rates), 0.25),
        "relay_cpu_of_naive": at_most(ratio(our_cpu, naive_cpu), 1 / 40),
    }


def relay_run(scene: Scene, depth: RedisDepth, count: int, *, note_bytes: int = NOTE_BYTES, **settings: str) -> Run:
    """A fresh log with a backlog, a fresh relay."""
    scene.clear()
    scene.fill_outbox(count, note_bytes)
    return race(lambda: processes.relay(scene, settings), depth, count, servers(scene), close=count <= CLOSE)


def naive_run(scene: Scene, depth: RedisDepth, count: int) -> Run:
    scene.clear()
    scene.fill_naive(count)
    arguments = ["-m", "benchmarks.naive", scene.database_url, scene.broker_url]
    return race(lambda: processes.start(scene, "naive", arguments), depth, count, servers(scene))


def limit_run(scene: Scene, depth: RedisDepth, count: int, size: int) -> Run:
    scene.clear()
    arguments = ["-m", "benchmarks.limit", scene.broker_url, str(size), str(count)]
    return race(lambda: processes.start(scene, "limit", arguments), depth, count, servers(scene))


def servers(scene: Scene) -> list[int]:
    return [scene.postgres.process.pid, scene.valkey.process.pid]

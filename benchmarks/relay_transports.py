"""The general way through kombu, and RabbitMQ with confirms, each against the relay by hand on the same broker."""

import importlib.util

from benchmarks import processes
from benchmarks.broker import RabbitDepth, RedisDepth
from benchmarks.figures import Figure, at_least, in_turn, missing, ratio
from benchmarks.race import race
from benchmarks.relay_redis import naive_run, relay_run
from benchmarks.scene import Scene
from tests.support.rabbitmq import RabbitMQ

KOMBU, RABBIT, NAIVE = 40_000, 40_000, 3_000
REPEATS = 3

NAMES = ("relay_kombu_x_naive", "relay_rabbit_x_naive")


def figures(scene: Scene) -> dict[str, Figure]:
    return {"relay_kombu_x_naive": kombu(scene), "relay_rabbit_x_naive": rabbit(scene)}


def kombu(scene: Scene) -> Figure:
    if not _exists("relay.publish.kombu"):
        return missing(">= 12")
    depth = RedisDepth(scene.broker_url)
    ours, naive = in_turn(
        REPEATS,
        lambda: relay_run(scene, depth, KOMBU, OUTBOX_TRANSPORT="kombu").rate,
        lambda: naive_run(scene, depth, NAIVE).rate,
    )
    depth.close()
    print(f"  kombu {sorted(ours)[REPEATS // 2]:,.0f}/s, by hand {sorted(naive)[REPEATS // 2]:,.0f}/s")
    return at_least(ratio(ours, naive), 12)


def rabbit(scene: Scene) -> Figure:
    if not _exists("relay.publish.amqp"):
        return missing(">= 10")
    with RabbitMQ() as server:
        depth = RabbitDepth(server.url())

        def ours() -> float:
            scene.clear()
            depth.clear()
            scene.fill_outbox(RABBIT)
            settings = {"OUTBOX_BROKER_URL": server.url(), "OUTBOX_TRANSPORT": "amqp"}
            return race(lambda: processes.relay(scene, settings), depth, RABBIT, []).rate

        def naive() -> float:
            scene.clear()
            depth.clear()
            scene.fill_naive(NAIVE)
            arguments = ["-m", "benchmarks.naive", scene.database_url, server.url(), "--confirms"]
            return race(lambda: processes.start(scene, "naive", arguments), depth, NAIVE, []).rate

        our_rates, naive_rates = in_turn(REPEATS, ours, naive)
        depth.close()
    print(f"  RabbitMQ {sorted(our_rates)[REPEATS // 2]:,.0f}/s, by hand {sorted(naive_rates)[REPEATS // 2]:,.0f}/s")
    return at_least(ratio(our_rates, naive_rates), 10)


def _exists(module: str) -> bool:
    return importlib.util.find_spec(module) is not None

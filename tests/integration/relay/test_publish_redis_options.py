"""Every way in which Celery's users reach their Redis, against real servers."""

import json
from pathlib import Path

import pytest
import redis
from celery import Celery

from outbox.errors import ConfigurationError
from relay.application import Application
from relay.embedded import Valkey, free_port, wait_until
from relay.encode import Encoder
from relay.publication import Refusal
from relay.publish import BrokerOutage
from relay.publish.redis import RedisPublisher
from relay.publish.redis_client import RedisOptions, make_client
from relay.routing import AllowedTasks, DefaultQueue
from tests.support.copies import STAMP, copies
from tests.support.processes import Programs


def publisher(url: str, options: RedisOptions | None = None, *patterns: str) -> RedisPublisher:
    return RedisPublisher(url, 2.0, Encoder(AllowedTasks(DefaultQueue("celery"), patterns).queue_for), options)


def test_a_task_that_is_not_allowed_is_refused_alone(broker_url: str) -> None:
    made = publisher(broker_url, None, "a.*")
    batch = copies(5)
    batch[1] = batch[1]._replace(row=batch[1].row._replace(task="b.task"))
    batch[3] = batch[3]._replace(row=batch[3].row._replace(task="celery.map"))
    refused = made.publish(batch, STAMP)
    assert [(each.index, each.refusal) for each in refused] == [(1, Refusal.MESSAGE), (3, Refusal.MESSAGE)]
    with redis.Redis.from_url(broker_url) as client:
        # After the refused ones, the places of those that the broker refuses are still right.
        client.delete("celery")
        client.set("celery", "no list")
        refused = made.publish(batch, STAMP)
    made.close()
    expected = [(0, Refusal.QUEUE), (1, Refusal.MESSAGE), (2, Refusal.QUEUE), (3, Refusal.MESSAGE), (4, Refusal.QUEUE)]
    assert sorted([(each.index, each.refusal) for each in refused], key=lambda each: each[0]) == expected


def test_the_applications_key_prefix_stands_before_every_list(broker_url: str) -> None:
    """kombu itself finds the message there, and only there."""
    app = Celery("shop", broker=broker_url, set_as_current=False)
    app.conf.broker_transport_options = {"global_keyprefix": "shop:"}
    application = Application(app)
    made = publisher(broker_url, RedisOptions.of(application.transport_options, application.ssl))
    batch = copies(1)
    assert list(made.publish(batch, STAMP)) == []
    made.close()
    with redis.Redis.from_url(broker_url) as client:
        (payload,) = client.lrange("shop:celery", 0, -1)
        assert json.loads(payload)["properties"]["delivery_info"] == {"exchange": "", "routing_key": "celery"}
    with app.connection_for_read() as connection:
        queue = connection.SimpleQueue("celery")
        assert queue.get(timeout=5).headers["id"] == batch[0].row.id
        queue.close()


def test_a_unix_socket(programs: Programs) -> None:
    folder = programs.folder / "socket"
    folder.mkdir()
    folder.chmod(0o777)  # as root, servers run under another account
    path = folder / "valkey.sock"
    with Valkey(append_only=False, settings={"unixsocket": str(path), "unixsocketperm": "777"}) as server:
        wait_until(path.exists, 5, "the socket")
        for url in (f"redis+socket://{path}", f"redis+socket://{path}?virtual_host=3"):
            made = publisher(url)
            made.ping()
            assert list(made.publish(copies(2), STAMP)) == []
            made.close()
        for number in (0, 3):
            with redis.Redis.from_url(server.url().rpartition("/")[0] + f"/{number}") as client:
                assert client.llen("celery") == 2


@pytest.fixture
def sentinel_url(own_valkey: Valkey, programs: Programs) -> str:
    """A sentinel that watches one server; the same program with another argument."""
    port = free_port()
    config = Path(programs.folder) / "sentinel.conf"
    watched = own_valkey.url().partition("://")[2].partition("/")[0].replace(":", " ")
    config.write_text(f"port {port}\nbind 127.0.0.1\nsentinel monitor mymaster {watched} 1\n")
    code = f"import os; os.execv({own_valkey_binary(own_valkey)!r}, ['valkey', {str(config)!r}, '--sentinel'])"
    process = programs.python("-c", code, name="sentinel")

    def answers() -> bool:
        try:
            with redis.Redis(host="127.0.0.1", port=port) as client:
                return bool(client.ping())
        except redis.ConnectionError:
            return False

    process.wait_ready(answers, 15, "the sentinel to answer")
    return f"sentinel://127.0.0.1:{free_port()};sentinel://127.0.0.1:{port}/0"


def own_valkey_binary(server: Valkey) -> str:
    return str(next(iter(server._command())))


def test_a_sentinel_leads_to_the_master(sentinel_url: str, own_valkey: Valkey) -> None:
    made = publisher(sentinel_url, RedisOptions.of({"master_name": "mymaster"}, False))
    made.ping()
    assert list(made.publish(copies(3), STAMP)) == []
    made.close()
    with redis.Redis.from_url(own_valkey.url()) as client:
        assert client.llen("celery") == 3
    stranger = publisher(sentinel_url, RedisOptions.of({"master_name": "unknown"}, False))
    with pytest.raises(BrokerOutage, match="unknown"):
        stranger.ping()
    stranger.close()


def test_a_sentinel_needs_the_masters_name() -> None:
    with pytest.raises(ConfigurationError, match="master_name in broker_transport_options"):
        make_client("sentinel://h:26379", 1.0, RedisOptions())


@pytest.mark.parametrize(
    ("url", "ssl"),
    [
        ("rediss://h/0?ssl_cert_reqs=none", False),
        ("redis://h/0", {"ssl_cert_reqs": "none"}),
        ("valkeys://user:secret@h/0", False),
    ],
)
def test_tls_by_url_or_by_the_applications_setting(url: str, ssl: bool | dict[str, str]) -> None:
    client = make_client(url, 1.5, RedisOptions.of({}, ssl))
    pool = client.connection_pool
    assert pool.connection_class is redis.SSLConnection
    assert (pool.connection_kwargs["socket_timeout"], pool.connection_kwargs["socket_connect_timeout"]) == (1.5, 1.5)
    client.close()


def test_a_cluster_is_refused_by_name(programs: Programs) -> None:
    with Valkey(append_only=False, settings={"cluster-enabled": "yes"}) as server:
        made = publisher(server.url())
        with pytest.raises(ConfigurationError, match="Redis Cluster"):
            made.ping()
        made.close()

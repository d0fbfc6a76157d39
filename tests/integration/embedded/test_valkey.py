"""Valkey as a child: it starts, dies, comes back with or without its data and leaves nothing behind."""

import pytest
import redis

from relay.embedded import EmbeddedError, ProcessDied, Valkey


def connect(server: Valkey) -> "redis.Redis":
    return redis.Redis.from_url(server.url(), decode_responses=True)


def test_it_serves_with_the_promised_settings(own_valkey: Valkey) -> None:
    wanted = {"bind": "127.0.0.1", "save": "", "maxmemory-policy": "noeviction", "appendonly": "yes"}
    with connect(own_valkey) as client:
        assert {name: client.config_get(name)[name] for name in wanted} == wanted


def test_an_append_only_server_keeps_what_it_acknowledged_over_a_kill(own_valkey: Valkey) -> None:
    port = own_valkey.port
    with connect(own_valkey) as client:
        client.lpush("queue", "message")
    own_valkey.kill()
    assert not own_valkey.running
    own_valkey.start()
    assert own_valkey.port == port
    with connect(own_valkey) as client:
        assert client.lrange("queue", 0, -1) == ["message"]


def test_a_forgetful_server_is_empty_after_a_kill(forgetful_valkey: Valkey) -> None:
    with connect(forgetful_valkey) as client:
        client.set("canary", "1")
    forgetful_valkey.kill()
    forgetful_valkey.start()
    with connect(forgetful_valkey) as client:
        assert client.get("canary") is None


def test_an_orderly_restart_keeps_the_data(own_valkey: Valkey) -> None:
    with connect(own_valkey) as client:
        client.set("kept", "yes")
    own_valkey.restart()
    with connect(own_valkey) as client:
        assert client.get("kept") == "yes"


def test_a_frozen_server_answers_after_the_thaw(own_valkey: Valkey) -> None:
    with redis.Redis.from_url(own_valkey.url(), socket_timeout=0.1, retry=None) as client:
        assert client.ping()
        own_valkey.freeze()
        with pytest.raises(redis.exceptions.TimeoutError):
            client.ping()
        own_valkey.thaw()
    with connect(own_valkey) as client:
        assert client.ping()


def test_closing_leaves_nothing_behind() -> None:
    server = Valkey().start()
    folder, process = server.folder, server.process
    server.close()
    assert not folder.exists()
    assert not process.alive
    with pytest.raises(EmbeddedError, match="was not started yet"):
        server.url()


def test_a_wrong_setting_is_reported_with_the_servers_own_words() -> None:
    with pytest.raises(ProcessDied, match=r"(?s)before: serving clients.*no-such-setting"):
        Valkey(settings={"no-such-setting": "1"}).start()


def test_each_test_has_an_empty_database_of_its_own(broker_url: str, valkey: object) -> None:
    with redis.Redis.from_url(broker_url) as client:
        assert client.dbsize() == 0
        client.set("left", "over")

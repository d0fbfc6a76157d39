"""What the fixtures promise to every other test."""

import psycopg
import pytest
import redis

from relay.embedded import Postgres
from tests.support.postgres import Cluster
from tests.support.processes import Programs, wait_for_line
from tests.support.servers import missing
from tests.support.valkey import Broker


def tables(url: str) -> set[str]:
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
    return {name for (name,) in found}


def test_a_database_is_a_migrated_copy(database: str, template: str) -> None:
    assert {"outbox_message", "inbox_receipt"} <= tables(database)
    with psycopg.connect(database) as connection:
        connection.execute("DROP TABLE inbox_receipt CASCADE")
    assert "inbox_receipt" in tables(template)


def test_an_empty_database_is_empty(empty_database: str) -> None:
    assert tables(empty_database) == set()


def test_a_database_goes_even_with_clients_and_a_prepared_transaction(cluster: Cluster) -> None:
    with cluster.database("busy") as url:
        client = psycopg.connect(url)
        client.execute("CREATE TABLE left_over ()")
        client.execute("PREPARE TRANSACTION 'left over'")
        client.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(url)
    client.close()


def test_an_own_cluster_can_be_migrated_and_crashed(own_cluster: Postgres, own_database: str) -> None:
    own_cluster.crash()
    own_cluster.start()
    assert "outbox_message" in tables(own_database)


def test_numbered_databases_are_used_in_turn_and_emptied(valkey: Broker) -> None:
    few = Broker(valkey.base, databases=2)
    urls = [few.fresh_url(), few.fresh_url()]
    assert urls[0] != urls[1]
    with redis.Redis.from_url(urls[0]) as client:
        client.set("left", "over")
        assert few.fresh_url() == urls[0]
        assert client.dbsize() == 0


def test_programs_see_the_project_and_their_environment(programs: Programs) -> None:
    code = "import os, outbox; print(os.environ['COLOUR'], outbox.__name__)"
    process = programs.python("-c", code, name="coloured", env={"COLOUR": "blue"})
    wait_for_line(process, "blue outbox")
    assert process.wait(10) == 0


def test_what_is_missing_skips_here_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="a teapot is missing: buy one"):
        missing("a teapot", "buy one")
    monkeypatch.setenv("CI", "1")
    with pytest.raises(pytest.fail.Exception, match="a teapot is missing: buy one"):
        missing("a teapot", "buy one")

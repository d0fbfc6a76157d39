"""`outbox relay` in a database that came from another cluster: it waits and says so, until somebody adopts it."""

import json

import psycopg
import pytest
import redis

from relay.embedded import wait_until
from tests.support.postgres import Cluster
from tests.support.processes import Programs
from tests.support.retention import OWN, add, end, ids, pass_by, register


def test_a_relay_stands_aside_until_it_is_told_to_adopt(database: str, broker_url: str, programs: Programs) -> None:
    with psycopg.connect(database, autocommit=True) as client, redis.Redis.from_url(broker_url) as broker:
        client.execute("UPDATE outbox_leader SET system_id = system_id - 1")
        add(client, "plain.task", queue="restored")
        asking = programs.relay(database, broker_url, name="asking")
        told = "SELECT count(*) FROM outbox_relay WHERE last_error LIKE '%moved here from another cluster%'"
        wait_until(lambda: client.execute(told).fetchone() == (1,), 15, "it says so in its line")
        assert asking.alive
        assert "cluster_moved" in asking.output()
        assert client.execute("SELECT epoch FROM outbox_leader").fetchone() == (0,)
        assert broker.llen("restored") == 0
        programs.relay(database, broker_url, "--adopt", name="adopting")
        wait_until(lambda: broker.llen("restored") == 1, 15, "it is published")
        assert client.execute("SELECT action, affected FROM outbox_audit").fetchall() == [("adopt", 1)]
        assert asking.alive


def test_prune_by_hand_says_what_goes_and_is_audited(database: str, programs: Programs) -> None:
    environment = {"OUTBOX_DATABASE_URL": database}
    with psycopg.connect(database, autocommit=True) as client:
        register(client)
        old, kept = add(client), add(client)
        end(client, old, days=10)
        pass_by(client, days=10)
        refused = programs.outbox("prune", "--older-than", "1d", env=environment)
        assert refused.wait(20) == 2
        assert "shorter than the horizon of 7 days" in refused.output()
        tried = programs.outbox("prune", "--dry-run", "--json", env=environment)
        assert tried.wait(20) == 0
        assert json.loads(tried.output())["rows"]["outbox_message"] == 1
        assert ids(client) == {old, kept}
        done = programs.outbox("prune", env=environment)
        assert done.wait(20) == 0
        assert "1 of outbox_message" in done.output()
        assert ids(client) == {kept}
        assert client.execute("SELECT action, affected FROM outbox_audit").fetchall() == [("prune", 1)]


def test_a_leading_relay_prunes_by_itself(database: str, broker_url: str, programs: Programs) -> None:
    with psycopg.connect(database, autocommit=True) as client:
        register(client)
        end(client, add(client, OWN), days=10)
        pass_by(client, days=10)
        relay = programs.relay(database, broker_url)
        wait_until(lambda: ids(client) == set(), 15, "retention")
        wait_until(lambda: "rows_pruned" in relay.output(), 5, "it is told")
        relay.terminate(10)


@pytest.mark.parametrize("command", [["relay"], ["prune"]])
def test_a_read_only_database_is_refused_in_one_line(
    cluster: Cluster, database: str, broker_url: str, programs: Programs, command: list[str]
) -> None:
    name = database.rpartition("/")[2].partition("?")[0]
    with psycopg.connect(cluster.admin_url, autocommit=True) as admin:
        admin.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on".encode())
    environment = {"OUTBOX_DATABASE_URL": database, "OUTBOX_BROKER_URL": broker_url}
    refused = programs.outbox(*command, env=environment)
    assert refused.wait(20) == 4
    assert "read-only" in refused.output()
    assert "Traceback" not in refused.output()

"""The servers only tests need: RabbitMQ, PgBouncer and other versions of PostgreSQL."""

import shutil
from collections.abc import Callable
from pathlib import Path

import kombu
import psycopg
import pytest

from relay.embedded import Postgres
from relay.embedded.guardian import living
from tests.support import debian
from tests.support.pgbouncer import PgBouncer
from tests.support.postgres import Cluster, postgres_of
from tests.support.rabbitmq import RabbitMQ


def put(url: str, body: str) -> None:
    """Publish and wait until the broker has confirmed."""
    with kombu.Connection(url, transport_options={"confirm_publish": True}) as connection:
        queue = connection.SimpleQueue("kept")
        queue.put(body)
        queue.close()


def get(url: str) -> str:
    with kombu.Connection(url) as connection:
        queue = connection.SimpleQueue("kept")
        message = queue.get(timeout=10)
        message.ack()
        queue.close()
        return str(message.payload)


def test_rabbitmq_keeps_what_it_confirmed_over_freeze_and_kill(rabbitmq: RabbitMQ, amqp_url: str) -> None:
    other = rabbitmq.add_vhost()
    put(amqp_url, "message")
    rabbitmq.freeze()
    with pytest.raises(OSError, match="timed out"), kombu.Connection(amqp_url, connect_timeout=0.2) as connection:
        connection.connect()
    rabbitmq.thaw()
    rabbitmq.kill()
    assert not rabbitmq.running
    rabbitmq.start()
    assert get(amqp_url) == "message"
    with kombu.Connection(other) as connection:
        assert connection.SimpleQueue("kept").qsize() == 0


def test_pgbouncer_gives_a_server_connection_per_transaction(
    empty_database: str, pgbouncer_to: Callable[[str], PgBouncer]
) -> None:
    pgbouncer = pgbouncer_to(empty_database)
    with psycopg.connect(pgbouncer.url(empty_database)) as one, psycopg.connect(pgbouncer.url(empty_database)) as two:
        pids = [each.execute("SELECT pg_backend_pid()").fetchone() for each in (one, two)]
        assert pids[0] != pids[1]
        one.commit()
        two.commit()
        pgbouncer.kill()
        with pytest.raises(psycopg.OperationalError):
            one.execute("SELECT 1")
    process = pgbouncer.start().process
    with psycopg.connect(pgbouncer.url(empty_database)) as again:
        assert again.execute("SELECT 1").fetchone() == (1,)
    pgbouncer.close()
    assert living([process.pid]) == []


def test_both_ends_of_the_supported_versions_are_at_hand(each_cluster: Cluster, each_empty_database: str) -> None:
    with psycopg.connect(each_empty_database) as connection:
        assert connection.info.server_version // 10000 in (15, 18)


def test_an_unpacked_postgres_runs_though_its_cache_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root the servers run under an account that may not enter our cache."""
    installed = Path("/usr/lib/postgresql/15")
    if installed.exists():  # pretend that it was unpacked: the real thing is 50 MB of packages
        for part in (installed, Path("/usr/share/postgresql/15")):
            shutil.copytree(part, tmp_path / part.relative_to("/"), symlinks=True)
        monkeypatch.setattr("tests.support.postgres.unpack", lambda _: tmp_path)
    monkeypatch.setattr("tests.support.postgres.postgres_installations", dict)
    tmp_path.chmod(0o700)
    binaries = postgres_of(15)
    with Postgres(binaries, settings={"fsync": False}) as postgres, psycopg.connect(postgres.url()) as connection:
        assert connection.info.server_version // 10000 == 15


def test_packages_that_are_nowhere_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(debian.Apt, "update", lambda _: None)
    with pytest.raises(debian.Unavailable, match="apt-get"):
        debian.unpack("no-such-package-anywhere")

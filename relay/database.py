"""The relay's connections to PostgreSQL: how they are made, and what is checked before one is used."""

import re
from collections.abc import Callable
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import psycopg
from psycopg import conninfo

from outbox.errors import ConfigurationError, SchemaMismatch, Unreachable
from outbox.migrations import REVISION
from relay.queries import Queries
from relay.session import Session

Database: TypeAlias = psycopg.Connection[tuple[Any, ...]]

_SCHEMES = ("postgresql", "postgres", "postgresql+psycopg")


def libpq_url(url: str) -> str:
    """The URL as libpq wants it; SQLAlchemy's `postgresql+psycopg://` is accepted too."""
    scheme, separator, rest = url.partition("://")
    if separator and scheme.startswith("postgresql+") and scheme not in _SCHEMES:
        raise ConfigurationError(
            "the database URL names another driver, but psycopg 3 is used here; write postgresql:// or postgresql+psycopg://"
        )
    if not separator or scheme not in _SCHEMES:
        raise ConfigurationError(
            "the database URL does not start with postgresql:// ; give OUTBOX_DATABASE_URL="
            "postgresql://user@host:5432/name (PostgreSQL is the only database supported)"
        )
    plain = "postgresql://" + rest
    if not _well_formed(plain):
        # libpq's own message quotes the URL, password and all.
        raise ConfigurationError(
            "the database URL is malformed (host, port or an unknown option); the form is"
            " postgresql://user:password@host:5432/name, special characters percent-encoded"
        )
    return plain


def _well_formed(url: str) -> bool:
    try:
        parsed = conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        return False
    # A password with an unescaped @ ends up in the host's name, and from there in error messages.
    if "@" in str(parsed.get("host") or ""):
        return False
    ports = str(parsed.get("port") or "5432").split(",")
    return all(not port or (port.isdecimal() and 0 < int(port) < 65536) for port in ports)


def shown_url(url: str) -> str:
    """A URL fit for a screen: host, port and path, never user, password or options."""
    if ";" in url and all("://" in each for each in url.split(";")):
        return ";".join(map(shown_url, url.split(";")))  # Celery's list of hosts
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "(malformed URL)"
    # A password with an unescaped / or ? ends up in the path or the query: then nothing of it is safe to show.
    if "://" not in url or not parts.scheme or "@" in parts.path + parts.query + parts.fragment:
        return "(malformed URL)"
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
    return f"{parts.scheme}://{host}{port}{parts.path}"


class RefusedByServer(Unreachable):
    """The server answers and does not let us in: a wrong password, an unknown database. Waiting alone mends nothing."""


class UnsuitableRole(ConfigurationError, Unreachable):
    """We are in, but may not do our work or not in the way it must be done."""


class ReadOnlyStandby(SchemaMismatch, ConnectionError):
    """At the start a mistake; later perhaps a failover that is under way."""


# The server's own words: libpq gives no code for a refused connection. In another language we wait, as for an outage.
_REFUSALS = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|(database|role) \"[^\"]*\" does not exist"
    r"|no such (database|user)|permission denied for database|is not permitted to log in"
)
_STATEMENT_SECONDS = 60


def connect(
    url: str,
    ttl: float,
    label: str,
    *,
    deadline: float = _STATEMENT_SECONDS + 5,
    wanted: Callable[[], bool] | None = None,
) -> Session:
    """An autocommit connection that notices a dead peer and can never sit in a transaction for longer than a lease.

    No statement waits longer than `deadline` for its answer, nor for an answer that is not `wanted` any more.
    """
    seconds = max(1, round(ttl))
    settings = {
        "idle_in_transaction_session_timeout": f"{seconds}s",
        "statement_timeout": f"{_STATEMENT_SECONDS}s",
        # Every table here is read by index or by place. Planned while small, a statement would be cached as a
        # sequential scan, and the leader row is then searched among all its dead versions.
        "enable_seqscan": "off",
        # Under REPEATABLE READ two of our own statements that meet on the leader row would fail instead of waiting.
        "default_transaction_isolation": "read\\ committed",
    }
    try:
        try:
            connection = _open(url, seconds, label, " ".join(f"-c {name}={value}" for name, value in settings.items()))
        except psycopg.OperationalError as error:
            if "startup parameter" not in str(error):
                raise
            connection = _open(url, seconds, label, "")  # a pooler that knows no options
        connection.deadline = deadline
        if wanted is not None:
            connection.wanted_while(wanted)
        try:
            _settle_in(connection)
        except BaseException:
            connection.close()
            raise
    except psycopg.OperationalError as error:
        kind = RefusedByServer if _REFUSALS.search(str(error)) else Unreachable
        raise kind(f"cannot connect to PostgreSQL at {shown_url(url)}: {first_line(error)}") from None
    return connection


def _open(url: str, seconds: int, label: str, options: str) -> Session:
    return Session.connect(
        libpq_url(url),
        autocommit=True,
        connect_timeout=seconds,
        keepalives_idle=seconds,
        keepalives_interval=1,
        keepalives_count=3,
        tcp_user_timeout=seconds * 1000,
        application_name=f"outbox {label}"[:63],
        options=options or None,
    )


def _settle_in(connection: Session) -> None:
    """Find out whether the session is ours alone, and make its commits durable if it is.

    A pooler greets its clients with a process number of its own making, PostgreSQL with that of the backend. Behind
    one nothing is set: it would reach other clients of the pool and not our next statement. What must hold there is
    part of the statements themselves (queries.render.DURABLE), or is asked for here.
    """
    asked = connection.execute(
        "SELECT pg_backend_pid(), current_setting('synchronous_commit'),"
        " current_setting('default_transaction_isolation')"
    )
    backend, commits, isolation = asked.fetchall()[0]
    connection.own = backend == connection.pgconn.backend_pid
    if not connection.own:
        connection.prepare_threshold = None
        if isolation != "read committed":
            raise UnsuitableRole(
                f"default_transaction_isolation of this role is {isolation}, and behind a pooler it cannot be set for"
                " the relay alone; ALTER ROLE ... SET default_transaction_isolation = 'read committed'"
            )
    elif commits in ("off", "local"):
        # A window must be on disk before it is published; a server or role default of off would break that.
        connection.execute("SELECT set_config('synchronous_commit', 'on', false)")


class ForeignPosition(SchemaMismatch):
    """The stored position is that of another cluster; see relay/rebase.py."""


def identify(connection: Database, queries: Queries) -> int:
    """Refuse a database that is not migrated, is read-only, or is not the cluster whose snapshots we hold.

    Gives the epoch that the database has seen.
    """
    try:
        row = connection.execute(queries.identify, {}).fetchone()
    except (psycopg.errors.UndefinedFunction, psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        raise SchemaMismatch('the outbox tables are missing in this database; run "outbox migrate"') from None
    except psycopg.errors.InsufficientPrivilege as error:
        raise UnsuitableRole(f"{first_line(error)}; give the relay's role its rights (deploy/roles.sql)") from None
    if row is None:
        raise SchemaMismatch('outbox_leader has no row; it was emptied by hand, run "outbox migrate" on a new schema')
    foreign, revision, in_recovery, epoch = row
    if in_recovery:
        raise ReadOnlyStandby("this PostgreSQL is a read-only standby; give the address of the primary")
    if revision != REVISION:
        fix = 'run "outbox migrate"' if revision < REVISION else "upgrade celery-outbox-relay"
        raise SchemaMismatch(f"the database has schema revision {revision}, this program needs {REVISION}; {fix}")
    if foreign:
        raise ForeignPosition(
            f"this database was moved here from another cluster ({foreign}), so the stored position means nothing here"
            " and nothing is published; when the old database is out of use, run: outbox relay --adopt"
        )
    return int(epoch)


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]

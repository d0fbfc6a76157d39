"""The relay's connections to PostgreSQL: how they are made, and what is checked before one is used."""

from typing import Any, TypeAlias
from urllib.parse import urlsplit

import psycopg
from psycopg import conninfo

from outbox.errors import ConfigurationError, SchemaMismatch, Unreachable
from outbox.migrations import REVISION
from relay.queries import Queries

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


def connect(url: str, ttl: float, label: str) -> Database:
    """An autocommit connection that notices a dead peer and can never sit in a transaction for longer than a lease."""
    seconds = max(1, round(ttl))
    try:
        connection: Database = psycopg.connect(
            libpq_url(url),
            autocommit=True,
            connect_timeout=seconds,
            keepalives_idle=seconds,
            keepalives_interval=1,
            keepalives_count=3,
            tcp_user_timeout=seconds * 1000,
            application_name=f"outbox {label}"[:63],
            # enable_seqscan: every table here is read by index or by place. Planned while small, a statement would be
            # cached as a sequential scan, and the leader row is then searched among all its dead versions.
            options=f"-c idle_in_transaction_session_timeout={seconds * 1000} -c statement_timeout=60000"
            " -c enable_seqscan=off",
        )
        _require_durable_commits(connection)
    except psycopg.OperationalError as error:
        raise Unreachable(f"cannot connect to PostgreSQL at {shown_url(url)}: {first_line(error)}") from None
    return connection


def _require_durable_commits(connection: Database) -> None:
    """A window must be on disk before it is published; a server or role default of off would break that."""
    connection.execute(
        "SELECT set_config('synchronous_commit', 'on', false)"
        " WHERE current_setting('synchronous_commit') IN ('off', 'local')"
    )
    # Under REPEATABLE READ two of our own statements that meet on the leader row would fail instead of waiting.
    connection.execute("SELECT set_config('default_transaction_isolation', 'read committed', false)")


def identify(connection: Database, queries: Queries) -> None:
    """Refuse a database that is not migrated, is read-only, or is not the cluster whose snapshots we hold."""
    try:
        row = connection.execute(queries.identify, {}).fetchone()
    except (psycopg.errors.UndefinedFunction, psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        raise SchemaMismatch('the outbox tables are missing in this database; run "outbox migrate"') from None
    if row is None:
        raise SchemaMismatch('outbox_leader has no row; it was emptied by hand, run "outbox migrate" on a new schema')
    same_cluster, revision, in_recovery = row
    if in_recovery:
        raise SchemaMismatch("this PostgreSQL is a read-only standby; give the address of the primary")
    if revision != REVISION:
        fix = 'run "outbox migrate"' if revision < REVISION else "upgrade celery-outbox-relay"
        raise SchemaMismatch(f"the database has schema revision {revision}, this program needs {REVISION}; {fix}")
    if not same_cluster:
        raise SchemaMismatch(
            "this database was moved here from another cluster (its system identifier differs), so the stored position"
            " means nothing here; stop all relays and set the position anew before publishing"
        )


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]

"""Create and upgrade the tables: Alembic's branch `outbox`, in one transaction under a lock, so that any number of
deployments may run it at the same moment."""

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy.exc import DBAPIError

from outbox import migrations
from outbox.errors import SchemaMismatch, Unreachable
from outbox.statements import DEFAULT_SCHEMA, quoted_schema
from relay.database import first_line, libpq_url, shown_url

OLDEST_POSTGRES = 150000
_BRANCH_HEAD = "outbox@head"
_VERSION_TABLE = "outbox_alembic_version"
_CREATORS = """\
SELECT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE CAST(CAST(a.grantee AS regrole) AS text) END
FROM pg_namespace n JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = 'outbox_message',
    aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) a LEFT JOIN pg_roles r ON r.oid = a.grantee
WHERE n.nspname = :schema AND a.privilege_type = 'CREATE' AND a.grantee NOT IN (n.nspowner, c.relowner)
    AND r.rolsuper IS NOT TRUE ORDER BY 1"""


@dataclass(frozen=True, slots=True)
class MigrationStatus:
    """What the database has and what this program needs."""

    current: str | None
    needed: str

    @property
    def pending(self) -> bool:
        return self.current != self.needed


def upgrade(database_url: str, schema: str = DEFAULT_SCHEMA) -> str | None:
    """Bring the schema to the newest revision; returns the one before, None where there were no tables."""
    return _run(database_url, schema, lambda config: command.upgrade(config, _BRANCH_HEAD))


def downgrade(database_url: str, schema: str = DEFAULT_SCHEMA) -> None:
    """Remove every table with everything in it."""
    _run(database_url, schema, lambda config: command.downgrade(config, "outbox@base"))


def script(schema: str = DEFAULT_SCHEMA) -> str:
    """The SQL of a full migration, for those who run it by other means."""
    buffer = io.StringIO()
    quoted = quoted_schema(schema)
    preamble = (f"CREATE SCHEMA IF NOT EXISTS {quoted}", f"SET LOCAL search_path TO {quoted}, pg_temp")
    config = _config(schema, buffer=buffer, preamble=preamble)
    command.upgrade(config, _BRANCH_HEAD, sql=True)
    return buffer.getvalue()


def status(database_url: str, schema: str = DEFAULT_SCHEMA) -> MigrationStatus:
    """Which revision is in force, whoever ran the migration."""
    with _transaction(database_url) as connection:
        return MigrationStatus(_current(connection, schema), _newest(schema))


def creators(database_url: str, schema: str = DEFAULT_SCHEMA) -> tuple[str, ...]:
    """Roles that may create objects in the schema beside its owner and that of the tables: whoever can put a function
    there can have it run by one of ours, which act as the owner."""
    with _transaction(database_url) as connection:
        return tuple(connection.execute(sa.text(_CREATORS), {"schema": schema}).scalars())


def _run(database_url: str, schema: str, work: Callable[[Config], None]) -> str | None:
    quoted = quoted_schema(schema).replace("%", "%%")
    with _transaction(database_url) as connection:
        _refuse_old_server(connection)
        # A transaction lock: released by whatever ends the transaction, and safe behind a pooler.
        connection.execute(
            sa.text("SELECT pg_advisory_xact_lock(hashtextextended('outbox migrate ' || CAST(:schema AS text), 0))"),
            {"schema": schema},
        )
        before = _current(connection, schema)
        _refuse_foreign_runner(connection, schema, before)
        _refuse_newer(before)
        connection.exec_driver_sql("SET LOCAL lock_timeout = '10s'")
        if not _exists(connection, "SELECT to_regnamespace(quote_ident(:schema)) IS NOT NULL", schema):
            connection.exec_driver_sql(f"CREATE SCHEMA {quoted}")
        connection.exec_driver_sql(f"SET LOCAL search_path TO {quoted}, pg_temp")
        work(_config(schema, connection=connection))
    return before


@contextmanager
def _transaction(database_url: str) -> Iterator[sa.Connection]:
    """One transaction; what the server refuses becomes one clear line."""
    url = libpq_url(database_url)
    # libpq reads the URL itself: several hosts, services and options that SQLAlchemy does not know work too.
    engine = sa.create_engine(
        "postgresql+psycopg://",
        creator=lambda: psycopg.connect(url, connect_timeout=10),
        poolclass=sa.NullPool,
        # Whatever the database's default is: under REPEATABLE READ the snapshot would be older than the lock.
        isolation_level="READ COMMITTED",
    )
    try:
        with engine.begin() as connection:
            yield connection
    except DBAPIError as error:
        match error.orig:
            case psycopg.errors.InsufficientPrivilege():
                fix = "run it as the schema's owner, or GRANT CREATE ON SCHEMA to this role"
                raise SchemaMismatch(f"this role may not create the tables: {first_line(error.orig)}; {fix}") from None
            case psycopg.errors.ReadOnlySqlTransaction():
                raise SchemaMismatch("this PostgreSQL is read-only; give the address of the primary") from None
            case psycopg.errors.LockNotAvailable():
                raise SchemaMismatch("a table is locked by another transaction; end it and run this again") from None
            case psycopg.OperationalError() as cause:
                shown = shown_url(database_url)
                raise Unreachable(f"cannot connect to PostgreSQL at {shown}: {first_line(cause)}") from None
        raise


def _config(schema: str, **attributes: object) -> Config:
    config = Config()
    config.set_main_option("script_location", str(migrations.folder()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes.update(attributes, schema=schema)
    return config


def _newest(schema: str) -> str:
    head = ScriptDirectory.from_config(_config(schema)).get_current_head()
    return head or migrations.REVISION


def _current(connection: sa.Connection, schema: str) -> str | None:
    found = "SELECT to_regprocedure(quote_ident(:schema) || '.outbox_revision()') IS NOT NULL"
    if not _exists(connection, found, schema):
        return None
    revision: str = connection.exec_driver_sql(
        f"SELECT {quoted_schema(schema)}.outbox_revision()".replace("%", "%%")
    ).scalar_one()
    return revision


def _refuse_old_server(connection: sa.Connection) -> None:
    number = int(connection.exec_driver_sql("SHOW server_version_num").scalar_one())
    if number < OLDEST_POSTGRES:
        raise SchemaMismatch(f"PostgreSQL {number // 10000} is too old; the outbox needs PostgreSQL 15 or newer")


def _refuse_foreign_runner(connection: sa.Connection, schema: str, current: str | None) -> None:
    """Tables that someone's own Alembic made are upgraded there, or its bookkeeping would be wrong ever after."""
    ours = f"SELECT to_regclass(quote_ident(:schema) || '.{_VERSION_TABLE}') IS NOT NULL"
    if current is not None and not _exists(connection, ours, schema):
        raise SchemaMismatch(
            "these tables were made by your own Alembic; upgrade them there: alembic upgrade outbox@head"
        )


def _refuse_newer(current: str | None) -> None:
    known = [script.revision for script in ScriptDirectory.from_config(_config(DEFAULT_SCHEMA)).walk_revisions()]
    if current is not None and current not in known:
        raise SchemaMismatch(f"the tables are of revision {current}, newer than this version; upgrade the library")


def _exists(connection: sa.Connection, question: str, schema: str) -> bool:
    return bool(connection.execute(sa.text(question), {"schema": schema}).scalar_one())

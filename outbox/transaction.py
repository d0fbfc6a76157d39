"""The caller's transaction: find the psycopg connection beneath whatever was given, and make sure it carries one.

The caller owns the transaction: nothing here begins, flushes, commits or rolls back. Where no transaction would
carry the message, it is refused, because a message that commits alone is the bug this library exists to remove.

Neither psycopg nor SQLAlchemy's asyncio is imported: whoever holds one of their connections has loaded them.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, InvalidRequestError, UnboundExecutionError
from sqlalchemy.orm import Session, scoped_session

from outbox.errors import ConfigurationError, InvalidMessage, NotInTransaction, SchemaMismatch

if TYPE_CHECKING:
    import psycopg
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

    Writable: TypeAlias = Session | scoped_session[Any] | Connection | psycopg.Connection[Any]
    AsyncWritable: TypeAlias = AsyncSession | async_scoped_session[Any] | AsyncConnection | psycopg.AsyncConnection[Any]
else:
    Writable = AsyncWritable = Any

# A connection may be set to stream its results; SQLAlchemy would then declare a cursor for our INSERT.
NO_STREAM: Mapping[str, Any] = {"stream_results": False, "yield_per": None}

# SQLSTATEs of a table, column, function or schema that is not there.
_NOT_MIGRATED = frozenset(("42P01", "42703", "42883", "3F000"))
_IDLE, _ACTIVE, _IN_TRANSACTION, _FAILED = range(4)  # psycopg.pq.TransactionStatus


@dataclass(frozen=True, slots=True)
class Carrier:
    """A psycopg connection inside the caller's transaction."""

    driver: Any
    connection: Connection | None = None
    """SQLAlchemy's connection around it, if there is one."""

    @property
    def watched(self) -> bool:
        """Whether somebody listens to SQLAlchemy's statements (echo, the hooks of tracers). They must not miss the
        message, so it then goes SQLAlchemy's way, which costs about as much again. If that cannot be told: yes."""
        connection = self.connection
        return connection is not None and bool(
            getattr(connection, "_echo", True)
            or getattr(connection, "_has_events", True)
            or getattr(connection.engine, "_has_events", True)
            or getattr(connection.dialect, "_has_events", True)
        )


def sync_carrier(given: object) -> Carrier:
    """For Outbox."""
    if isinstance(given, scoped_session):
        given = given()
    if isinstance(given, Session | Connection):
        with session_errors(given):
            return carrier_of(given if isinstance(given, Connection) else given.connection())
    if is_psycopg(given, "Connection"):
        return psycopg_carrier(given)
    if is_async_sqlalchemy(given) or is_psycopg(given, "AsyncConnection"):
        raise InvalidMessage(f"Outbox is for synchronous code; with {type(given).__name__} use AsyncOutbox and await")
    raise stranger(given, "Session or Connection, or a psycopg Connection")


def refuse_sync(given: object) -> None:
    """For AsyncOutbox."""
    if isinstance(given, Session | Connection | scoped_session) or is_psycopg(given, "Connection"):
        raise InvalidMessage(f"AsyncOutbox is for async code; with {type(given).__name__} use Outbox, without await")
    raise stranger(given, "AsyncSession or AsyncConnection, or a psycopg AsyncConnection")


@contextmanager
def session_errors(given: Any) -> Iterator[None]:
    """What can be wrong with a session or connection before anything is sent."""
    try:
        if not given.in_transaction():
            raise NotInTransaction(
                "the outbox was called outside a transaction: the message would commit apart from your changes, or"
                " never. Call it inside `with session.begin():`, before the commit"
            )
        yield
    except UnboundExecutionError:
        raise ConfigurationError(
            "this Session has several engines; pass the connection of the one that holds the outbox:"
            " add(session.connection(bind_arguments={...}), ...)"
        ) from None
    except InvalidRequestError as error:
        raise NotInTransaction(
            "the outbox was called in a transaction that has already failed or ended; roll it back and begin again"
        ) from error


def carrier_of(connection: Connection) -> Carrier:
    if connection.closed or connection.invalidated:
        raise NotInTransaction("the outbox was called on a connection that is closed or lost; open one and begin again")
    dialect = connection.dialect
    if dialect.name != "postgresql" or dialect.driver not in ("psycopg", "psycopg_async"):
        raise ConfigurationError(
            f"the outbox writes through psycopg 3, not {dialect.name}+{dialect.driver}; make the engine with"
            " postgresql+psycopg://"
        )
    driver = connection.connection.driver_connection
    # in_transaction() is true even on an AUTOCOMMIT engine; only the driver knows what really happens.
    if getattr(driver, "autocommit", False):
        raise NotInTransaction(
            "the outbox was called on an AUTOCOMMIT connection: the message would commit apart from your changes."
            " Use a connection with a real transaction (isolation_level other than AUTOCOMMIT)"
        )
    _refuse_failed(driver)
    return Carrier(driver, connection)


def psycopg_carrier(driver: Any) -> Carrier:
    if driver.closed:
        raise NotInTransaction("the outbox was called on a connection that is closed; open one and begin again")
    _refuse_failed(driver)
    # Without autocommit every statement of psycopg is in a transaction that the caller commits.
    if driver.autocommit and driver.info.transaction_status == _IDLE:
        raise NotInTransaction(
            "the outbox was called on an autocommit connection outside a transaction: the message would commit apart"
            " from your changes. Call it inside `with connection.transaction():`"
        )
    return Carrier(driver)


def _refuse_failed(driver: Any) -> None:
    if driver.pgconn.transaction_status == _FAILED:
        raise NotInTransaction(
            "the outbox was called in a transaction that has already failed; roll it back and begin again"
        )


def unclear(carrier: Carrier) -> bool:
    """In a pipeline the status of the transaction is only known once the pending answers have been read."""
    driver = carrier.driver
    return bool(driver.autocommit and driver.info.transaction_status == _ACTIVE and driver.info.pipeline_status)


def driver_error() -> type[Exception]:
    error: type[Exception] = sys.modules["psycopg"].Error
    return error


def plain_cursor(carrier: Carrier, kind: str = "Cursor") -> Any:
    """Whatever cursor and rows the caller has made the default of the connection."""
    psycopg = sys.modules["psycopg"]
    return getattr(psycopg, kind)(carrier.driver, row_factory=psycopg.rows.tuple_row)


def readable(error: Exception, carrier: Carrier) -> Exception:
    """PostgreSQL's error as the caller knows it (SQLAlchemy's around psycopg's), without the parameters: they are the
    payload. A schema without our tables is named as what it is."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    if getattr(cause, "sqlstate", None) in _NOT_MIGRATED:
        return SchemaMismatch(
            "the outbox tables are not in this database and schema, or are older than this library; run"
            " `outbox migrate` (for another schema: Outbox(schema=...))"
        )
    if isinstance(error, DBAPIError):
        error.hide_parameters, error.params = True, None
        return error
    if carrier.connection is None:
        return error
    return DBAPIError.instance(
        None,
        None,
        error,
        driver_error(),
        hide_parameters=True,
        connection_invalidated=is_lost(error, carrier),
        dialect=carrier.connection.dialect,
    )


def is_lost(error: Exception, carrier: Carrier) -> bool:
    """Whether SQLAlchemy has to be told that its connection is gone: the error came past it."""
    connection = carrier.connection
    if connection is None or isinstance(error, DBAPIError):
        return False
    return bool(carrier.driver.closed)


def is_psycopg(given: object, name: str) -> bool:
    module = sys.modules.get("psycopg")
    return module is not None and isinstance(given, getattr(module, name))


def is_async_sqlalchemy(given: object, *names: str) -> bool:
    module = sys.modules.get("sqlalchemy.ext.asyncio")
    names = names or ("AsyncSession", "AsyncConnection", "async_scoped_session")
    return module is not None and isinstance(given, tuple(getattr(module, name) for name in names))


def stranger(given: object, wanted: str) -> InvalidMessage:
    hint = ""
    home = type(given).__module__
    if isinstance(given, Engine) or is_async_sqlalchemy(given, "AsyncEngine"):
        hint = "; an engine has no transaction, use `with engine.begin() as connection:`"
    elif home.startswith(("psycopg2", "asyncpg", "pg8000")):
        hint = "; the outbox writes through psycopg 3"
    elif home.startswith("django"):
        hint = "; with Django pass the psycopg connection beneath it: django.db.connection.connection"
    return InvalidMessage(f"the first argument must be your SQLAlchemy {wanted}, not {type(given).__name__}{hint}")

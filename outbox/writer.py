"""`Outbox.add`: write a message through the caller's own transaction.

The caller owns the transaction: nothing here begins, flushes, commits or rolls back. Where no transaction would
carry the message, it is refused, because a message that commits alone is the bug this library exists to remove.
"""

from typing import TypeAlias

from sqlalchemy import Connection
from sqlalchemy.orm import Session, scoped_session

from outbox import codec, statements
from outbox.errors import InvalidMessage, NotInTransaction
from outbox.ids import MessageIds
from outbox.message import Added, Message

Writable: TypeAlias = Session | scoped_session[Session] | Connection


class Outbox:
    """Holds no connection; make one per program, use it from any thread."""

    def __init__(self, schema: str = statements.DEFAULT_SCHEMA) -> None:
        self._add = statements.add_message(schema)
        self._ids = MessageIds()

    def add(self, session: Writable, message: Message) -> Added:
        """Insert the message in the open transaction of `session`; it exists if and only if that commits."""
        if not isinstance(message, Message):
            raise InvalidMessage(
                f'add() takes a Message, not {type(message).__name__}: write Message("task.name", kwargs={{...}})'
            )
        row = _row(message)
        connection = _open_connection(session)
        added = Added(self._ids.new())
        connection.exec_driver_sql(self._add, {"id": added.id, **row})
        return added


def _row(message: Message) -> dict[str, object]:
    """Encode before touching the connection: a bad payload must leave the caller's transaction usable."""
    return {
        "task": message.task,
        "queue": message.queue,
        "priority": message.priority,
        "args": codec.encode(message.args, "args"),
        "kwargs": codec.encode(message.kwargs, "kwargs"),
        "headers": codec.encode(message.headers, "headers"),
        "body_hash": codec.body_hash(message.task, message.args, message.kwargs),
    }


def _open_connection(session: object) -> Connection:
    if isinstance(session, scoped_session):
        session = session()
    if not isinstance(session, Session | Connection):
        raise InvalidMessage(
            f"add() needs your SQLAlchemy Session or Connection as first argument, not {type(session).__name__}"
        )
    if not session.in_transaction():
        raise NotInTransaction(
            "add() was called outside a transaction: the message would commit apart from your changes, or never."
            " Call it inside `with session.begin():`, before the commit"
        )
    connection = session if isinstance(session, Connection) else session.connection()
    # in_transaction() is true even on an AUTOCOMMIT engine; only the driver knows what really happens.
    if getattr(connection.connection.driver_connection, "autocommit", False):
        raise NotInTransaction(
            "add() was called on an AUTOCOMMIT connection: the message would commit apart from your changes."
            " Use a connection with a real transaction (isolation_level other than AUTOCOMMIT)"
        )
    return connection

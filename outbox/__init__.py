"""Write a message in your own transaction.

from outbox import Message, Outbox

with Session(engine) as session, session.begin():
    session.add(order)
    session.flush()  # the database gives order.id
    outbox.add(session, Message("billing.charge", kwargs={"order_id": order.id}))
"""

from outbox.errors import (
    ConfigurationError,
    HandlerMisuse,
    InvalidMessage,
    NotInTransaction,
    OutboxError,
    SchemaMismatch,
    Unreachable,
)
from outbox.message import Added, Message
from outbox.writer import Outbox

__all__ = [
    "Added",
    "ConfigurationError",
    "HandlerMisuse",
    "InvalidMessage",
    "Message",
    "NotInTransaction",
    "Outbox",
    "OutboxError",
    "SchemaMismatch",
    "Unreachable",
]

"""Write a message in your own transaction.

from outbox import Message, Outbox

with Session(engine) as session, session.begin():
    session.add(order)
    outbox.add(session, Message("billing.charge", kwargs={"order_id": order.id}))
"""

from outbox.errors import (
    ConfigurationError,
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
    "InvalidMessage",
    "Message",
    "NotInTransaction",
    "Outbox",
    "OutboxError",
    "SchemaMismatch",
    "Unreachable",
]

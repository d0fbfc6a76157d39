"""Write a message in your own transaction.

from outbox import Message, Outbox

with Session(engine) as session, session.begin():
    session.add(order)
    session.flush()  # the database gives order.id
    outbox.add(session, Message("billing.charge", kwargs={"order_id": order.id}))
"""

from outbox.added import Added, AddedBatch, Existing
from outbox.async_writer import AsyncOutbox
from outbox.errors import (
    ConfigurationError,
    DedupConflict,
    HandlerMisuse,
    InvalidMessage,
    NotInTransaction,
    NotSupported,
    OutboxError,
    SchemaMismatch,
    Unreachable,
)
from outbox.fingerprint import fingerprint
from outbox.message import Message
from outbox.state import BatchProgress, Cancellation, CancelOutcome, Rejected, State
from outbox.writer import Outbox

__all__ = [
    "Added",
    "AddedBatch",
    "AsyncOutbox",
    "BatchProgress",
    "CancelOutcome",
    "Cancellation",
    "ConfigurationError",
    "DedupConflict",
    "Existing",
    "HandlerMisuse",
    "InvalidMessage",
    "Message",
    "NotInTransaction",
    "NotSupported",
    "Outbox",
    "OutboxError",
    "Rejected",
    "SchemaMismatch",
    "State",
    "Unreachable",
    "fingerprint",
]

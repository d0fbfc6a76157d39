"""Every error of the three rooms that a caller may want to catch. Each message says what, why and what to do.

    OutboxError
    ├── NotInTransaction       a message was added where no transaction would carry it
    ├── InvalidMessage         a message that could not run: wrong name, wrong value, wrong option
    ├── DedupConflict          a dedup key that stands for another body
    ├── NotSupported           asked of a message whose receipts are in another database
    ├── HandlerMisuse          a handler did what would break the one transaction of effect and receipt
    ├── ConfigurationError     a setting that is missing, malformed or contradicts another
    ├── SchemaMismatch         the database lacks our tables or has those of another version
    └── Unreachable            PostgreSQL or the broker does not answer

No message ever contains a payload or a password.
"""

from uuid import UUID


class OutboxError(Exception):
    """Root of the tree."""


class NotInTransaction(OutboxError):
    """The message would have committed alone, or never."""


class InvalidMessage(OutboxError, ValueError):
    """Refused before anything was written: the caller's transaction is untouched."""


class DedupConflict(OutboxError):
    """The same key for different work. Nothing was written, and the caller's transaction stays usable."""

    def __init__(self, message: str, existing: UUID) -> None:
        super().__init__(message)
        self.existing = existing
        """The id of the message that the key stands for."""


class NotSupported(OutboxError):
    """Cannot be done for this message, wherever it is asked. Nothing was written."""


class HandlerMisuse(OutboxError):
    """Refused before it could do harm: the run counts as failed, and nothing of it is committed."""


class ConfigurationError(OutboxError, ValueError):
    """Found when settings are built, before anything is started."""


class SchemaMismatch(OutboxError):
    """`outbox migrate` is needed, or this library is older than the database."""


class Unreachable(OutboxError, ConnectionError):
    """A server did not answer in time."""

"""All SQL of the consumers, each statement named, with a line saying why it has that shape."""

from dataclasses import dataclass, fields

from outbox.statements import quoted_schema

# One round trip before the handler. The lock only spares wasted work: a look that was a moment too early is caught by
# the primary key when the receipt is inserted. A role with synchronous_commit off is lifted for this transaction: an
# effect that is acknowledged to the broker must be on disk.
_LOCK_AND_LOOK = """\
SELECT pg_try_advisory_xact_lock(hashtextextended(%(consumer)s || ' ' || %(message_id)s::text, 0)),
    (SELECT r.status FROM {schema}.inbox_receipt r
     WHERE r.message_id = %(message_id)s::uuid AND r.consumer = %(consumer)s),
    clock_timestamp(), transaction_timestamp(),
    CASE WHEN current_setting('synchronous_commit') IN ('off', 'local')
         THEN set_config('synchronous_commit', 'on', true) END"""

# In the handler's transaction, after everything the handler wrote; the time it began says whether it still is the same.
_RECEIPT = """\
INSERT INTO {schema}.inbox_receipt
    (message_id, consumer, status, body_hash, published_at, epoch, relay, received_at)
VALUES (%(message_id)s, %(consumer)s, 'applied', decode(%(body_hash)s, 'hex'), %(published_at)s, %(epoch)s, %(relay)s,
    %(received_at)s)
ON CONFLICT (message_id, consumer) DO NOTHING
RETURNING transaction_timestamp()"""

# In a transaction of its own, after the handler's was rolled back; the relay turns it into a publication.
_RETRY = """\
INSERT INTO {schema}.inbox_retry AS r (message_id, consumer, kind, attempt, due_at, error)
VALUES (%(message_id)s, %(consumer)s, %(kind)s, %(attempt)s, clock_timestamp() + %(delay)s, %(error)s)
ON CONFLICT (message_id, consumer, kind) DO UPDATE
    SET attempt = greatest(r.attempt, excluded.attempt), due_at = excluded.due_at, error = excluded.error"""

# At worker start: the relay redelivers only to tasks that are registered.
_REGISTER = """\
INSERT INTO {schema}.inbox_consumer (task, receipt_timeout) VALUES (%(task)s, %(receipt_timeout)s)
ON CONFLICT (task) DO UPDATE SET receipt_timeout = excluded.receipt_timeout, last_seen = clock_timestamp()"""


@dataclass(frozen=True, slots=True)
class Statements:
    """The statements for one schema."""

    lock_and_look: str
    receipt: str
    retry: str
    register: str


def statements_for(schema: str) -> Statements:
    # A percent sign in the name would be read as a parameter by the driver.
    quoted = quoted_schema(schema).replace("%", "%%")
    texts = {"lock_and_look": _LOCK_AND_LOOK, "receipt": _RECEIPT, "retry": _RETRY, "register": _REGISTER}
    return Statements(**{field.name: texts[field.name].replace("{schema}", quoted) for field in fields(Statements)})

"""The inbox tables as SQLAlchemy metadata; see outbox/schema.py for what they are for."""

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import BYTEA, INTERVAL, JSON, UUID

from outbox.schema import DATABASE_CLOCK, EMPTY_OBJECT, check, optional, primary_key, required, timestamptz


def make_inbox_tables(metadata: sa.MetaData, schema: str | None = None) -> dict[str, sa.Table]:
    """Define the inbox tables in `metadata`; `schema` None = the first schema of search_path."""
    makers = (_receipt, _retry, _claim, _dead_letter, _consumer)
    return {table.name: table for table in (maker(metadata, schema) for maker in makers)}


def _receipt(metadata: sa.MetaData, schema: str | None) -> sa.Table:
    name = "inbox_receipt"
    return sa.Table(
        name,
        metadata,
        required("message_id", UUID),
        required("consumer", sa.Text),
        required("status", sa.Text),
        optional("body_hash", BYTEA),
        optional("result", JSON),
        optional("published_at", timestamptz()),
        optional("epoch", sa.BigInteger),
        optional("relay", sa.Text),
        optional("received_at", timestamptz()),
        required("applied_at", timestamptz(), DATABASE_CLOCK),
        primary_key(name, "message_id", "consumer"),
        check(name, "status", "status IN ('applied', 'dead', 'cancelled', 'expired', 'discarded')"),
        check(name, "body_hash", "octet_length(body_hash) = 32"),
        sa.Index("inbox_receipt_applied_at", "applied_at", postgresql_using="brin"),
        sa.Index("inbox_receipt_cancelled", "applied_at", postgresql_where=sa.text("status = 'cancelled'")),
        schema=schema,
        comment="the terminal outcome of a message at a consumer; this primary key decides every race",
    )


def _retry(metadata: sa.MetaData, schema: str | None) -> sa.Table:
    name = "inbox_retry"
    return sa.Table(
        name,
        metadata,
        required("message_id", UUID),
        required("consumer", sa.Text),
        required("kind", sa.Text),
        required("attempt", sa.Integer, sa.text("0")),
        required("due_at", timestamptz()),
        optional("error", sa.Text),
        optional("waits_for", UUID),
        primary_key(name, "message_id", "consumer", "kind"),
        check(name, "kind", "kind IN ('failure', 'start', 'check', 'early')"),
        check(name, "attempt", "attempt >= 0"),
        check(name, "waits_for", "waits_for IS NULL OR kind = 'early'"),
        sa.Index("inbox_retry_due", "due_at"),
        sa.Index("inbox_retry_waits_for", "waits_for", postgresql_where=sa.text("waits_for IS NOT NULL")),
        schema=schema,
        comment="what the relay should publish again, and when",
    )


def _claim(metadata: sa.MetaData, schema: str | None) -> sa.Table:
    return sa.Table(
        "inbox_claim",
        metadata,
        required("message_id", UUID),
        required("consumer", sa.Text),
        required("holder", UUID),
        required("expires_at", timestamptz()),
        primary_key("inbox_claim", "message_id", "consumer"),
        schema=schema,
        comment="a running outside effect, kept alive by a heartbeat",
    )


def _dead_letter(metadata: sa.MetaData, schema: str | None) -> sa.Table:
    name = "inbox_dead_letter"
    return sa.Table(
        name,
        metadata,
        required("message_id", UUID),
        required("consumer", sa.Text),
        required("category", sa.Text),
        required("error_class", sa.Text),
        required("error", sa.Text),
        required("traceback", sa.Text, sa.text("''::text")),
        required("error_group", sa.Text),
        required("attempts", sa.Integer, sa.text("0")),
        required("message", JSON),
        required("died_at", timestamptz(), DATABASE_CLOCK),
        primary_key(name, "message_id", "consumer"),
        check(name, "category", "category IN ('dead_letter', 'manual_review')"),
        check(name, "attempts", "attempts >= 0"),
        check(name, "message", "json_typeof(message) = 'object'"),
        sa.Index("inbox_dead_letter_group", "error_group", "died_at"),
        schema=schema,
        comment="details of a dead message, with a copy of it",
    )


def _consumer(metadata: sa.MetaData, schema: str | None) -> sa.Table:
    name = "inbox_consumer"
    return sa.Table(
        name,
        metadata,
        required("task", sa.Text),
        required("receipt_timeout", INTERVAL),
        required("policy", JSON, EMPTY_OBJECT),
        sa.Column(
            "inbox",
            sa.Text,
            comment="NULL: its receipts are here; otherwise the name of the inbox database this row was copied from",
        ),
        required("registered_at", timestamptz(), DATABASE_CLOCK),
        required("last_seen", timestamptz(), DATABASE_CLOCK),
        primary_key(name, "task"),
        check(name, "receipt_timeout", "receipt_timeout > interval '0'"),
        check(name, "policy", "json_typeof(policy) = 'object'"),
        schema=schema,
        comment="a registered consumer; only an operator removes it",
    )

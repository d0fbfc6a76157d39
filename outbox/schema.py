"""The outbox tables as SQLAlchemy metadata. The migrations are the truth; a test compares the two, to the letter.

Statements never use these objects: they exist for Alembic users (`target_metadata`) and for reading in tests.
"""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import BYTEA, JSON, TIMESTAMP, UUID
from sqlalchemy.types import UserDefinedType

EMPTY_OBJECT = sa.text("'{}'::json")
EMPTY_ARRAY = sa.text("'[]'::json")
DATABASE_CLOCK = sa.text("clock_timestamp()")


class Xid8(UserDefinedType[str]):
    """PostgreSQL's 64-bit transaction id; text on the Python side."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "xid8"


class Snapshot(UserDefinedType[str]):
    """PostgreSQL's pg_snapshot `xmin:xmax:xip,…`; text on the Python side."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "pg_snapshot"


def timestamptz() -> TIMESTAMP:
    return TIMESTAMP(timezone=True)


def required(name: str, kind: Any, default: Any = None) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False, server_default=default)


def optional(name: str, kind: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=True)


def primary_key(table: str, *columns: str) -> sa.PrimaryKeyConstraint:
    return sa.PrimaryKeyConstraint(*columns, name=f"{table}_pkey")


def check(table: str, name: str, condition: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(condition, name=f"{table}_{name}_check")


def make_outbox_tables(metadata: sa.MetaData, schema: str | None = None) -> dict[str, sa.Table]:
    """Define the outbox tables in `metadata`; `schema` None = the first schema of search_path."""
    makers = (_message, _leader, _window, _due, _key, _relay, _pause, _rejected, _audit)
    return {table.name: table for table in (maker(metadata, schema) for maker in makers)}


def _message(metadata: sa.MetaData, schema: str | None) -> sa.Table:
    name = "outbox_message"
    seq = sa.Sequence("outbox_message_seq", data_type=sa.BigInteger, cache=1, metadata=metadata, schema=schema)
    return sa.Table(
        name,
        metadata,
        required("id", UUID),
        required("xid", Xid8, sa.text("pg_current_xact_id()")),
        sa.Column("seq", sa.BigInteger, seq, nullable=False, server_default=seq.next_value()),
        required("task", sa.Text),
        optional("queue", sa.Text),
        optional("priority", sa.SmallInteger),
        required("args", JSON, EMPTY_ARRAY),
        required("kwargs", JSON, EMPTY_OBJECT),
        required("headers", JSON, EMPTY_OBJECT),
        optional("body_hash", BYTEA),
        optional("ordering_key", sa.Text),
        optional("key_prev", UUID),
        optional("unique_key", sa.Text),
        optional("batch_id", UUID),
        required("held", sa.Boolean, sa.false()),
        required("created_at", timestamptz(), DATABASE_CLOCK),
        optional("expires_at", timestamptz()),
        primary_key(name, "id"),
        sa.Index("outbox_message_log", "xid", "seq", postgresql_where=sa.text("NOT held")),
        sa.Index("outbox_message_held", "xid", "seq", postgresql_where=sa.text("held")),
        sa.Index("outbox_message_batch", "batch_id", postgresql_where=sa.text("batch_id IS NOT NULL")),
        schema=schema,
        comment="one message a row, inserted by the application and never updated",
    )


def _leader(metadata: sa.MetaData, schema: str | None) -> sa.Table:
    name = "outbox_leader"
    return sa.Table(
        name,
        metadata,
        required("singleton", sa.Boolean, sa.true()),
        required("epoch", sa.BigInteger, sa.text("0")),
        optional("holder", UUID),
        required("holds_lock", sa.Boolean, sa.false()),
        required("expires_at", timestamptz(), sa.text("'-infinity'::timestamptz")),
        required("window_no", sa.BigInteger, sa.text("0")),
        required("prev", Snapshot),
        optional("next", Snapshot),
        required("last_seq", sa.BigInteger, sa.text("0")),
        required("base_seq", sa.BigInteger, sa.text("0")),
        required("high_seq", sa.BigInteger, sa.text("0")),
        required("system_id", sa.BigInteger),
        required("reconciled", Snapshot),
        required("canary_epoch", sa.BigInteger, sa.text("0")),
        required("canary", sa.BigInteger, sa.text("0")),
        primary_key(name, "singleton"),
        check(name, "singleton", "singleton"),
        check(name, "epoch", "epoch >= 0"),
        check(name, "holder", "holder IS NOT NULL OR NOT holds_lock"),
        check(name, "last_seq", "last_seq >= base_seq"),
        schema=schema,
        comment="the lease, the position, the reconciled snapshot and the last canary value",
    )


def _window(metadata: sa.MetaData, schema: str | None) -> sa.Table:
    return sa.Table(
        "outbox_window",
        metadata,
        sa.Column("window_no", sa.BigInteger, autoincrement=False),
        required("from_snapshot", Snapshot),
        required("to_snapshot", Snapshot),
        required("last_seq", sa.BigInteger),
        required("epoch", sa.BigInteger),
        required("relay", sa.Text),
        required("closed_at", timestamptz(), DATABASE_CLOCK),
        primary_key("outbox_window", "window_no"),
        schema=schema,
        comment="a published stretch of the log, at most one row a second of publishing",
    )


_BLOCKED = """CASE blocked_by
    WHEN 'pause' THEN queue IS NOT NULL WHEN 'queue' THEN queue IS NOT NULL WHEN 'key' THEN ordering_key IS NOT NULL
    WHEN 'dead' THEN ordering_key IS NOT NULL ELSE blocked_by IS NULL END"""


def _due(metadata: sa.MetaData, schema: str | None) -> sa.Table:
    name = "outbox_due"
    return sa.Table(
        name,
        metadata,
        required("message_id", UUID),
        required("due_at", timestamptz()),
        required("attempt", sa.Integer, sa.text("0")),
        required("publication", sa.Integer, sa.text("0")),
        required("reason", sa.Text),
        required("seq", sa.BigInteger, sa.text("0")),
        optional("queue", sa.Text),
        optional("ordering_key", sa.Text),
        optional("blocked_by", sa.Text),
        optional("why", sa.Text),
        optional("parked_at", timestamptz()),
        primary_key(name, "message_id"),
        check(name, "attempt", "attempt >= 0"),
        check(name, "publication", "publication >= 0"),
        check(name, "reason", "reason IN ('scheduled', 'retry', 'redelivery', 'replay', 'parked')"),
        check(name, "blocked", _BLOCKED),
        sa.Index("outbox_due_at", "due_at", "seq", postgresql_where=sa.text("blocked_by IS NULL")),
        sa.Index(
            "outbox_due_blocked", "blocked_by", "queue", "seq", postgresql_where=sa.text("blocked_by IS NOT NULL")
        ),
        sa.Index("outbox_due_key", "ordering_key", "seq", postgresql_where=sa.text("ordering_key IS NOT NULL")),
        schema=schema,
        comment="a message to publish at a time: one plan a message",
    )


def _key(metadata: sa.MetaData, schema: str | None) -> sa.Table:
    name = "outbox_key"
    return sa.Table(
        name,
        metadata,
        required("kind", sa.Text),
        required("scope", sa.Text, sa.text("''::text")),
        required("key", sa.Text),
        required("message_id", UUID),
        optional("body_hash", BYTEA),
        required("created_at", timestamptz(), DATABASE_CLOCK),
        optional("expires_at", timestamptz()),
        primary_key(name, "kind", "scope", "key"),
        check(name, "kind", "kind IN ('dedup', 'unique', 'ordering')"),
        check(name, "key", "length(key) BETWEEN 1 AND 255"),
        check(name, "body_hash", "octet_length(body_hash) = 32"),
        sa.Index("outbox_key_message", "message_id"),
        schema=schema,
        comment="a dedup, unique or ordering key and the message that holds it",
    )


def _relay(metadata: sa.MetaData, schema: str | None) -> sa.Table:
    return sa.Table(
        "outbox_relay",
        metadata,
        required("holder", UUID),
        required("name", sa.Text),
        required("version", sa.Text),
        required("started_at", timestamptz(), DATABASE_CLOCK),
        required("seen_at", timestamptz(), DATABASE_CLOCK),
        optional("broker_ok_at", timestamptz()),
        optional("last_error", sa.Text),
        primary_key("outbox_relay", "holder"),
        schema=schema,
        comment="a running relay process; holder is random a process, name is only a label",
    )


def _pause(metadata: sa.MetaData, schema: str | None) -> sa.Table:
    return sa.Table(
        "outbox_pause",
        metadata,
        required("queue", sa.Text),
        required("paused_by", sa.Text),
        required("why", sa.Text),
        required("paused_at", timestamptz(), DATABASE_CLOCK),
        optional("paused_until", timestamptz()),
        primary_key("outbox_pause", "queue"),
        schema=schema,
        comment="a paused queue; queue '*' is everything",
    )


def _rejected(metadata: sa.MetaData, schema: str | None) -> sa.Table:
    name = "outbox_rejected"
    return sa.Table(
        name,
        metadata,
        sa.Column("id", sa.BigInteger, sa.Identity(always=True)),
        required("unique_key", sa.Text),
        required("live_id", UUID),
        required("count", sa.BigInteger, sa.text("1")),
        required("rejected_at", timestamptz(), DATABASE_CLOCK),
        primary_key(name, "id"),
        check(name, "count", "count > 0"),
        sa.Index("outbox_rejected_key", "unique_key", "live_id"),
        schema=schema,
        comment="duplicates refused by a unique key; their counts add up",
    )


def _audit(metadata: sa.MetaData, schema: str | None) -> sa.Table:
    return sa.Table(
        "outbox_audit",
        metadata,
        sa.Column("id", sa.BigInteger, sa.Identity(always=True)),
        required("at", timestamptz(), DATABASE_CLOCK),
        required("who", sa.Text),
        required("action", sa.Text),
        required("why", sa.Text, sa.text("''::text")),
        required("affected", sa.BigInteger, sa.text("0")),
        required("detail", JSON, EMPTY_OBJECT),
        primary_key("outbox_audit", "id"),
        schema=schema,
        comment="an operator's action",
    )

"""The invariant checker: what was written against what took effect.

A test writes an *intent* in the same transaction as the business rows and the message, so an intent that can be
seen was committed. Its handler writes an *effect* through the inbox transaction. No constraint of the ledger hides
a fault: effects have no unique key. After the storm, and once everything has settled, the two must balance.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
import sqlalchemy as sa
from psycopg import sql
from psycopg.rows import dict_row
from sqlalchemy.orm import Session

from relay.embedded import wait_until

Handle = Session | sa.Connection | psycopg.Connection[Any]

_EXAMPLES = 5

_CREATE = """
CREATE TABLE ledger_intent (
    message_id uuid NOT NULL,
    ordering_key text,
    position bigint,
    committed timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TABLE ledger_effect (
    id bigserial PRIMARY KEY,
    message_id uuid NOT NULL,
    run_id text,
    ordering_key text,
    position bigint,
    at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX ledger_intent_message ON ledger_intent (message_id);
CREATE INDEX ledger_effect_message ON ledger_effect (message_id);
"""

_INTENT = (
    "INSERT INTO ledger_intent (message_id, ordering_key, position) VALUES (:message_id, :ordering_key, :position)"
)
_EFFECT = (
    "INSERT INTO ledger_effect (message_id, run_id, ordering_key, position) "
    "VALUES (:message_id, :run_id, :ordering_key, :position)"
)

# Each query names the messages that break one rule. "applied" excuses nothing: it promises an effect.
_EXCUSED = "('dead', 'cancelled', 'expired', 'discarded')"
_LOST = f"""
    SELECT i.message_id FROM ledger_intent i
    WHERE NOT EXISTS (SELECT FROM ledger_effect e WHERE e.message_id = i.message_id)
      AND NOT EXISTS (SELECT FROM {{receipt}} r WHERE r.message_id = i.message_id AND r.status IN {_EXCUSED})
"""  # noqa: S608
_DOUBLED = "SELECT message_id FROM ledger_effect GROUP BY message_id HAVING count(*) > 1"
# Also an effect of a message whose receipt says that it was cancelled, expired, discarded or given up.
_PHANTOM = f"""
    SELECT DISTINCT e.message_id FROM ledger_effect e
    WHERE NOT EXISTS (SELECT FROM ledger_intent i WHERE i.message_id = e.message_id)
       OR EXISTS (SELECT FROM {{receipt}} r WHERE r.message_id = e.message_id AND r.status IN {_EXCUSED})
"""  # noqa: S608
_STUCK = """
    SELECT m.id FROM {message} m
    WHERE NOT m.task = ANY({plain})
      AND NOT EXISTS (SELECT FROM {receipt} r WHERE r.message_id = m.id)
      AND NOT EXISTS (SELECT FROM ledger_effect e WHERE e.message_id = m.id)
"""
# By id, not by time: the sequence cannot run backwards. A doubled message counts with its first effect.
_OUT_OF_ORDER = """
    SELECT message_id FROM (
        SELECT message_id, position, lag(position) OVER (PARTITION BY ordering_key ORDER BY id) AS before
        FROM (
            SELECT DISTINCT ON (message_id) id, message_id, ordering_key, position
            FROM ledger_effect WHERE ordering_key IS NOT NULL AND position IS NOT NULL
            ORDER BY message_id, id
        ) AS firsts
    ) AS steps
    WHERE before > position
"""
_APPLIED = """
    SELECT DISTINCT i.message_id FROM ledger_intent i JOIN ledger_effect e ON e.message_id = i.message_id
"""
_WRITTEN = "SELECT message_id FROM ledger_intent"


@dataclass(frozen=True)
class LedgerReport:
    """How many messages were written and applied, and how many broke which rule."""

    written: int
    applied: int
    lost: int  # committed, but without effect and without an outcome that explains it
    doubled: int  # more than one effect
    phantom: int  # an effect nobody committed an intent for, or one that the receipt denies
    stuck: int  # a message with neither receipt nor effect
    out_of_order: int  # neighbouring effects of one ordering key in the wrong order
    examples: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def balanced(self) -> bool:
        """Whether no rule is broken."""
        return not (self.lost or self.doubled or self.phantom or self.stuck or self.out_of_order)

    @property
    def settled(self) -> bool:
        """Whether nothing is under way any more."""
        return not (self.lost or self.stuck)

    def __str__(self) -> str:
        head = (
            f"ledger {'balanced' if self.balanced else 'NOT BALANCED'}: written {self.written}, "
            f"applied {self.applied}, lost {self.lost}, doubled {self.doubled}, phantom {self.phantom}, "
            f"stuck {self.stuck}, out of order {self.out_of_order}"
        )
        return "\n".join([head, *(f"  {rule}: {', '.join(ids)}" for rule, ids in self.examples)])


def create(url: str) -> None:
    """Make the ledger's tables in this database."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_CREATE)


def intend(handle: Handle, message_id: uuid.UUID, ordering_key: str | None = None, position: int | None = None) -> None:
    """Record an intent in the caller's transaction."""
    _execute(handle, _INTENT, {"message_id": message_id, "ordering_key": ordering_key, "position": position})


def effect(
    handle: Handle,
    message_id: uuid.UUID,
    run_id: str | None = None,
    ordering_key: str | None = None,
    position: int | None = None,
) -> None:
    """Record an effect in the handler's transaction; `run_id` tells one run of the handler from another."""
    values = {"message_id": message_id, "run_id": run_id, "ordering_key": ordering_key, "position": position}
    _execute(handle, _EFFECT, values)


def check(url: str, *, schema: str = "public", plain_tasks: Sequence[str] = ()) -> LedgerReport:
    """Compare intents, effects, receipts and messages in one snapshot.

    `plain_tasks` names tasks without our consumer: nobody writes receipts for them, so they are never stuck.
    """
    names: dict[str, sql.Composable] = {
        "message": sql.Identifier(schema, "outbox_message"),
        "receipt": sql.Identifier(schema, "inbox_receipt"),
        "plain": sql.Literal(list(plain_tasks)) + sql.SQL("::text[]"),
    }
    with psycopg.connect(url, row_factory=dict_row) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        rules = {
            "lost": _LOST,
            "doubled": _DOUBLED,
            "phantom": _PHANTOM,
            "stuck": _STUCK,
            "out_of_order": _OUT_OF_ORDER,
        }
        found = {rule: _count(connection, query, names) for rule, query in rules.items()}
        written, applied = (_count(connection, query, names)[0] for query in (_WRITTEN, _APPLIED))
    return LedgerReport(
        written=written,
        applied=applied,
        **{rule: count for rule, (count, _) in found.items()},
        examples=tuple((rule, examples) for rule, (_, examples) in found.items() if examples),
    )


def assert_balanced(url: str, *, schema: str = "public", plain_tasks: Sequence[str] = ()) -> LedgerReport:
    """Fail with the whole report unless every rule holds."""
    report = check(url, schema=schema, plain_tasks=plain_tasks)
    assert report.balanced, str(report)
    return report


def settle(url: str, deadline: float, *, schema: str = "public", plain_tasks: Sequence[str] = ()) -> LedgerReport:
    """Wait until nothing is lost or stuck any more, then demand that the ledger balances."""
    last = check(url, schema=schema, plain_tasks=plain_tasks)

    def settled() -> bool:
        nonlocal last
        last = check(url, schema=schema, plain_tasks=plain_tasks)
        return last.settled

    try:
        wait_until(settled, deadline, "every message to reach its end")
    except TimeoutError as error:
        raise AssertionError(f"{error}\n{last}") from None
    assert last.balanced, str(last)
    return last


def _count(
    connection: psycopg.Connection[dict[str, Any]], query: str, names: dict[str, sql.Composable]
) -> tuple[int, tuple[str, ...]]:
    inner = sql.SQL(query).format(**names)
    statement = sql.SQL(
        "WITH found (id) AS ({}) SELECT (SELECT count(*) FROM found) AS count, "
        "ARRAY(SELECT id::text FROM found LIMIT {}) AS examples"
    ).format(inner, sql.Literal(_EXAMPLES))
    row = connection.execute(statement).fetchone()
    assert row is not None
    return row["count"], tuple(row["examples"])


def _execute(handle: Handle, statement: str, values: dict[str, Any]) -> None:
    if isinstance(handle, psycopg.Connection):
        handle.execute(_as_psycopg(statement, values), values)
    else:
        handle.execute(sa.text(statement), values)


def _as_psycopg(statement: str, values: dict[str, Any]) -> bytes:
    for name in values:
        statement = statement.replace(f":{name}", f"%({name})s")
    return statement.encode()

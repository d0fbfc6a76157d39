"""What one add() does to the session and what stands in the row afterwards."""

import json
import threading
from collections import Counter
from typing import Any
from uuid import UUID

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from outbox import InvalidMessage, Message, Outbox, SchemaMismatch
from outbox.codec import body_hash
from relay import migrate
from tests.integration.outbox.storage import CHARGE, Order, committed, engine_of, watched

MESSAGE = Message(CHARGE, kwargs={"order_id": 7})


def test_one_statement_and_nothing_else(engine: sa.Engine) -> None:
    """No flush, no begin, no commit, no savepoint: the caller owns the transaction."""
    flushes: list[object] = []
    with Session(engine) as session:
        sa.event.listen(session, "before_flush", lambda *_: flushes.append(None))
        session.add(Order(id=7))
        session.connection()
        with watched(engine) as seen:
            Outbox().add(session, MESSAGE)
            Outbox().add(session, MESSAGE)
        assert [statement.split("(")[0] for statement in seen.statements] == [
            'INSERT INTO "public".outbox_message '
        ] * 2
        assert seen.transactions == []
        assert flushes == []
        assert session.new
        assert session.in_transaction()


def test_only_the_session_itself_begins(engine: sa.Engine) -> None:
    """`session.begin()` reaches the database with the first statement: here that is ours, and it begins once."""
    with watched(engine) as seen, Session(engine) as session, session.begin():
        Outbox().add(session, MESSAGE)
        assert seen.transactions == ["begin"]
    assert seen.transactions == ["begin", "commit"]


def test_the_row_says_what_the_message_said(engine: sa.Engine, database: str) -> None:
    args: list[Any] = [1, 2**70, -0.5, 1e300, True, None, 'quote " and \\ and \x7f', "Größe 日本語 🙂", [[]], {"a": {}}]
    kwargs = {"name": "Åse", "ключ": ["é"], "": {"n": 2**53 + 1}}
    message = Message(CHARGE, args, kwargs, queue="mail", priority=3, headers={"trace": "ä"})
    with Session(engine) as session, session.begin():
        added = Outbox().add(session, message)
        xid = session.execute(sa.text("SELECT pg_current_xact_id()::text")).scalar_one()
    with psycopg.connect(database) as connection:
        row = connection.execute(
            "SELECT id, xid::text, seq, task, queue, priority, args::text, kwargs::text, headers::text, body_hash, held"
            " FROM outbox_message"
        ).fetchone()
        assert row is not None
        clock = connection.execute(
            "SELECT clock_timestamp() - created_at BETWEEN '0' AND '1 min' FROM outbox_message"
        ).fetchone()
    assert row[:6] == (added.id, xid, 1, CHARGE, "mail", 3)
    stored_args, stored_kwargs, stored_headers = row[6:9]
    assert [json.loads(text) for text in (stored_args, stored_kwargs)] == [args, kwargs]
    assert stored_args == json.dumps(args, separators=(",", ":"))
    assert stored_kwargs == json.dumps(kwargs, separators=(",", ":"))
    assert (stored_args + stored_kwargs + stored_headers).isascii()
    assert row[9:] == (body_hash(CHARGE, args, kwargs), False)
    assert row[9] == body_hash(CHARGE, json.loads(stored_args), json.loads(stored_kwargs))
    assert clock == (True,)


def test_xid_and_seq_come_from_the_database(engine: sa.Engine, database: str) -> None:
    outbox = Outbox()
    for _ in range(2):
        with Session(engine) as session, session.begin():
            for _ in range(3):
                outbox.add(session, MESSAGE)
    with psycopg.connect(database) as connection:
        rows = connection.execute("SELECT xid::text::bigint, seq FROM outbox_message ORDER BY seq").fetchall()
    assert [seq for _, seq in rows] == [1, 2, 3, 4, 5, 6]
    assert list(Counter(xid for xid, _ in rows).values()) == [3, 3]
    assert [xid for xid, _ in rows] == sorted(xid for xid, _ in rows)


def test_times_within_a_transaction_are_those_of_the_statements(engine: sa.Engine, database: str) -> None:
    """created_at is when the message was written, not when a long transaction began."""
    with Session(engine) as session, session.begin():
        begun = session.execute(sa.text("SELECT now()")).scalar_one()
        Outbox().add(session, MESSAGE)
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT created_at > %s FROM outbox_message", [begun]).fetchone() == (True,)


@pytest.mark.parametrize(
    "bad",
    [{"price": object()}, {"price": float("nan")}, {"name": "a\0b"}, {"name": "\ud800"}, {"x": {1: 2}}],
    ids=["object", "nan", "nul", "surrogate", "key"],
)
def test_a_bad_payload_leaves_the_transaction_usable(engine: sa.Engine, database: str, bad: dict[str, Any]) -> None:
    with Session(engine) as session, session.begin():
        session.add(Order(id=7))
        with watched(engine) as seen, pytest.raises(InvalidMessage, match=r"^kwargs"):
            Outbox().add(session, Message(CHARGE, kwargs=bad))
        assert seen.statements == []
        good = Outbox().add(session, MESSAGE)
    assert committed(database) == ([str(good.id)], [7])


def test_what_is_no_message_is_refused_before_the_database(engine: sa.Engine, database: str) -> None:
    stranger: Any = [CHARGE]
    with Session(engine) as session, session.begin(), watched(engine) as seen:
        with pytest.raises(InvalidMessage, match="takes a Message, a task name or a signature, not list"):
            Outbox().add(session, stranger)
        assert seen.statements == []


@pytest.mark.parametrize("schema", ["orders", 'a";drop table x;--', "100%", "%(id)s", "Größe"])
def test_a_schema_of_its_own(database: str, schema: str) -> None:
    migrate.upgrade(database, schema)
    engine = engine_of(database, poolclass=sa.NullPool)
    with engine.begin() as connection:
        added = Outbox(schema).add(connection, MESSAGE)
        quoted = engine.dialect.identifier_preparer.quote_identifier(schema)
        found = connection.exec_driver_sql(f"SELECT id FROM {quoted}.outbox_message").scalars().all()  # noqa: S608
        assert list(found) == [added.id]
        assert connection.exec_driver_sql("SELECT count(*) FROM public.outbox_message").scalar_one() == 0


def test_the_search_path_of_the_session_is_not_asked(engine: sa.Engine, database: str) -> None:
    """A table of the same name in a schema that comes first must not catch the message."""
    with engine.connect() as connection:
        connection.exec_driver_sql("CREATE SCHEMA trap")
        connection.exec_driver_sql("CREATE TABLE trap.outbox_message (LIKE public.outbox_message)")
        connection.exec_driver_sql("SET LOCAL search_path TO trap, public")
        added = Outbox().add(connection, MESSAGE)
        assert connection.exec_driver_sql("SELECT id FROM public.outbox_message").scalars().all() == [added.id]


def test_a_schema_without_tables_says_which(engine: sa.Engine, database: str) -> None:
    with Session(engine) as session, session.begin(), pytest.raises(SchemaMismatch, match="run `outbox migrate`"):
        Outbox("nowhere").add(session, MESSAGE)


def test_ids_are_primary_keys_from_eight_threads(engine: sa.Engine, database: str) -> None:
    outbox, added, start = Outbox(), list[UUID](), threading.Barrier(8)

    def write() -> None:
        with engine.connect() as connection, connection.begin():
            start.wait()
            added.extend([outbox.add(connection, MESSAGE).id for _ in range(50)])

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stored, _ = committed(database)
    assert len(stored) == 400
    assert set(stored) == {str(each) for each in added}
    assert {each.version for each in added} == {7}

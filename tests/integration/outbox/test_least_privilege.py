"""A role of the application: what it must be granted, that this is enough, and that nothing of it can be left out."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg import sql

from outbox import Message, Outbox, State
from tests.integration.outbox.storage import CHARGE, Postgres, ask, end, messages, register

OUTBOX = Outbox()
COLUMNS = "id, task, queue, priority, args, kwargs, headers, body_hash, batch_id, expires_at"
GRANTS = {
    "insert": f"INSERT ({COLUMNS}) ON outbox_message",
    "seq": "USAGE ON SEQUENCE outbox_message_seq",
    "wake": "USAGE ON SEQUENCE outbox_wake",
    "write": "EXECUTE ON FUNCTION outbox_write(json)",
    "raw": "EXECUTE ON FUNCTION outbox_add",
    "cancel": "EXECUTE ON FUNCTION outbox_cancel(uuid)",
    "state": "EXECUTE ON FUNCTION outbox_states(uuid[])",
    "batch": "EXECUTE ON FUNCTION outbox_batch(uuid)",
    "rejected": "SELECT ON outbox_rejected",
}


@pytest.fixture
def role(database: str) -> Iterator[str]:
    """A role without any right. Roles belong to the cluster, hence the name."""
    name = f"outbox_writer_{uuid.uuid4().hex[:12]}"
    ask(database, f"CREATE ROLE {name}")
    yield name
    ask(database, f"DROP OWNED BY {name}")
    ask(database, f"DROP ROLE {name}")


def grant(url: str, role: str, *names: str) -> None:
    for name in names:
        ask(url, f"GRANT {GRANTS[name]} TO {role}")


@contextmanager
def acting(url: str, role: str) -> Iterator[Postgres]:
    with psycopg.connect(url) as connection:
        connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
        connection.commit()
        yield connection


KEYED = [
    Message(CHARGE, dedup_key="d"),
    Message(CHARGE, unique_key="u"),
    Message(CHARGE, ordering_key="o"),
    Message(CHARGE, delay=60),
    Message(CHARGE, expires_in=60),
]
EVERYTHING = Message(CHARGE, [1], {"a": 1}, queue="mail", priority=1, headers={"x": "y"}, expires_in=60)


def plain(connection: Postgres) -> object:
    return OUTBOX.add(connection, Message(CHARGE, [1], {"a": 1}, queue="mail", priority=1, headers={"x": "y"}))


def plain_batch(connection: Postgres) -> object:
    return OUTBOX.add_many(connection, [Message(CHARGE), Message(CHARGE, [1])])


def keyed(connection: Postgres) -> object:
    return [OUTBOX.add(connection, each) for each in (*KEYED, EVERYTHING, Message(CHARGE, unique_key="u"))]


def keyed_batch(connection: Postgres) -> object:
    return OUTBOX.add_many(connection, KEYED, chunk_size=2)


def raw(connection: Postgres) -> object:
    return connection.execute("SELECT outbox_add(%s, unique_key => 'u', delay => '1 min')", [CHARGE]).fetchall()


def cancel(connection: Postgres) -> object:
    return OUTBOX.cancel(connection, uuid.uuid4())


def state(connection: Postgres) -> object:
    return OUTBOX.state(connection, uuid.uuid4())


def batch_progress(connection: Postgres) -> object:
    return OUTBOX.batch_progress(connection, uuid.uuid4())


def rejected(connection: Postgres) -> object:
    return OUTBOX.rejected(connection)


NEEDED: dict[Callable[[Postgres], object], set[str]] = {
    plain: {"insert", "seq", "wake"},
    plain_batch: {"insert", "seq", "wake"},
    keyed: {"write"},
    keyed_batch: {"write"},
    raw: {"raw"},
    cancel: {"cancel"},
    state: {"state"},
    batch_progress: {"batch"},
    rejected: {"rejected"},
}


def flag_is_guarded(url: str) -> bool:
    """Before PostgreSQL 17 a look at a sequence without the right to is an error; since then it is NULL."""
    with psycopg.connect(url) as connection:
        return connection.info.server_version < 170000


@pytest.mark.parametrize("action", NEEDED, ids=lambda action: action.__name__)
def test_what_each_method_needs(database: str, role: str, action: Callable[[Postgres], object]) -> None:
    """Exactly these: with them it works, with all others but one of them it does not."""
    needed = NEEDED[action] - (set() if flag_is_guarded(database) else {"wake"})
    grant(database, role, *needed)
    with acting(database, role) as connection:
        action(connection)
        connection.rollback()
    for missing in needed:
        ask(database, f"DROP OWNED BY {role}")
        grant(database, role, *(GRANTS.keys() - {missing}))
        with acting(database, role) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
            action(connection)


def test_a_life_with_all_grants(database: str, role: str) -> None:
    register(database)
    grant(database, role, *GRANTS)
    with acting(database, role) as connection:
        batch = OUTBOX.add_many(connection, [*KEYED, Message(CHARGE)])
        connection.commit()
        again = OUTBOX.add(connection, Message(CHARGE, unique_key="u"))
        assert again.existing is not None
        assert OUTBOX.add(connection, Message(CHARGE, dedup_key="d")).id == batch[0].id
        assert OUTBOX.cancel(connection, batch[0].id).outcome == "cancelled"
        assert OUTBOX.state(connection, batch[3].id) is State.SCHEDULED
        assert OUTBOX.batch_progress(connection, batch.id).total == 6
        assert [each.count for each in OUTBOX.rejected(connection)] == [1]
        connection.commit()
        end(database, batch[1].id)
        assert not OUTBOX.add(connection, Message(CHARGE, unique_key="u")).duplicate
    assert len(messages(database)) == 7


TABLES = ("outbox_key", "outbox_due", "inbox_receipt", "outbox_leader", "inbox_consumer", "inbox_retry")
FORBIDDEN = [
    "INSERT INTO outbox_message (id, task, xid) VALUES (gen_random_uuid(), 'a.b', '1')",
    "INSERT INTO outbox_message (id, task, seq) VALUES (gen_random_uuid(), 'a.b', 1)",
    "INSERT INTO outbox_message (id, task, held) VALUES (gen_random_uuid(), 'a.b', true)",
    "INSERT INTO outbox_message (id, task, created_at) VALUES (gen_random_uuid(), 'a.b', now())",
    "INSERT INTO outbox_message (id, task, unique_key) VALUES (gen_random_uuid(), 'a.b', 'u')",
    "INSERT INTO outbox_message (id, task, ordering_key) VALUES (gen_random_uuid(), 'a.b', 'o')",
    "INSERT INTO outbox_message (id, task, key_prev) VALUES (gen_random_uuid(), 'a.b', gen_random_uuid())",
    "SELECT kwargs FROM outbox_message",
    "UPDATE outbox_message SET task = 'a.b'",
    "DELETE FROM outbox_message",
    "TRUNCATE outbox_message",
    "SELECT setval('outbox_message_seq', 1)",
    "SELECT setval('outbox_wake', 2)",
    "DELETE FROM outbox_rejected",
    "INSERT INTO outbox_rejected (unique_key, live_id) VALUES ('u', gen_random_uuid())",
    *(f"SELECT FROM {table}" for table in TABLES),
    *(f"DELETE FROM {table}" for table in TABLES),  # noqa: S608
    "INSERT INTO outbox_key (kind, key, message_id) VALUES ('dedup', 'd', gen_random_uuid())",
    "INSERT INTO outbox_due (message_id, due_at, reason) VALUES (gen_random_uuid(), now(), 'retry')",
    "INSERT INTO inbox_receipt (message_id, consumer, status) VALUES (gen_random_uuid(), 'a.b', 'applied')",
    "CREATE TABLE public.trap ()",
]


@pytest.mark.parametrize("statement", FORBIDDEN)
def test_what_stays_forbidden(database: str, role: str, statement: str) -> None:
    grant(database, role, *GRANTS)
    with acting(database, role) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(statement.encode())


def test_nobody_else_may_call_the_functions(database: str, role: str) -> None:
    """They act with the rights of the owner, so PUBLIC has none on them."""
    for action in (keyed, raw, cancel, state, batch_progress):
        with acting(database, role) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
            action(connection)


def test_a_table_of_the_role_catches_nothing(database: str, role: str) -> None:
    """The functions do not look where the role could put something in their way."""
    grant(database, role, *GRANTS)
    with acting(database, role) as connection:
        for table in ("outbox_key", "outbox_message", "inbox_receipt"):
            connection.execute(f"CREATE TEMP TABLE {table} (id int)".encode())
        connection.execute("SET LOCAL search_path TO pg_temp, public")
        added = OUTBOX.add(connection, Message(CHARGE, unique_key="u"))
        assert OUTBOX.state(connection, added.id) is State.QUEUED
        connection.commit()
    assert messages(database) == [added.id]


def test_without_a_right_on_the_wake_up_flag(database: str, role: str) -> None:
    """Its absence must not cost a wake-up: PostgreSQL refuses the insert, or, since 17, the relay is always woken."""
    grant(database, role, "insert", "seq")
    if flag_is_guarded(database):
        with acting(database, role) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
            plain(connection)
        return
    with psycopg.connect(database, autocommit=True) as listener:
        listener.execute("LISTEN outbox")
        with acting(database, role) as connection:
            plain(connection)
        assert len(list(listener.notifies(timeout=5, stop_after=1))) == 1


def test_the_relay_is_woken(database: str, role: str) -> None:
    ask(database, "SELECT setval('outbox_wake', 2)")
    grant(database, role, *GRANTS)
    with psycopg.connect(database, autocommit=True) as listener:
        listener.execute("LISTEN outbox")
        for action in (plain, keyed):
            with acting(database, role) as connection:
                action(connection)
            assert len(list(listener.notifies(timeout=5, stop_after=1))) == 1
    ask(database, "SELECT setval('outbox_wake', 1)")

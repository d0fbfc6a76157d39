"""Whoever listens to SQLAlchemy sees our statements; nobody listening, they go straight to the driver.

Both ways give the same rows, the same answers and the same errors.
"""

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.engine import default
from sqlalchemy.orm import Session

from outbox import Added, DedupConflict, Existing, Message, Outbox, SchemaMismatch, State
from tests.integration.outbox import styles
from tests.integration.outbox.storage import CHARGE, committed, engine_of
from tests.integration.outbox.styles import Handle, Style, awaited, each_sqlalchemy_style

shared_styles_database = styles.shared_styles_database
styles_database = styles.styles_database
styles_engine = styles.styles_engine

MESSAGE = Message(CHARGE, kwargs={"order_id": 7})
INSERT = 'INSERT INTO "public".outbox_message (id, task, kwargs, body_hash) VALUES (%s, %s, %s, %s)'
WRITE = 'SELECT number, id, outcome, state FROM "public".outbox_write(%s::json)'


@contextmanager
def through_sqlalchemy(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The statements that SQLAlchemy itself carried to the driver: its dialect's last step before the cursor."""
    carried: list[str] = []
    original: Any = default.DefaultDialect.do_execute

    def note(self: Any, cursor: Any, statement: str, parameters: Any, context: Any = None) -> None:
        carried.append(statement)
        original(self, cursor, statement, parameters, context)

    with monkeypatch.context() as patched:
        patched.setattr(default.DefaultDialect, "do_execute", note)
        yield carried


def sync_engine_of(target: Any) -> sa.Engine:
    bind = target.engine if "Connection" in type(target).__name__ else target.bind
    found: sa.Engine = getattr(bind, "sync_engine", bind)
    return found


@asynccontextmanager
async def writing(style: Style, url: str, listening: bool, seen: list[str]) -> AsyncIterator[Handle]:
    async with style.opened(url) as handle:
        if listening:

            def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
                seen.append(statement)

            sa.event.listen(sync_engine_of(handle.target), "before_cursor_execute", note)
        await handle.begin()
        await handle.sql("SELECT 1")
        yield handle
        await handle.rollback()


@each_sqlalchemy_style
def test_without_a_listener_the_driver_is_used(
    styles_database: str, style: Style, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        async with writing(style, styles_database, False, []) as handle:
            with through_sqlalchemy(monkeypatch) as carried:
                await handle.do("add", MESSAGE)
                await handle.do("add", MESSAGE, unique_key="a")
                await handle.do("add_many", [MESSAGE, MESSAGE])
                assert carried == []
                await handle.sql("SELECT 2")
                assert carried == ["SELECT 2"]  # the net has no hole

    awaited(play())


@each_sqlalchemy_style
def test_with_a_listener_every_statement_is_seen_once(
    styles_database: str, style: Style, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        seen: list[str] = []
        async with writing(style, styles_database, True, seen) as handle:
            seen.clear()
            with through_sqlalchemy(monkeypatch) as carried:
                added = await handle.do("add", MESSAGE)
                await handle.do("add", MESSAGE, unique_key="a")
                await handle.do("state", added.id)
            assert carried == seen
            assert seen[:2] == [INSERT, WRITE]
            assert len(seen) == 3

    awaited(play())


@pytest.mark.parametrize("where", ["engine", "connection", "every engine"])
@pytest.mark.parametrize("hook", ["before_cursor_execute", "after_cursor_execute"])
def test_wherever_the_listener_sits(
    styles_engine: sa.Engine, monkeypatch: pytest.MonkeyPatch, where: str, hook: str
) -> None:
    """Tracers listen to an engine, to one connection, or to the class and so to all engines there are."""
    seen: list[object] = []

    def note(*_: object) -> None:
        seen.append(None)

    with styles_engine.connect() as connection, connection.begin():
        target: Any = {"engine": styles_engine, "connection": connection, "every engine": sa.Engine}[where]
        with monkeypatch.context() as patched:
            patched.setattr(sa.Engine, "_has_events", sa.Engine._has_events, raising=False)  # put back afterwards
            sa.event.listen(target, hook, note)
            try:
                Outbox().add(connection, MESSAGE)
            finally:
                sa.event.remove(target, hook, note)
    assert len(seen) == 1


@pytest.mark.parametrize("how", ["echo", "logger"])
def test_the_log_of_statements_shows_ours(styles_database: str, caplog: pytest.LogCaptureFixture, how: str) -> None:
    """`echo=True`, or the logger set by hand, which SQLAlchemy treats alike."""
    logger = logging.getLogger("sqlalchemy.engine.Engine")
    before = logger.level
    engine = engine_of(styles_database, echo=how == "echo")
    with caplog.at_level(logging.INFO, "sqlalchemy.engine.Engine"), Session(engine) as session, session.begin():
        Outbox().add(session, MESSAGE)
        Outbox().add(session, MESSAGE, dedup_key="a")
    engine.dispose()
    logger.setLevel(before)
    said = [record.getMessage() for record in caplog.records]
    assert said.count(INSERT) == 1
    assert said.count(WRITE) == 1


@each_sqlalchemy_style
@pytest.mark.parametrize("listening", [False, True], ids=["quick", "listening"])
def test_both_ways_give_the_same(styles_database: str, style: Style, listening: bool) -> None:
    async def play() -> list[str]:
        async with style.opened(styles_database) as handle:
            if listening:
                sa.event.listen(sync_engine_of(handle.target), "before_cursor_execute", lambda *_: None)
            await handle.begin()
            plain = await handle.do("add", CHARGE, args=[1, "ä"], kwargs={"n": 2**70}, queue="q", priority=0)
            batch = await handle.do("add_many", [MESSAGE, Message(CHARGE, priority=1), MESSAGE], chunk_size=2)
            keyed = await handle.do("add", MESSAGE, unique_key="project-1", dedup_key="a")
            again = await handle.do("add", MESSAGE, unique_key="project-1")
            assert again == Added(keyed.id, duplicate=True, existing=Existing(keyed.id, State.QUEUED))
            with pytest.raises(DedupConflict):
                await handle.do("add", CHARGE, dedup_key="a")
            assert (await handle.do("batch_progress", batch.id)).states == {State.QUEUED: 3}
            assert [each.count for each in await handle.do("rejected", "project-1")] == [1]
            await handle.commit()
            return [str(added.id) for added in (plain, *batch, keyed)]

    assert (awaited(play()), []) == committed(styles_database)
    with psycopg.connect(styles_database) as connection:
        rows = connection.execute(
            "SELECT args::text, kwargs::text, queue, priority FROM outbox_message ORDER BY seq"
        ).fetchall()
    assert rows == [
        ('[1,"\\u00e4"]', '{"n":1180591620717411303424}', "q", 0),
        ("[]", '{"order_id":7}', None, None),
        ("[]", "{}", None, 1),
        ("[]", '{"order_id":7}', None, None),
        ("[]", '{"order_id":7}', None, None),
    ]


@each_sqlalchemy_style
def test_both_ways_raise_the_same(styles_database: str, style: Style) -> None:
    """Class, cause and words; only the text of the statement may be missing."""

    async def caught(listening: bool) -> list[tuple[type, type | None, str]]:
        errors: list[tuple[type, type | None, str]] = []
        for wrong in ("DROP TABLE outbox_message CASCADE", "LOCK", "ALTER TABLE outbox_message ADD CHECK (task = '')"):
            async with writing(style, styles_database, listening, []) as handle:
                with psycopg.connect(styles_database) as other:
                    if wrong == "LOCK":
                        other.execute("LOCK TABLE outbox_message")
                        await handle.sql("SET LOCAL lock_timeout = '1ms'")
                    else:
                        await handle.sql(wrong)
                    with pytest.raises((SchemaMismatch, sa.exc.DBAPIError)) as error:
                        await handle.do("add", MESSAGE)
            errors.append(told(error.value))
        return errors

    quick, listening = awaited(caught(False)), awaited(caught(True))
    assert quick == listening
    assert [kind for kind, _, _ in quick] == [SchemaMismatch, sa.exc.OperationalError, sa.exc.IntegrityError]


def told(error: BaseException) -> tuple[type, type | None, str]:
    orig = getattr(error, "orig", None)
    return type(error), type(orig) if orig else None, str(error).splitlines()[0]


@pytest.mark.parametrize("listening", [False, True])
def test_a_connection_that_streams_its_results_can_add(
    styles_engine: sa.Engine, styles_database: str, listening: bool
) -> None:
    """A program reads a large table in portions and adds a message a row, on one connection."""
    if listening:
        sa.event.listen(styles_engine, "before_cursor_execute", lambda *_: None)
    with styles_engine.connect().execution_options(yield_per=2) as connection, connection.begin():
        for (number,) in connection.execute(sa.text("SELECT generate_series(1, 5)")):
            Outbox().add(connection, CHARGE, args=[number])
            Outbox().add(connection, CHARGE, args=[number], unique_key=f"row-{number}")
    assert len(committed(styles_database)[0]) == 10


@pytest.mark.parametrize("hook", ["handle_error", "do_execute"])
def test_listeners_of_the_dialect_are_heard_too(styles_engine: sa.Engine, hook: str) -> None:
    """`handle_error` is where programs translate errors and recognise outages of their own."""
    seen: list[str] = []

    def note(*arguments: Any) -> None:
        seen.append(str(arguments[1]) if hook == "do_execute" else arguments[0].statement)

    with styles_engine.connect() as connection, connection.begin():
        connection.execute(sa.text("SELECT 1"))
        sa.event.listen(styles_engine, hook, note)
        with pytest.raises(SchemaMismatch):
            Outbox("nowhere").add(connection, MESSAGE)
    assert [statement.split(" (")[0] for statement in seen] == ['INSERT INTO "nowhere".outbox_message']

"""The guide's code, taken from the file and run from top to bottom."""

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from alembic.config import Config
from celery import Celery
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from outbox import State
from tests.support.processes import ROOT

TEXT = (ROOT / "docs" / "writing.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


@pytest.fixture
def names(database: str) -> Iterator[dict[str, Any]]:
    """What a reader has: an engine, a table, a Celery task, a migrations folder."""
    url = sa.make_url(database).set(drivername="postgresql+psycopg")
    engine, async_engine = sa.create_engine(url), create_async_engine(url)

    class Base(DeclarativeBase):
        pass

    class Order(Base):
        __tablename__ = "guide_order"
        id: Mapped[int] = mapped_column(primary_key=True)

    Base.metadata.create_all(engine)

    @Celery("guide", broker="memory://").task(name="billing.charge", shared=False)
    def charge(order_id: int) -> int:
        return order_id

    yield {
        "Session": Session,
        "AsyncSession": AsyncSession,
        "engine": engine,
        "async_engine": async_engine,
        "Order": Order,
        "charge": charge,
        "config": Config(),
        "your_versions": "versions",
    }
    engine.dispose()
    asyncio.run(async_engine.dispose())


def test_the_guide_runs(names: dict[str, Any], database: str) -> None:
    for number, block in enumerate(blocks("python")):
        exec(compile(block, f"docs/writing.md block {number}", "exec"), names)  # noqa: S102
    assert asyncio.run(names["place"]()) is State.QUEUED
    with psycopg.connect(database) as connection:
        found = connection.execute("SELECT task, count(*) FROM outbox_message GROUP BY 1 ORDER BY 1").fetchall()
        assert found == [("billing.charge", 6), ("mail.remind", 2), ("project.export", 1), ("row.import", 1200)]
        (statement,) = blocks("sql")
        assert connection.execute(statement.encode()).fetchall()[0][1:] == (False, None)


def test_the_options_of_the_sql_function_are_those_in_the_table(database: str) -> None:
    with psycopg.connect(database) as connection:
        row = connection.execute(
            "SELECT proargnames[1:pronargs], pronargdefaults FROM pg_proc WHERE proname = 'outbox_add'"
        ).fetchone()
    assert row is not None
    table = TEXT.partition("| parameter | type | |")[2].partition("\n\n")[0]
    described = [name for line in table.splitlines()[2:] for name in re.findall(r"`([a-z_]+)`", line.split("|")[1])]
    assert sorted(described) == sorted(row[0])
    assert row[1] == len(row[0]) - 1

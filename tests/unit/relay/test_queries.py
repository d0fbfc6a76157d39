import re
from dataclasses import fields

import pytest
from psycopg._queries import PostgresQuery
from psycopg.adapt import Transformer

from relay.queries import Queries, queries_for
from relay.queries.status import StatusQueries, status_queries_for

# Every statement that changes something hangs on the leader row; these are the reasoned exceptions.
NOT_FENCED = {
    "acquire": "takes the lease, so there is no epoch yet",
    "seen": "a relay's own line, leader or not",
    "gone": "a relay's own line, and those long dead",
}
TABLE = "(?:outbox|inbox)_(?:message|leader|due|relay|receipt|retry|consumer)"
SCHEMAS = ["public", "Outbox", 'a"b', "with space", "{fence}", "схема"]

names = [field.name for field in fields(Queries)]
status_names = [field.name for field in fields(StatusQueries) if field.type is bytes]


def text(name: str, schema: str = "public") -> str:
    queries: bytes = getattr(queries_for(schema), name)
    return queries.decode()


@pytest.mark.parametrize("name", names)
def test_every_write_is_fenced(name: str) -> None:
    statement = text(name)
    writes = bool(re.search(r"\b(UPDATE|INSERT INTO|DELETE FROM)\b", statement))
    fenced = "p.epoch = %(epoch)s AND p.holder = %(holder)s" in statement
    assert fenced or not writes or name in NOT_FENCED


@pytest.mark.parametrize("name", [name for name in names if name.endswith("_at")])
def test_the_form_by_place_differs_only_by_the_place(name: str) -> None:
    by_place, by_key = text(name), text(name.removesuffix("_at"))
    assert re.sub(r"\s+", " ", by_place.replace("p.ctid = %(ctid)s::tid AND", "")) == re.sub(r"\s+", " ", by_key)
    assert by_place != by_key


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("name", names)
def test_nothing_is_left_to_fill_in(name: str, schema: str) -> None:
    statement = text(name, schema)
    quoted = '"' + schema.replace('"', '""') + '"'
    rest = statement.replace(quoted, "")
    assert quoted in statement or name in {"listen", "snapshot"}
    assert not re.search(r"[{}]", rest)
    for table in re.findall(
        r"(\S*)\b(?:outbox|inbox)_(?:message|leader|due|relay|receipt|retry|consumer)\b(?!_)", rest
    ):
        assert table.endswith("."), table


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("name", status_names)
def test_the_questions_of_status_change_nothing(name: str, schema: str) -> None:
    statement = getattr(status_queries_for(schema), name).decode()
    assert statement.startswith("SELECT")
    assert not re.search(r"\b(UPDATE|INSERT|DELETE|FOR NO KEY)\b", statement)


@pytest.mark.parametrize("name", names)
def test_the_driver_understands_every_parameter(name: str) -> None:
    statement = text(name)
    wanted = set(re.findall(r"%\((\w+)\)s", statement))
    query = PostgresQuery(Transformer())
    query.convert(statement, dict.fromkeys(wanted, "x") if wanted else None)
    assert "%(" not in query.query.decode()


def test_advance_and_close_may_be_lost_but_open_and_turn_must_be_durable() -> None:
    for name in names:
        asynchronous = "set_config('synchronous_commit', 'off', true)" in text(name)
        assert asynchronous is (name.removesuffix("_at") in {"advance", "advance_past", "close"}), name

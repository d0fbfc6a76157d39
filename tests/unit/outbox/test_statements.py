import re
from collections.abc import Callable

import pytest
from psycopg import sql
from psycopg._queries import PostgresQuery
from psycopg.adapt import Transformer

from outbox.errors import ConfigurationError
from outbox.statements import Statements, quoted_schema, statements_for

EMPTY = "the schema name is empty; give the PostgreSQL schema that holds the outbox tables"
NAMES = [
    "public",
    "Outbox",
    "with space",
    'a"b',
    '"; DROP TABLE outbox_message; --',
    "100%",
    "%s",
    "%(id)s",
    "{schema}",
    "схема",
    "a.b",
    "pg",
    "PG_TEMP",
    "x" * 63,
    "é" * 31,
]


@pytest.mark.parametrize("name", NAMES)
def test_whatever_a_name_contains_it_stays_one_name(name: str) -> None:
    quoted = quoted_schema(name)
    assert quoted == sql.Identifier(name).as_string(None)
    assert quoted[0] == quoted[-1] == '"'
    assert quoted[1:-1].replace('""', "").count('"') == 0


@pytest.mark.parametrize("name", ["", None, 7, b"public"])
def test_a_name_must_be_given(name: object) -> None:
    with pytest.raises(ConfigurationError) as refused:
        quoted_schema(name)
    assert str(refused.value) == EMPTY


@pytest.mark.parametrize("name", ["x" * 64, "é" * 32, "a\x00b", "a\nb", "\x1b[31m", "\ud800", "a\u2028b"])
def test_a_name_that_postgresql_would_cut_or_a_log_would_mangle_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        quoted_schema(name)
    assert str(refused.value) == (
        f"schema name {ascii(name)[:60]} is over 63 bytes or has control characters; choose a plain name"
    )
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("name", ["pg_", "pg_catalog", "pg_temp", "pg_é", "$user", "information_schema"])
def test_a_name_of_postgresql_itself_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        quoted_schema(name)
    assert str(refused.value) == f"schema name {name!a} is reserved by PostgreSQL; choose another name"


COLUMNS = "id task kwargs body_hash args headers queue priority expires_at".split()


def sent(statement: str, parameters: list[object]) -> tuple[str, int]:
    """What psycopg makes of it: the text for the server, and how many parameters go with it."""
    query = PostgresQuery(Transformer())
    query.convert(statement, parameters)
    return query.query.decode(), len(query.params or ())


@pytest.mark.parametrize("name", NAMES)
def test_the_driver_sends_the_statement_with_that_very_schema(name: str) -> None:
    schema, statements = quoted_schema(name), statements_for(name)
    for columns in (COLUMNS[:4], COLUMNS):
        text, parameters = sent(statements.add(columns), ["x"] * len(columns))
        assert text.startswith(f"INSERT INTO {schema}.outbox_message ({', '.join(columns)}) VALUES ($1, $2")  # noqa: S608
        assert parameters == len(columns)
        text, parameters = sent(statements.add_many(columns), ["x"] * (len(columns) + 1))
        assert text.startswith(f"INSERT INTO {schema}.outbox_message ({', '.join(columns)}, batch_id)")
        assert parameters == len(columns) + 1


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("statement", "expected", "parameters"),
    [
        ("write", ["outbox_write"], 1),
        ("cancel", ["outbox_cancel"], 1),
        ("state", ["outbox_states"], 1),
        ("batch", ["outbox_batch"], 1),
        ("rejected", ["outbox_rejected"], 2),
        ("written", ["outbox_message", "outbox_key", "outbox_due"], 1),
    ],
)
def test_every_name_in_a_statement_has_the_schema(
    name: str, statement: str, expected: list[str], parameters: int
) -> None:
    text, count = sent(getattr(statements_for(name), statement), ["x"] * parameters)
    assert count == parameters
    start, *parts = text.split(f" {quoted_schema(name)}.")
    assert [re.split(r"\W", part)[0] for part in parts] == expected
    assert not any(re.search(r"outbox_\w", part.removeprefix(each)) for part, each in zip(parts, expected, strict=True))
    assert "outbox_" not in start


def test_each_array_has_the_type_of_its_column() -> None:
    text = statements_for("public").add_many(COLUMNS)
    types = "uuid text text bytea text text text int timestamptz".split()
    # Binary (%b), and JSON as text: nothing of a payload is escaped on the way.
    assert text.endswith(f" FROM unnest({', '.join(f'%b::{kind}[]' for kind in types)}) AS t ({', '.join(COLUMNS)})")
    # The batch id is the last value of each row, and the first parameter: it stands before the arrays.
    values = [f"t.{name}::json" if name in ("args", "kwargs", "headers") else f"t.{name}" for name in COLUMNS]
    assert f"SELECT {', '.join(values)}, %s FROM" in text


@pytest.mark.parametrize("make", [Statements.add, Statements.add_many], ids=["add", "add_many"])
def test_a_writer_never_names_the_columns_that_the_database_decides(make: Callable[..., str]) -> None:
    columns = make(statements_for("public"), COLUMNS).partition("(")[2].partition(")")[0].split(", ")
    assert {"id", "task", "kwargs"} <= set(columns)
    assert not {"xid", "seq", "created_at", "held"} & set(columns)

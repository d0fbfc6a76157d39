import pytest
from psycopg import sql
from psycopg._queries import PostgresQuery
from psycopg.adapt import Transformer

from outbox.errors import ConfigurationError
from outbox.statements import add_message, quoted_schema

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


@pytest.mark.parametrize("name", ["pg_", "pg_catalog", "pg_temp", "pg_é"])
def test_a_name_of_postgresql_itself_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        quoted_schema(name)
    assert str(refused.value) == f"schema name {name!a} is reserved by PostgreSQL; choose another name"


@pytest.mark.parametrize("name", NAMES)
def test_the_driver_sends_the_statement_with_that_very_schema(name: str) -> None:
    parameters = dict.fromkeys("id task queue priority args kwargs headers body_hash".split(), "x")
    query = PostgresQuery(Transformer())
    query.convert(add_message(name), parameters)
    sent = query.query.decode()
    assert sent.startswith(f"INSERT INTO {quoted_schema(name)}.outbox_message (id, task,")
    assert len(query.params or ()) == len(parameters)


def test_a_writer_never_names_the_columns_that_the_database_decides() -> None:
    columns = add_message("public").partition("(")[2].partition(")")[0].split(", ")
    assert not {"xid", "seq", "created_at", "held"} & set(columns)

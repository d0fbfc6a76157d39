import re
from dataclasses import fields

import pytest
from psycopg._queries import PostgresQuery
from psycopg.adapt import Transformer

from consumers.statements import Statements, statements_for
from outbox.errors import ConfigurationError
from outbox.statements import quoted_schema

SCHEMAS = ["public", 'a"b', "100%", "%s", "%(task)s", "{schema}", "схема"]

names = [field.name for field in fields(Statements)]


def as_sent(name: str, schema: str) -> str:
    """What the driver makes of it, placeholders and percent signs resolved."""
    plain: str = getattr(statements_for("public"), name)
    query = PostgresQuery(Transformer())
    query.convert(getattr(statements_for(schema), name), dict.fromkeys(re.findall(r"%\((\w+)\)s", plain), "x"))
    return query.query.decode()


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("name", names)
def test_the_driver_sends_the_statement_with_that_very_schema(name: str, schema: str) -> None:
    sent = as_sent(name, schema)
    assert f"{quoted_schema(schema)}.inbox_" in sent
    assert sent.replace(quoted_schema(schema), '"public"') == as_sent(name, "public")


@pytest.mark.parametrize("schema", ["", "pg_catalog", "x" * 64, "a\x00b"])
def test_a_wrong_schema_is_refused(schema: str) -> None:
    with pytest.raises(ConfigurationError):
        statements_for(schema)


def test_a_receipt_never_overwrites_another() -> None:
    receipt = statements_for("public").receipt
    assert "ON CONFLICT (message_id, consumer) DO NOTHING" in receipt
    assert receipt.endswith("RETURNING transaction_timestamp()")


@pytest.mark.parametrize("name", names)
def test_a_consumer_writes_only_inbox_tables(name: str) -> None:
    written = re.findall(r"(?:INSERT INTO|UPDATE|DELETE FROM) (\S+)", getattr(statements_for("public"), name))
    assert all(table.startswith('"public".inbox_') for table in written if table != "SET")

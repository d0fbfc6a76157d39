"""All SQL of the writer. Each statement is complete once the quoted schema name is put in front of its tables.

Parameters are psycopg's (`%(name)s`): the same text goes through SQLAlchemy's driver-level execute, which costs
half of a Core insert, and through a raw psycopg connection.
"""

from outbox.errors import ConfigurationError

DEFAULT_SCHEMA = "public"

# One round trip a message. xid, seq and created_at are left to the database: writers have no say in them.
_ADD_MESSAGE = """\
INSERT INTO {schema}.outbox_message (id, task, queue, priority, args, kwargs, headers, body_hash)
VALUES (%(id)s, %(task)s, %(queue)s, %(priority)s, %(args)s, %(kwargs)s, %(headers)s, %(body_hash)s)"""


def quoted_schema(name: object) -> str:
    """The schema name as a quoted identifier; whatever it contains, it stays one name."""
    if not isinstance(name, str) or not name:
        raise ConfigurationError("the schema name is empty; give the PostgreSQL schema that holds the outbox tables")
    if len(name.encode("utf-8", "surrogatepass")) > 63 or not name.isprintable():
        raise ConfigurationError(
            f"schema name {ascii(name)[:60]} is over 63 bytes or has control characters; choose a plain name"
        )
    if name.startswith("pg_") or name in ("$user", "information_schema"):
        raise ConfigurationError(f"schema name {name!a} is reserved by PostgreSQL; choose another name")
    return '"' + name.replace('"', '""') + '"'


def add_message(schema: str) -> str:
    # A percent sign in the name would be read as a parameter by the driver.
    return _ADD_MESSAGE.format(schema=quoted_schema(schema).replace("%", "%%"))

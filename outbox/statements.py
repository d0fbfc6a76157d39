"""All SQL of the writer. Each statement is complete once the quoted schema name is put in front of its names.

Parameters are psycopg's (`%s`): the same text goes through SQLAlchemy's driver and through a raw psycopg connection.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from outbox.errors import ConfigurationError

DEFAULT_SCHEMA = "public"

# xid, seq and created_at are left to the database: writers have no say in them.
_ADD = "INSERT INTO {schema}.outbox_message ({columns}) VALUES ({values})"

# One statement a chunk, columns as binary arrays (%b): as text every quote of every payload would be escaped and
# unescaped again. Rows come out of unnest in the order of the arrays, so seq does too.
_ADD_MANY = """\
INSERT INTO {schema}.outbox_message ({columns}, batch_id)
SELECT {values}, %s FROM unnest({arrays}) AS t ({columns})"""

# Keys, delays and relative times: what INSERT alone cannot do, in one round trip (migrations/sql/0001_functions).
_WRITE = "SELECT number, id, outcome, state FROM {schema}.outbox_write(%s::json)"

_CANCEL = "SELECT outcome, state FROM {schema}.outbox_cancel(%s)"

_STATE = "SELECT state FROM {schema}.outbox_states(ARRAY[%s::uuid])"

_BATCH = "SELECT state, messages FROM {schema}.outbox_batch(%s)"

# A row a refusal; here they add up.
_REJECTED = """\
SELECT unique_key, live_id, sum(count)::bigint, min(rejected_at), max(rejected_at) FROM {schema}.outbox_rejected
WHERE unique_key = coalesce(%s, unique_key) GROUP BY unique_key, live_id ORDER BY max(rejected_at) DESC LIMIT %s"""

# For tests of the application: its own uncommitted messages included, in the order in which they were added.
_WRITTEN = """\
SELECT m.id, m.task, m.args::text, m.kwargs::text, m.queue, m.priority, m.headers::text, m.unique_key, m.ordering_key,
    k.key, d.due_at, m.expires_at
FROM {schema}.outbox_message m
    LEFT JOIN {schema}.outbox_key k ON k.message_id = m.id AND k.kind = 'dedup'
    LEFT JOIN {schema}.outbox_due d ON d.message_id = m.id AND d.reason = 'scheduled'
ORDER BY m.seq DESC LIMIT %s"""

_JSON = frozenset(("args", "kwargs", "headers"))
_ARRAYS = {
    "id": "uuid",
    "task": "text",
    "args": "text",
    "kwargs": "text",
    "headers": "text",
    "body_hash": "bytea",
    "queue": "text",
    "priority": "int",
    "expires_at": "timestamptz",
}


@dataclass(frozen=True, slots=True)
class Statements:
    """The statements for one schema, rendered once."""

    schema: str
    write: str
    cancel: str
    state: str
    batch: str
    rejected: str
    written: str

    def add(self, columns: Sequence[str]) -> str:
        """One message, with a value for each of these columns."""
        return _ADD.format(schema=self.schema, columns=", ".join(columns), values=", ".join(["%s"] * len(columns)))

    def add_many(self, columns: Sequence[str]) -> str:
        """A chunk of messages, with an array for each of these columns and their batch id."""
        return _ADD_MANY.format(
            schema=self.schema,
            columns=", ".join(columns),
            values=", ".join(f"t.{name}::json" if name in _JSON else f"t.{name}" for name in columns),
            arrays=", ".join(f"%b::{_ARRAYS[name]}[]" for name in columns),
        )


def statements_for(schema: str) -> Statements:
    # A percent sign in the name would be read as a parameter by the driver.
    quoted = quoted_schema(schema).replace("%", "%%")
    texts = {
        "write": _WRITE,
        "cancel": _CANCEL,
        "state": _STATE,
        "batch": _BATCH,
        "rejected": _REJECTED,
        "written": _WRITTEN,
    }
    return Statements(quoted, **{name: text.replace("{schema}", quoted) for name, text in texts.items()})


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

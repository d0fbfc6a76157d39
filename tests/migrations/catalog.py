"""What PostgreSQL knows about the objects of one schema, in words that do not depend on the schema's name."""

from typing import Any, LiteralString

import psycopg
from psycopg import sql

Catalog = dict[str, list[tuple[Any, ...]]]

# Names are resolved with search_path at the schema, so PostgreSQL itself leaves the schema out where it can.
_SHARED: dict[str, LiteralString] = {
    "columns": """
        SELECT c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
            pg_get_expr(d.adbin, d.adrelid), a.attidentity, a.attgenerated, a.attstorage, a.attcollation::regcollation,
            col_description(c.oid, a.attnum)
        FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
            LEFT JOIN pg_attrdef d ON (d.adrelid, d.adnum) = (a.attrelid, a.attnum)
        WHERE c.relnamespace = %(schema)s::regnamespace AND c.relkind IN ('r', 'p') ORDER BY 1, 2""",
    "constraints": """
        SELECT conrelid::regclass::text, conname, contype, convalidated, pg_get_constraintdef(oid)
        FROM pg_constraint WHERE connamespace = %(schema)s::regnamespace ORDER BY 1, 2""",
    "indexes": """
        SELECT c.relname, i.indisunique, i.indisprimary, i.indisvalid, pg_get_indexdef(c.oid)
        FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid
        WHERE c.relnamespace = %(schema)s::regnamespace ORDER BY 1""",
    "comments": """
        SELECT relname, relkind, relpersistence, obj_description(oid, 'pg_class') FROM pg_class
        WHERE relnamespace = %(schema)s::regnamespace AND relkind IN ('r', 'p', 'v') ORDER BY 1""",
    "sequences": """
        SELECT c.relname, format_type(s.seqtypid, NULL), seqstart, seqmin, seqmax, seqincrement, seqcycle, seqcache
        FROM pg_sequence s JOIN pg_class c ON c.oid = s.seqrelid
        WHERE c.relnamespace = %(schema)s::regnamespace ORDER BY 1""",
}

# What SQLAlchemy's metadata has no words for.
_BEYOND_METADATA: dict[str, LiteralString] = {
    "options": """
        SELECT relname, reloptions, obj_description(oid, 'pg_class') FROM pg_class
        WHERE relnamespace = %(schema)s::regnamespace ORDER BY 1""",
    "functions": """
        SELECT oid::regprocedure::text, pg_get_functiondef(oid), obj_description(oid, 'pg_proc') FROM pg_proc
        WHERE pronamespace = %(schema)s::regnamespace ORDER BY 1""",
    "triggers": """
        SELECT t.tgname, t.tgenabled, pg_get_triggerdef(t.oid) FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
        WHERE c.relnamespace = %(schema)s::regnamespace AND NOT t.tgisinternal ORDER BY 1""",
    "owned sequences": """
        SELECT d.objid::regclass::text, d.refobjid::regclass::text, d.refobjsubid, d.deptype
        FROM pg_depend d JOIN pg_class c ON c.oid = d.objid AND c.relkind = 'S'
        WHERE c.relnamespace = %(schema)s::regnamespace AND d.refclassid = 'pg_class'::regclass ORDER BY 1""",
    "types": """
        SELECT typname FROM pg_type WHERE typnamespace = %(schema)s::regnamespace ORDER BY 1""",
}

VERSION_TABLE = "outbox_alembic_version"


def shared_catalog(url: str, schema: str) -> Catalog:
    """What metadata can express, and thus must be the same however the tables were made."""
    return _read(url, schema, _SHARED)


def whole_catalog(url: str, schema: str) -> Catalog:
    """Everything, with the functions, triggers and options that only the migration makes."""
    return _read(url, schema, _SHARED | _BEYOND_METADATA)


def object_names(url: str, schema: str) -> set[str]:
    """Everything that lives in the schema; empty when nothing, or no schema, is left."""
    with psycopg.connect(url) as connection:
        return {
            name
            for (name,) in connection.execute(
                """
                SELECT relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE nspname = %(schema)s
                UNION ALL
                SELECT proname FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE nspname = %(schema)s
                UNION ALL
                SELECT typname FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace WHERE nspname = %(schema)s
                """,
                {"schema": schema},
            )
        }


def _read(url: str, schema: str, questions: dict[str, LiteralString]) -> Catalog:
    quoted = sql.Identifier(schema).as_string()
    with psycopg.connect(url) as connection:
        connection.execute(sql.SQL("SET search_path TO {}").format(sql.Identifier(schema)))
        # to_regnamespace and ::regnamespace read SQL: the name goes in quoted.
        return {
            what: [
                tuple(_without_schema(value, schema, quoted) for value in row)
                for row in connection.execute(question, {"schema": quoted})
                if row[0] not in (VERSION_TABLE, f"{VERSION_TABLE}_pkc", f"_{VERSION_TABLE}")
            ]
            for what, question in questions.items()
        }


def _without_schema(value: Any, schema: str, quoted: str) -> Any:
    """pg_get_indexdef and its like name the schema always, and quote it only where they must."""
    if not isinstance(value, str):
        return value
    return value.replace(f"{quoted}.", "").replace(f"{schema}.", "").replace(f"TO '{schema}'", "TO 'here'")

"""Put the schema's name into a statement, and the fence that every write of the relay hangs on."""

from typing import LiteralString

from psycopg import sql

FENCE: LiteralString = "p.epoch = %(epoch)s AND p.holder = %(holder)s"


def rendered(text: LiteralString, schema: str) -> bytes:
    # A percent sign in the name would be read as a parameter: doubled here, so every statement is run with parameters.
    fenced = text.replace("{fence}", FENCE)
    return sql.SQL(fenced).format(schema=sql.Identifier(schema.replace("%", "%%"))).as_bytes(None)

"""Put the schema's name into a statement, and the fence that every write of the relay hangs on."""

from typing import LiteralString

from psycopg import sql

FENCE: LiteralString = "p.epoch = %(epoch)s AND p.holder = %(holder)s"

# Commits durably whatever the role's or the pool's default is, without a second round trip: the setting is local to
# this statement's transaction. A stronger one (remote_apply, remote_write) stays.
DURABLE: LiteralString = """\
(SELECT set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit') IN ('off', 'local')
    THEN 'on' ELSE current_setting('synchronous_commit') END, true)) AS durable_commit"""


def rendered(text: LiteralString, schema: str) -> bytes:
    # A percent sign in the name would be read as a parameter: doubled here, so every statement is run with parameters.
    fenced = text.replace("{fence}", FENCE)
    return sql.SQL(fenced).format(schema=sql.Identifier(schema.replace("%", "%%"))).as_bytes(None)

"""What an operator writes into outbox_pause, and reads from it."""

from dataclasses import dataclass
from typing import LiteralString

from relay.queries.render import rendered

EVERYTHING = "*"

_COLUMNS = "queue, paused_by, why, paused_at, paused_until"

PAUSE_STATEMENTS: dict[str, LiteralString] = {
    # No fence: operators are not the leader. Pause and audit are one statement, so neither is ever without the other.
    "pause": f"""\
WITH paused AS (
    INSERT INTO {{schema}}.outbox_pause AS p (queue, paused_by, why, paused_until)
    VALUES (%(queue)s, %(by)s, %(why)s, clock_timestamp() + %(length)s)
    ON CONFLICT (queue) DO UPDATE SET paused_by = excluded.paused_by, why = excluded.why,
        paused_at = excluded.paused_at, paused_until = excluded.paused_until
    RETURNING {_COLUMNS}),
audited AS (
    INSERT INTO {{schema}}.outbox_audit (who, action, why, affected, detail)
    SELECT paused_by, 'pause', why, 1,
        json_build_object('queue', queue, 'until', paused_until, 'role', session_user) FROM paused)
SELECT {_COLUMNS} FROM paused""",
    # One that has run out is removed too, but was not in force any more: it is neither told nor audited.
    "resume": f"""\
WITH removed AS (DELETE FROM {{schema}}.outbox_pause WHERE queue = %(queue)s RETURNING {_COLUMNS}),
ended AS (SELECT * FROM removed WHERE paused_until IS NULL OR paused_until > clock_timestamp()),
audited AS (
    INSERT INTO {{schema}}.outbox_audit (who, action, why, affected, detail)
    SELECT %(by)s, 'resume', why, 1, json_build_object('queue', queue, 'paused_by', paused_by, 'paused_at', paused_at,
        'role', session_user) FROM ended)
SELECT {_COLUMNS} FROM ended""",
    "in_force": f"""\
SELECT {_COLUMNS} FROM {{schema}}.outbox_pause
WHERE paused_until IS NULL OR paused_until > clock_timestamp() ORDER BY paused_at LIMIT 100""",
}


@dataclass(frozen=True, slots=True)
class PauseQueries:
    """The operator's side; the leader reads the table by its own statement."""

    pause: bytes
    resume: bytes
    in_force: bytes


def pause_queries_for(schema: str) -> PauseQueries:
    return PauseQueries(**{name: rendered(text, schema) for name, text in PAUSE_STATEMENTS.items()})

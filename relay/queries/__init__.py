"""All SQL of the relay, one file a part, each statement named, with a line saying why it has that shape.

Rules that hold for all of them: every write is one autocommit statement that hangs on the leader row
(`FENCE`: epoch and holder), so a relay that lost its lease changes nothing; the row is found by its remembered ctid
first, because under somebody's open snapshot the primary key walks over every dead version; the database clock
decides; transaction ids and snapshots travel as text made by PostgreSQL itself, since 'abc'::xid8 is silently 0.
"""

from dataclasses import dataclass, fields
from typing import LiteralString

from relay.queries.due import DUE
from relay.queries.leader import LEADER
from relay.queries.log import LOG
from relay.queries.reconcile import RECONCILE
from relay.queries.render import rendered
from relay.queries.wakeup import WAKEUP

STATEMENTS: dict[str, LiteralString] = {**LEADER, **LOG, **DUE, **RECONCILE, **WAKEUP}


@dataclass(frozen=True, slots=True)
class Queries:
    """The statements for one schema, rendered once."""

    identify: bytes
    look: bytes
    acquire: bytes
    renew: bytes
    release: bytes
    lock: bytes
    unlock: bytes
    better_peer: bytes
    position: bytes
    open: bytes
    turn: bytes
    close: bytes
    advance: bytes
    open_at: bytes
    turn_at: bytes
    close_at: bytes
    advance_at: bytes
    advance_past: bytes
    advance_past_at: bytes
    plan: bytes
    page: bytes
    page_resumed: bytes
    only_page: bytes
    only_page_resumed: bytes
    parked_keys: bytes
    collect: bytes
    due: bytes
    settle: bytes
    paused: bytes
    blocked: bytes
    unpark: bytes
    unpark_keys: bytes
    waiting_keys: bytes
    decided: bytes
    listen: bytes
    asleep: bytes
    awake: bytes
    snapshot: bytes
    reassert: bytes
    note: bytes
    ripe: bytes
    sweep: bytes
    seen: bytes
    gone: bytes


def queries_for(schema: str) -> Queries:
    def render(name: str) -> bytes:
        at: LiteralString = "p.ctid = %(ctid)s::tid AND" if name.endswith("_at") else ""
        return rendered(STATEMENTS[name.removesuffix("_at")].replace("{at}", at), schema)

    return Queries(**{field.name: render(field.name) for field in fields(Queries)})

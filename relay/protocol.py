"""What every Celery message of ours has in common, whatever the broker. Pure.

Celery's protocol 2: the fields of the task in the headers, the body `[args, kwargs, embed]`. The JSON text of args and
kwargs is copied as the writer stored it; `embed` is constant, so no row can smuggle callbacks, chains or chords.
"""

import json
from collections.abc import Mapping
from types import MappingProxyType

from outbox import codec
from relay.publication import Copy, Refusal, Stamp
from relay.routing import Undeliverable
from relay.window import Row

EMBED = b', {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'

# Without task, id, root_id, expires and outbox, which differ from message to message.
FIXED_HEADERS: Mapping[str, object] = MappingProxyType(
    {
        "lang": "py",
        "shadow": None,
        "eta": None,
        "group": None,
        "group_index": None,
        "retries": 0,
        "timelimit": [None, None],
        "parent_id": None,
        "argsrepr": "",
        "kwargsrepr": "",
        "origin": "outbox",
        "ignore_result": None,
        "replaced_task_nesting": 0,
        "stamped_headers": None,
        "stamps": {},
    }
)
OUR_HEADERS = frozenset(FIXED_HEADERS) | {"task", "id", "root_id", "expires", "outbox"}


def facts(copy: Copy) -> dict[str, object]:
    """The part of the outbox header that is this message's own."""
    row = copy.row
    found: dict[str, object] = json.loads(f"{{{row.facts}}}")
    if not row.hashed:
        found["hash"] = body_hash(row)
    found["publication"] = copy.publication
    found["attempt"] = copy.attempt
    return found


def stamped(stamp: Stamp) -> dict[str, object]:
    """The part of the outbox header that a whole batch shares."""
    return {
        "published_at": stamp.published_at.isoformat(),
        "epoch": stamp.epoch,
        "window": stamp.window,
        "relay": stamp.relay,
    }


def user_headers(row: Row) -> dict[str, object]:
    """Those of the writer. A row of raw SQL may carry any JSON object: it cannot replace what is ours."""
    if row.headers == "{}":
        return {}
    try:
        found = json.loads(row.headers)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Undeliverable(Refusal.MESSAGE, "its headers are not a JSON object that can be read")
    return {name: value for name, value in found.items() if name not in OUR_HEADERS}


def body_hash(row: Row) -> str | None:
    """For rows of raw SQL writers: theirs are the only payloads that the relay ever parses."""
    try:
        args, kwargs = json.loads(row.body + b"]")
        return codec.body_hash(row.task, args, kwargs).hex()
    except (ValueError, RecursionError):
        return None  # no worker can decode it either

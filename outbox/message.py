"""A message: one request to run one Celery task. Checked when it is made, so a bad one never reaches a session."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeAlias, TypedDict

from outbox.codec import shown
from outbox.errors import InvalidMessage
from outbox.schedule import check_times

# The same rules stand in outbox_message_check() of the migrations, for writers that do not come through here.
TASK_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,254}", re.ASCII)
QUEUE_NAME = re.compile(r"[A-Za-z0-9_.:@/#-]{1,255}", re.ASCII)
LONGEST_KEY = 255

# What Celery and kombu read from the headers of a task message, and the relay's own; a contract test compares this with
# the installed Celery. A header of such a name would change how the task runs, or make it unreadable.
RESERVED_HEADERS = frozenset(
    "_children _filter_x_death_headers _get_custom_headers _protected args argsrepr as_execution_options callbacks"
    " called_directly chain children chord clear compression correlation_id delivery_info errbacks eta expires get"
    " group group_index headers hostname id ignore_result is_eager kwargs kwargsrepr lang logfile loglevel meth method"
    " origin outbox parent_id properties replaced_task_nesting reply_to retries root_id shadow soft_time_limit"
    " stamped_headers stamps task taskset time_limit timelimit update utc".split()
)


class Options(TypedDict, total=False):
    """What `add(session, message, ...)` takes as keywords: the fields of a Message."""

    args: Sequence[object]
    kwargs: Mapping[str, object]
    queue: str | None
    priority: int | None
    headers: Mapping[str, str]
    dedup_key: str | None
    dedup_window: timedelta | float | None
    unique_key: str | None
    ordering_key: str | None
    due_at: datetime | None
    delay: timedelta | float | None
    expires_at: datetime | None
    expires_in: timedelta | float | None


@dataclass(frozen=True, slots=True)
class Message:
    """`Message("billing.charge", kwargs={"order_id": 7})`"""

    task: str
    args: Sequence[object] = ()
    kwargs: Mapping[str, object] = field(default_factory=dict)
    queue: str | None = None
    """Celery queue; None = the relay's default queue."""
    priority: int | None = None
    """0 to 9, higher runs sooner, on every broker."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Text that reaches the handler as `delivery.headers`."""
    dedup_key: str | None = None
    """The same key and body again is the same message; the same key with another body is an error."""
    dedup_window: timedelta | float | None = None
    """How long the key is remembered (a timedelta, or seconds); None = as long as the message is kept."""
    unique_key: str | None = None
    """At most one message with this key that has not ended yet."""
    ordering_key: str | None = None
    """Messages with this key are published in the order in which they were committed."""
    due_at: datetime | None = None
    """Not before this moment (with time zone). Kept in the database until then."""
    delay: timedelta | float | None = None
    """Not before this long from now (a timedelta, or seconds), by the database clock."""
    expires_at: datetime | None = None
    """Not after this moment: it then ends as *expired*."""
    expires_in: timedelta | float | None = None
    """Not after this long from now."""

    def __post_init__(self) -> None:
        _check_task(self.task)
        check_payload(self.args, self.kwargs)
        if self.queue is not None:
            _check_queue(self.queue)
        if self.priority is not None:
            _check_priority(self.priority)
        if self.headers or type(self.headers) is not dict:
            check_headers(self.headers)
        if self.dedup_key is not None or self.unique_key is not None or self.ordering_key is not None:
            for name in ("dedup_key", "unique_key", "ordering_key"):
                check_key(name, getattr(self, name))
        check_times(self)
        if self.dedup_window is not None or self.ordering_key is not None:
            _check_together(self)


Addable: TypeAlias = Message | str | Mapping[str, Any]
"""What `add` takes: a message, a task's name, or a Celery signature (which is a dictionary)."""


def _check_task(task: object) -> None:
    if not isinstance(task, str):
        hint = _task_hint(task)
        raise InvalidMessage(f"task must be the task's name as text, not {type(task).__name__}{hint}")
    if not TASK_NAME.fullmatch(task):
        raise InvalidMessage(
            f"task {shown(task)} is not a Celery task name: use letters, digits and _ . : -, at most 255,"
            " starting with a letter or _"
        )
    if task.startswith("celery."):
        raise InvalidMessage(
            f"task {shown(task)} is built into Celery and could run any other task; name your own task instead"
        )


def _task_hint(task: object) -> str:
    if isinstance(task, Mapping):
        return "; add a signature as it is: outbox.add(session, charge.s(...))"
    if callable(task) and hasattr(task, "delay"):
        return "; pass its name, or its signature to add(): outbox.add(session, charge.s(...))"
    return ""


def check_payload(args: object, kwargs: object) -> None:
    if isinstance(args, Mapping):
        raise InvalidMessage("args must be a list or tuple, not a dictionary; named arguments go into kwargs={...}")
    if isinstance(args, str | bytes) or not isinstance(args, list | tuple):
        raise InvalidMessage(f"args must be a list or tuple, not {type(args).__name__}; for one argument write (x,)")
    if not isinstance(kwargs, Mapping):
        raise InvalidMessage(f"kwargs must be a dictionary, not {type(kwargs).__name__}")
    if "self" in kwargs:
        # Celery calls every task as run(self, ...), bound or not: such a message could never run.
        raise InvalidMessage('kwargs: the name "self" is taken by Celery\'s own call of the task; rename the argument')


def _check_queue(queue: object) -> None:
    if not isinstance(queue, str) or not QUEUE_NAME.fullmatch(queue):
        raise InvalidMessage(f"queue {shown(queue)} is not a queue name: use letters, digits and _ . : @ / # -")
    if queue.startswith(("unacked", "_kombu")):
        # Keys of kombu's own on Redis: a list of that name would end every worker.
        raise InvalidMessage(f"queue {shown(queue)} is a name that Celery keeps for itself on Redis; choose another")


def _check_priority(priority: object) -> None:
    if isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority <= 9:
        raise InvalidMessage(f"priority {shown(priority)} is not a number from 0 to 9 (higher runs sooner)")


def check_headers(headers: object) -> None:
    if not isinstance(headers, Mapping):
        raise InvalidMessage(f"headers must be a dictionary, not {type(headers).__name__}")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidMessage(f"header {shown(name)} must be text with a text value; convert it with str()")
        if name in RESERVED_HEADERS:
            raise InvalidMessage(f"header {shown(name)} is set by Celery or the relay; choose another name")


def check_key(name: str, key: object) -> None:
    if key is None:
        return
    if not isinstance(key, str):
        raise InvalidMessage(f"{name} must be text, not {type(key).__name__}; write it as text: f'order:{{order_id}}'")
    if not 1 <= len(key) <= LONGEST_KEY:
        raise InvalidMessage(
            f"{name} has {len(key)} characters, 1 to {LONGEST_KEY} are possible; shorten or hash it: fingerprint(...)"
        )
    if not key.isprintable():
        raise InvalidMessage(f"{name} {shown(key)} has characters that cannot be printed; use plain text")


def _check_together(message: Message) -> None:
    if message.dedup_window is not None and message.dedup_key is None:
        raise InvalidMessage("dedup_window says how long a dedup_key is remembered; give a dedup_key with it")
    if message.ordering_key is None:
        return
    for name in ("priority", "due_at", "delay"):
        if getattr(message, name) is not None:
            raise InvalidMessage(
                f"ordering_key and {name} contradict each other: {name} would change the order; leave one of them out"
            )

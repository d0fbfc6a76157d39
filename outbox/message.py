"""A message: one request to run one Celery task. Checked when it is made, so a bad one never reaches a session."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from outbox.errors import InvalidMessage

# The same rules stand as CHECK constraints in the migrations, for writers that do not come through here.
TASK_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,254}", re.ASCII)
QUEUE_NAME = re.compile(r"[A-Za-z0-9_.:@/#-]{1,255}", re.ASCII)

# What Celery and kombu read from the headers of a task message, and the relay's own; a contract test compares this with
# the installed Celery. A header of such a name would change how the task runs, or make it unreadable.
RESERVED_HEADERS = frozenset(
    "_children _filter_x_death_headers _get_custom_headers _protected args argsrepr as_execution_options callbacks"
    " called_directly chain children chord clear compression correlation_id delivery_info errbacks eta expires get"
    " group group_index headers hostname id ignore_result is_eager kwargs kwargsrepr lang logfile loglevel meth method"
    " origin outbox parent_id properties replaced_task_nesting reply_to retries root_id shadow soft_time_limit"
    " stamped_headers stamps task taskset time_limit timelimit update utc".split()
)


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

    def __post_init__(self) -> None:
        _check_task(self.task)
        _check_payload(self.args, self.kwargs)
        _check_queue(self.queue)
        _check_priority(self.priority)
        _check_headers(self.headers)


@dataclass(frozen=True, slots=True)
class Added:
    """What `Outbox.add` did. The id is also the Celery task id."""

    id: UUID
    duplicate: bool = False


def _check_task(task: object) -> None:
    if not isinstance(task, str) or not TASK_NAME.fullmatch(task):
        raise InvalidMessage(
            f"task {_shown(task)} is not a Celery task name: use letters, digits and _ . : -, at most 255,"
            " starting with a letter or _"
        )
    if task.startswith("celery."):
        raise InvalidMessage(
            f"task {_shown(task)} is built into Celery and could run any other task; name your own task instead"
        )


def _check_payload(args: object, kwargs: object) -> None:
    if isinstance(args, str | bytes) or not isinstance(args, list | tuple):
        raise InvalidMessage(f"args must be a list or tuple, not {type(args).__name__}; for one argument write (x,)")
    if not isinstance(kwargs, Mapping):
        raise InvalidMessage(f"kwargs must be a dictionary, not {type(kwargs).__name__}")
    if "self" in kwargs:
        # Celery calls every task as run(self, ...), bound or not: such a message could never run.
        raise InvalidMessage('kwargs: the name "self" is taken by Celery\'s own call of the task; rename the argument')


def _check_queue(queue: object) -> None:
    if queue is None:
        return
    if not isinstance(queue, str) or not QUEUE_NAME.fullmatch(queue):
        raise InvalidMessage(f"queue {_shown(queue)} is not a queue name: use letters, digits and _ . : @ / # -")
    if queue.startswith(("unacked", "_kombu")):
        # Keys of kombu's own on Redis: a list of that name would end every worker.
        raise InvalidMessage(f"queue {_shown(queue)} is a name that Celery keeps for itself on Redis; choose another")


def _check_priority(priority: object) -> None:
    if priority is None:
        return
    if isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority <= 9:
        raise InvalidMessage(f"priority {_shown(priority)} is not a number from 0 to 9 (higher runs sooner)")


def _check_headers(headers: object) -> None:
    if not isinstance(headers, Mapping):
        raise InvalidMessage(f"headers must be a dictionary, not {type(headers).__name__}")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidMessage(f"header {_shown(name)} must be text with a text value; convert it with str()")
        if name in RESERVED_HEADERS:
            raise InvalidMessage(f"header {_shown(name)} is set by Celery or the relay; choose another name")


def _shown(value: object) -> str:
    """At most 60 characters of a name, escaped: error messages must not carry whole payloads or control codes."""
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."

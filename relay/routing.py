"""Where a message goes, and whether it may go at all. Pure.

Asked once for each (task, queue) that occurs, when its template is made: neither costs anything per message.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Protocol

from relay.publication import Refusal


class Undeliverable(Exception):
    """No message of this kind can go; `why` is one line for an operator."""

    def __init__(self, refusal: Refusal, why: str) -> None:
        super().__init__(why)
        self.refusal = refusal
        self.why = why


class Routing(Protocol):
    def queue_for(self, task: str, queue: str | None) -> str:
        """The queue for messages of this task that name this queue, or none. Raises Undeliverable."""


@dataclass(frozen=True, slots=True)
class DefaultQueue:
    """Without an application: a message goes where it says, else to the one default queue."""

    name: str

    def queue_for(self, task: str, queue: str | None) -> str:  # noqa: ARG002
        return queue or self.name


@dataclass(frozen=True, slots=True)
class AllowedTasks:
    """Lets through only tasks that match; Celery's own never, because they run any other task they are told to."""

    routing: Routing
    patterns: Sequence[str] = ()
    """Names or shell patterns; none: every task."""

    def queue_for(self, task: str, queue: str | None) -> str:
        if task.startswith("celery."):
            raise Undeliverable(Refusal.MESSAGE, f"task {task!a} is Celery's own, which could run any other task")
        if not allowed(task, self.patterns):
            why = f"task {task!a} is not in OUTBOX_TASKS; add it there and retry the dead letter"
            raise Undeliverable(Refusal.MESSAGE, why)
        return self.routing.queue_for(task, queue)


def allowed(task: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatchcase(task, pattern) for pattern in patterns)


def patterns_of(tasks: str) -> tuple[str, ...]:
    """Of the setting: names or patterns, separated by commas."""
    return tuple(filter(None, (each.strip() for each in tasks.split(","))))

"""`@consumer`: a Celery task around a handler, so that each message takes effect exactly once."""

import inspect
import random
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from celery import Celery, Task
from celery.exceptions import Ignore, Reject
from celery.utils.log import get_task_logger
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from consumers.delivery import Delivery, read_delivery
from consumers.inbox import Inbox, intact
from consumers.outcome import Applied, Conflict, Duplicate, Failed, InProgress, Outcome, Unavailable
from consumers.registry import register_at_worker_start
from outbox.errors import ConfigurationError
from outbox.message import Message

logger = get_task_logger("outbox.consumers")
HandlerFunction = TypeVar("HandlerFunction", bound=Callable[..., object])

_FIRST_RETRY_SECONDS = 1.0
_LONGEST_RETRY_SECONDS = 3600.0
# A requeued message comes back at once: without a pause the worker would spin for as long as the outage lasts.
_OUTAGE_PAUSE_SECONDS = 1.0


def consumer(app: Celery, inbox: Inbox, *, name: str) -> Callable[[HandlerFunction], Task[Any, Any]]:
    """Register `handler(session, delivery, *args, **kwargs)` as the Celery task `name`."""
    Message(name)  # the same rules for names as on the writer's side
    inbox.claim_name(name)

    def decorate(handler: HandlerFunction) -> Task[Any, Any]:
        check_handler(handler, name)

        def body(task: Task[Any, Any], /, *args: object, **kwargs: object) -> object:
            delivery = read_delivery(task.request.id, name, task.request.headers)
            if not intact(delivery, args, kwargs):
                return _settle(task, inbox, delivery, Conflict())

            def run(session: Session) -> object:
                return handler(session, delivery, *args, **kwargs)

            outcome = inbox.run(delivery, run)
            try:
                return _settle(task, inbox, delivery, outcome)
            except DBAPIError as error:
                # Celery acknowledges a task that raises; what could not be written down must stay with the broker.
                return _settle(task, inbox, delivery, Unavailable(error))

        body.__name__, body.__qualname__, body.__doc__ = handler.__name__, handler.__qualname__, handler.__doc__
        body.__module__ = handler.__module__
        register_at_worker_start(inbox, name)
        # Acknowledged only after the commit; a killed child gives its message back. Not shared: Celery would also
        # register it with every other application of this process.
        make = app.task(name=name, bind=True, acks_late=True, reject_on_worker_lost=True, typing=False, shared=False)
        return make(body)

    return decorate


def _settle(task: Task[Any, Any], inbox: Inbox, delivery: Delivery, outcome: Outcome) -> object:
    """What Celery is told. Returning or Ignore acknowledges; by then everything that must survive is committed."""
    match outcome:
        case Applied(result):
            return result
        case Duplicate(status):
            logger.info("duplicate absorbed: already %s", status)
        case InProgress():
            logger.info("another worker is running this message")
            if not delivery.from_outbox:
                raise task.retry(countdown=30, max_retries=None)
            inbox.schedule_check(delivery)
        case Conflict():
            logger.error("refused: %s arrived with other arguments than were written", delivery.id)
        case Unavailable(error):
            # Nothing was decided, so nothing is counted: the broker keeps the message until the database is back.
            reason = f"the database cannot be used, the message goes back to the queue: {_first_line(error)}"
            logger.warning(reason)
            time.sleep(_OUTAGE_PAUSE_SECONDS)
            raise Reject(reason, requeue=True)
        case Failed(error):
            tried = delivery.attempt if delivery.from_outbox else task.request.retries
            delay = _backoff(tried)
            logger.warning("failed, attempt %d, again in about %.0f s", tried + 1, delay, exc_info=error)
            if not delivery.from_outbox:
                raise task.retry(exc=error, countdown=delay, max_retries=None)
            inbox.schedule_retry(delivery, error, timedelta(seconds=delay))
    # Not an overwritten result: whatever the first run stored stays.
    raise Ignore


def check_handler(handler: Callable[..., object], name: str) -> None:
    """Mistakes that would fail, or silently do nothing, with every single message."""
    if inspect.iscoroutinefunction(handler) or inspect.isgeneratorfunction(handler):
        kind = "async" if inspect.iscoroutinefunction(handler) else "a generator"
        raise ConfigurationError(f"the handler of {name!a} is {kind}, so calling it runs nothing; write a plain def")
    try:
        inspect.signature(handler).bind_partial("session", "delivery")
    except TypeError:
        raise ConfigurationError(
            f"the handler of {name!a} must take (session, delivery, ...) as its first arguments"
        ) from None


def _first_line(error: Exception) -> str:
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    return (str(cause).strip().splitlines() or [type(cause).__name__])[0]


def _backoff(attempt: int) -> float:
    """Exponential with full jitter on the upper half, so that a herd that failed together does not return together."""
    longest = min(_LONGEST_RETRY_SECONDS, _FIRST_RETRY_SECONDS * 2.0 ** min(attempt, 20))
    return longest * random.uniform(0.5, 1.0)  # noqa: S311

"""What `@consumer` refuses and how it spaces retries; what it does to messages is tested on real workers."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from celery import Celery, signals
from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker

from consumers import Delivery, Inbox, consumer
from consumers.inbox import intact
from consumers.task import _backoff, check_handler
from outbox import ConfigurationError, InvalidMessage
from outbox.codec import body_hash


@pytest.fixture
def app() -> Iterator[Celery]:
    """An application of this test's own; the receivers for worker start are process-wide and are taken back."""
    kept = {signal: list(signal.receivers) for signal in (signals.worker_init, signals.worker_process_init)}
    yield Celery("unit", broker="memory://", set_as_current=False)
    for signal, receivers in kept.items():
        signal.receivers = receivers


@pytest.fixture
def inbox() -> Inbox:
    return Inbox(sessionmaker())


def handler(session: object, delivery: Delivery) -> None: ...


def test_a_consumer_is_a_celery_task_that_acknowledges_late(app: Celery, inbox: Inbox) -> None:
    task = consumer(app, inbox, name="billing.charge")(handler)
    assert app.tasks["billing.charge"].name == task.name == "billing.charge"
    assert task.acks_late
    assert task.reject_on_worker_lost


@pytest.mark.parametrize("name", ["", "9x", "a b", "celery.chain", "x" * 256])
def test_a_consumer_has_a_name_that_a_message_can_have(app: Celery, inbox: Inbox, name: str) -> None:
    with pytest.raises(InvalidMessage):
        consumer(app, inbox, name=name)


def test_a_task_name_has_one_handler(app: Celery, inbox: Inbox) -> None:
    consumer(app, inbox, name="billing.charge")(handler)
    with pytest.raises(ConfigurationError) as refused:
        consumer(app, inbox, name="billing.charge")
    assert str(refused.value) == (
        "two consumers are named 'billing.charge': each task name has one handler; rename one"
    )


def test_another_application_in_the_process_has_no_such_task(app: Celery, inbox: Inbox) -> None:
    """Celery shares tasks between applications unless told otherwise; another one would use this one's inbox."""
    consumer(app, inbox, name="billing.charge")(handler)
    assert "billing.charge" not in Celery("other", broker="memory://", set_as_current=False).tasks


@pytest.mark.parametrize(
    ("attempt", "longest"), [(0, 1), (1, 2), (5, 32), (11, 2048), (12, 3600), (20, 3600), (10_000, 3600)]
)
def test_retries_back_off_exponentially_within_bounds(attempt: int, longest: float) -> None:
    delays = [_backoff(attempt) for _ in range(200)]
    assert all(longest / 2 <= delay <= longest for delay in delays)
    assert len(set(delays)) > 100, "a herd that failed together must not return together"


def test_an_inbox_has_a_receipt_timeout_of_five_minutes(inbox: Inbox) -> None:
    assert inbox.receipt_timeout == timedelta(minutes=5)


@pytest.mark.parametrize("schema", ["", "pg_catalog", "x" * 64])
def test_an_inbox_in_a_wrong_schema_is_refused(schema: str) -> None:
    with pytest.raises(ConfigurationError):
        Inbox(sessionmaker(), schema=schema)


def delivery_with(body_hash: str | None) -> Delivery:
    return Delivery(UUID(int=1), "a.task", body_hash=body_hash)


def test_arguments_are_held_against_the_hash_that_was_written() -> None:
    written = body_hash("a.task", (1, "x"), {"b": 2, "a": 1}).hex()
    assert intact(delivery_with(written), [1, "x"], {"a": 1, "b": 2})
    assert not intact(delivery_with(written), [1], {"a": 1, "b": 2})
    assert not intact(delivery_with(written), [1, "x"], {"a": 1, "b": 3})
    assert not intact(delivery_with(written.upper()), [1, "x"], {"a": 1, "b": 2})
    assert not intact(delivery_with("zz"), [1, "x"], {"a": 1, "b": 2})
    assert not intact(delivery_with(""), [1, "x"], {"a": 1, "b": 2})


def test_a_message_without_a_hash_is_taken_as_it_is() -> None:
    assert intact(delivery_with(None), [object()], {})


async def later(session: object, delivery: object) -> None:
    """Would never run."""


def forgetful(order_id: int) -> None:
    """Has no place for the session."""


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (later, "the handler of 'a.b' is async, so calling it runs nothing; write a plain def"),
        (forgetful, "the handler of 'a.b' must take (session, delivery, ...) as its first arguments"),
    ],
)
def test_a_handler_that_could_never_work_is_refused_at_import(handler: Callable[..., object], message: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        check_handler(handler, "a.b")
    assert str(refused.value) == message


def test_an_inbox_wants_a_sessionmaker() -> None:
    wrong: Any = create_engine("sqlite://")
    with pytest.raises(ConfigurationError, match=r"needs a sessionmaker, not Engine: Inbox\(sessionmaker\(engine\)\)"):
        Inbox(wrong)

from collections.abc import Mapping
from dataclasses import FrozenInstanceError
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest

from outbox import Added, InvalidMessage, Message
from outbox.message import RESERVED_HEADERS

LONGEST = "t" * 255
NOT_A_TASK = " is not a Celery task name: use letters, digits and _ . : -, at most 255, starting with a letter or _"
NOT_A_QUEUE = " is not a queue name: use letters, digits and _ . : @ / # -"
NOT_A_PRIORITY = " is not a number from 0 to 9 (higher runs sooner)"


def refusal(*args: Any, **kwargs: Any) -> str:
    with pytest.raises(InvalidMessage) as refused:
        Message(*args, **kwargs)
    return str(refused.value)


def test_a_message_needs_only_a_task() -> None:
    message = Message("billing.charge")
    assert (message.args, message.kwargs, message.queue, message.priority, message.headers) == ((), {}, None, None, {})


def test_two_messages_share_no_dictionary() -> None:
    assert Message("a").kwargs is not Message("a").kwargs
    assert Message("a").headers is not Message("a").headers


def test_a_message_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Message("a").task = "b"  # type: ignore[misc]


@pytest.mark.parametrize("task", ["t", "_private", "billing.charge", "a-b:c.d_9", "Celery", "celeryish.task", LONGEST])
def test_a_task_name_is_accepted(task: str) -> None:
    assert Message(task).task == task


@pytest.mark.parametrize(
    ("task", "shown"),
    [
        ("", "''"),
        ("9lives", "'9lives'"),
        (".a", "'.a'"),
        ("a b", "'a b'"),
        ("a\n", "'a\\n'"),
        ("é", "'\\xe9'"),
        ("a'; DROP TABLE x", '"a\'; DROP TABLE x"'),
        (LONGEST + "t", "'" + "t" * 56 + "..."),
    ],
)
def test_a_wrong_task_name_is_refused(task: object, shown: str) -> None:
    assert refusal(task) == f"task {shown}{NOT_A_TASK}"


@pytest.mark.parametrize(("task", "kind"), [(None, "NoneType"), (7, "int"), (b"a.task", "bytes"), (object(), "object")])
def test_a_task_that_is_no_text_is_refused(task: object, kind: str) -> None:
    assert refusal(task) == f"task must be the task's name as text, not {kind}"


@pytest.mark.parametrize("task", ["celery.chain", "celery.backend_cleanup", "celery."])
def test_celerys_own_tasks_are_refused(task: str) -> None:
    assert refusal(task) == (
        f"task '{task}' is built into Celery and could run any other task; name your own task instead"
    )


@pytest.mark.parametrize(
    ("args", "kind"),
    [("abc", "str"), (b"abc", "bytes"), (None, "NoneType"), ({1}, "set"), (iter(()), "tuple_iterator")],
)
def test_args_that_are_no_sequence_are_refused(args: object, kind: str) -> None:
    assert refusal("a", args) == f"args must be a list or tuple, not {kind}; for one argument write (x,)"


@pytest.mark.parametrize("args", [{"a": 1}, {}, MappingProxyType({"a": 1})])
def test_named_arguments_in_args_are_sent_to_kwargs(args: object) -> None:
    expected = "args must be a list or tuple, not a dictionary; named arguments go into kwargs={...}"
    assert refusal("a", args) == expected


@pytest.mark.parametrize("args", [[], [1], (1, 2)])
def test_args_are_a_list_or_tuple(args: list[int] | tuple[int, ...]) -> None:
    assert Message("a", args).args == args


@pytest.mark.parametrize(("kwargs", "kind"), [([("a", 1)], "list"), ("a", "str"), (None, "NoneType")])
def test_kwargs_that_are_no_mapping_are_refused(kwargs: object, kind: str) -> None:
    assert refusal("a", (), kwargs) == f"kwargs must be a dictionary, not {kind}"


def test_an_argument_that_celery_could_never_pass_is_refused() -> None:
    expected = 'kwargs: the name "self" is taken by Celery\'s own call of the task; rename the argument'
    assert refusal("a", (), {"self": 1}) == expected
    assert Message("a", ({"self": 1},), {"selfish": {"self": 1}}).kwargs == {"selfish": {"self": 1}}


@pytest.mark.parametrize("queue", [None, "celery", "a.b:c@d/e#f-9", "9", "q" * 255])
def test_a_queue_name_is_accepted(queue: str | None) -> None:
    assert Message("a", queue=queue).queue == queue


@pytest.mark.parametrize(
    ("queue", "shown"),
    [
        ("", "''"),
        ("a b", "'a b'"),
        ("mail\x06\x163", "'mail\\x06\\x163'"),
        ("é", "'\\xe9'"),
        ("q" * 256, "'" + "q" * 56 + "..."),
        (5, "5"),
    ],
)
def test_a_wrong_queue_name_is_refused(queue: object, shown: str) -> None:
    assert refusal("a", queue=queue) == f"queue {shown}{NOT_A_QUEUE}"


@pytest.mark.parametrize("priority", [None, *range(10)])
def test_a_priority_is_accepted(priority: int | None) -> None:
    assert Message("a", priority=priority).priority == priority


@pytest.mark.parametrize(
    ("priority", "shown"),
    [(-1, "-1"), (10, "10"), (True, "True"), (1.0, "1.0"), ("1", "'1'"), (10**80, "1" + "0" * 56 + "...")],
)
def test_a_wrong_priority_is_refused(priority: object, shown: str) -> None:
    assert refusal("a", priority=priority) == f"priority {shown}{NOT_A_PRIORITY}"


@pytest.mark.parametrize("headers", [{}, {"traceparent": "00-ab"}, MappingProxyType({"tenant": "é"})])
def test_headers_of_text_are_accepted(headers: Mapping[str, str]) -> None:
    assert Message("a", headers=headers).headers == headers


@pytest.mark.parametrize(
    ("headers", "kind"),
    [
        ([("a", "b")], "list"),
        ("a", "str"),
        (None, "NoneType"),
        ([], "list"),
        ("", "str"),
    ],
)
def test_headers_that_are_no_mapping_are_refused(headers: object, kind: str) -> None:
    assert refusal("a", headers=headers) == f"headers must be a dictionary, not {kind}"


@pytest.mark.parametrize(
    ("headers", "shown"),
    [
        ({"a": 1}, "'a'"),
        ({"a": None}, "'a'"),
        ({"a": b"x"}, "'a'"),
        ({1: "a"}, "1"),
        ({"n" * 99: 1}, "'" + "n" * 56 + "..."),
    ],
)
def test_a_header_that_is_no_text_is_refused(headers: object, shown: str) -> None:
    assert refusal("a", headers=headers) == f"header {shown} must be text with a text value; convert it with str()"


@pytest.mark.parametrize("name", sorted(RESERVED_HEADERS))
def test_a_header_of_celery_or_the_relay_is_refused(name: str) -> None:
    assert refusal("a", headers={name: "x"}) == f"header '{name}' is set by Celery or the relay; choose another name"


def test_an_error_never_carries_a_header_value() -> None:
    assert "hunter2" not in refusal("a", headers={"id": "hunter2"})


def test_an_added_message_is_new_unless_said_otherwise() -> None:
    assert Added(UUID(int=1)) == Added(UUID(int=1), duplicate=False)

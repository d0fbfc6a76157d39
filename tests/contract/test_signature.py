"""Signatures of the installed Celery as messages: what one task needs is kept, everything else is refused by name."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from celery import Celery, chain, chord, group, shared_task, signature
from celery.app.task import Task
from kombu import Queue

from outbox import InvalidMessage, Message
from outbox.message import Options
from outbox.signature import is_signature, read_message

app = Celery("signatures", set_as_current=False)


# shared=False: Celery would register them with every application of this process, those of other tests included.
@app.task(name="billing.charge", shared=False)
def charge(*args: object, **kwargs: object) -> None: ...


@app.task(name="mail.receipt", bind=True, shared=False)
def receipt(self: Task[Any, Any], *args: object) -> None: ...


@shared_task(name="signatures.shared")
def shared(*args: object) -> None: ...


NEXT = "add the next message in the handler of this one: it is then written in the transaction of its effects"
PARTS = "add_many() the parts, and add the last message in the handler that finds batch_progress() finished"
EACH = "add one message for each with add_many(); batch_progress() says how far they are"
JSON_ONLY = "payloads are JSON, so that PostgreSQL can keep and check them; leave it out"
ON_THE_TASK = "set it on the task: @consumer(app, inbox, {}=...)"
REPEATS = "the relay repeats a failed publication for as long as it takes; leave it out"
OPTIONS: list[tuple[str, object, str]] = [
    ("eta", datetime(2030, 1, 1, tzinfo=UTC), "use due_at=..., which waits in the database and survives the broker"),
    ("countdown", 3, "use delay=..., which waits in the database and survives the broker"),
    ("countdown", 0, "use delay=..., which waits in the database and survives the broker"),
    ("expires", 5, "use expires_at=... or expires_in=..., judged by the database clock"),
    ("task_id", "my-own", "the message id is the task id, and is made when it is added"),
    ("exchange", "topic", "only queues are possible; use queue=..."),
    ("routing_key", "billing.#", "only queues are possible; use queue=..."),
    ("serializer", "pickle", JSON_ONLY),
    ("compression", "gzip", JSON_ONLY),
    ("time_limit", 30, ON_THE_TASK.format("time_limit")),
    ("soft_time_limit", 30, ON_THE_TASK.format("soft_time_limit")),
    ("retry", True, REPEATS),
    ("retry", False, REPEATS),
    ("retry_policy", {"max_retries": 3}, REPEATS),
    ("link", charge.s(), NEXT),
    ("link_error", charge.s(), "a failed message becomes a dead letter with its reason; look at those instead"),
    ("chord", charge.s(), PARTS),
]
PRIORITY = "give priority=... to add(): 0 to 9, higher runs sooner, on every broker"
NO_MEANING = "it has no meaning in the outbox; leave it out"


def through_json(value: object) -> Any:
    return json.loads(json.dumps(value))


def charged(**options: Any) -> Any:
    """A signature with these options; Celery's types allow few of those that it takes."""
    made: Any = charge.s(1)
    return made.set(**options)


def refusal(value: object, **options: object) -> str:
    with pytest.raises(InvalidMessage) as refused:
        read_message(value, options)
    return str(refused.value)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (charge.s(), Message("billing.charge")),
        (charge.s(1, "a", order_id=7), Message("billing.charge", (1, "a"), {"order_id": 7})),
        (charge.si(1), Message("billing.charge", (1,))),
        (receipt.s(1), Message("mail.receipt", (1,))),
        (shared.s(1), Message("signatures.shared", (1,))),
        (charge.signature((1,), {"a": 2}), Message("billing.charge", (1,), {"a": 2})),
        (app.signature("other.task", args=(1,)), Message("other.task", (1,))),
        (signature("other.task", kwargs={"a": 1}), Message("other.task", (), {"a": 1})),
        (charge.s(2).clone(args=(1,)), Message("billing.charge", (1, 2))),
        (charge.s(1).set(queue="mail"), Message("billing.charge", (1,), queue="mail")),
        (charge.s().set(queue=Queue("mail")), Message("billing.charge", queue="mail")),
        (charge.s().set(headers={"tenant": "x"}), Message("billing.charge", headers={"tenant": "x"})),
        (charge.s().set(serializer="json"), Message("billing.charge")),
        (charged(eta=None, link=[], headers=None, queue=None, retry_policy={}), Message("billing.charge", (1,))),
    ],
)
def test_one_task_with_its_arguments_is_a_message(given: Any, expected: Message) -> None:
    assert read_message(given, {}) == expected


def test_a_signature_survives_json() -> None:
    given = through_json(charge.s(1, order_id=7).set(queue="mail", headers={"tenant": "x"}))
    assert is_signature(given)
    expected = Message("billing.charge", [1], {"order_id": 7}, queue="mail", headers={"tenant": "x"})
    assert read_message(given, {}) == expected


def test_options_of_add_come_on_top() -> None:
    found = read_message(charge.s(1).set(queue="mail"), {"queue": "fast", "priority": 3, "dedup_key": "a"})
    assert found == Message("billing.charge", (1,), queue="fast", priority=3, dedup_key="a")
    assert read_message(Message("a", (1,), queue="mail"), {"queue": "fast"}) == Message("a", (1,), queue="fast")
    assert read_message("a", {"args": (1,), "delay": 5}) == Message("a", (1,), delay=5)
    message = Message("a")
    assert read_message(message, {}) is message


def test_the_callers_signature_is_not_changed() -> None:
    given = charge.s(1).set(queue="mail", headers={"tenant": "x"})
    before = through_json(given)
    read_message(given, {"queue": "fast"})
    assert through_json(given) == before


MAP = "add one message an item with add_many()"


@pytest.mark.parametrize("as_json", [False, True], ids=["object", "json"])
@pytest.mark.parametrize(
    ("given", "kind", "instead"),
    [
        (chain(charge.s(), receipt.s()), "chain", NEXT),
        (charge.s() | receipt.s(), "chain", NEXT),
        (group(charge.s(), receipt.s()), "group", EACH),
        (chord([charge.s()], receipt.s()), "chord", PARTS),
        (group(charge.s(), charge.s()) | receipt.s(), "chord", PARTS),
        (charge.chunks([(1,), (2,)], 1).group(), "group", EACH),
        (charge.chunks([(1,)], 1), "chunks", "add one message a chunk with add_many()"),
        (charge.map([1]), "xmap", MAP),
        (charge.starmap([(1,)]), "xstarmap", MAP),
    ],
    ids="chain pipe group chord upgraded chunk-group chunks map starmap".split(),
)
def test_several_tasks_are_refused_with_the_way_to_do_it(given: Any, kind: str, instead: str, as_json: bool) -> None:
    expected = f"a '{kind}' is several tasks and the broker's business between them: {instead}"
    assert refusal(through_json(given) if as_json else given) == expected


@pytest.mark.parametrize("given", [charge.chunks([(1,)], 1), charge.map([1]), charge.starmap([(1,)])])
def test_a_task_of_celery_that_runs_others_never_gets_in(given: Any) -> None:
    for each in (given, through_json(given)):
        with pytest.raises(InvalidMessage):
            read_message(each, {})


@pytest.mark.parametrize(("name", "value", "instead"), OPTIONS, ids=[f"{name}={value}" for name, value, _ in OPTIONS])
def test_what_the_outbox_cannot_keep_is_refused_with_the_alternative(name: str, value: object, instead: str) -> None:
    expected = f"the signature's option '{name}' cannot be kept: {instead}"
    assert refusal(charged(**{name: value})) == expected
    if name not in Options.__annotations__:
        assert refusal("billing.charge", **{name: value}) == f"add() has no option '{name}': {instead}"


@pytest.mark.parametrize("priority", [0, 3, 9])
def test_celerys_priority_is_not_taken_over_because_it_means_the_opposite_on_redis(priority: int) -> None:
    expected = f"the signature's option 'priority' cannot be kept: {PRIORITY}"
    assert refusal(charge.s().set(priority=priority)) == expected
    assert read_message(charge.s(), {"priority": priority}).priority == priority


@pytest.mark.parametrize("name", ["shadow", "ignore_result", "stamped_headers", "reply_to", "mandatory"])
def test_any_other_option_is_refused_too(name: str) -> None:
    assert refusal(charged(**{name: "x"})) == f"the signature's option '{name}' cannot be kept: {NO_MEANING}"


def test_callbacks_that_were_linked_are_seen() -> None:
    linked, guarded = charge.s(), charge.s()
    linked.link(receipt.s())
    guarded.link_error(receipt.s())
    assert refusal(linked) == f"the signature's option 'link' cannot be kept: {NEXT}"
    assert refusal(guarded).startswith("the signature's option 'link_error' cannot be kept: a failed message becomes")
    assert refusal(through_json(linked)) == refusal(linked)


@pytest.mark.parametrize("task", [charge, receipt, shared], ids=["task", "bound", "shared"])
def test_the_task_itself_says_not_enough(task: Any) -> None:
    expected = "add() got the task itself; say with what to run it: outbox.add(session, charge.s(...))"
    assert refusal(task) == expected
    with pytest.raises(InvalidMessage) as refused:
        Message(task)
    assert str(refused.value) == (
        f"task must be the task's name as text, not {type(task).__name__}; pass its name, or its signature to add():"
        " outbox.add(session, charge.s(...))"
    )


def test_a_signature_is_no_name_of_a_task() -> None:
    with pytest.raises(InvalidMessage) as refused:
        Message(charge.s())  # type: ignore[arg-type]
    assert str(refused.value) == (
        "task must be the task's name as text, not Signature; add a signature as it is:"
        " outbox.add(session, charge.s(...))"
    )


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("prioritie", "did you mean priority?"),
        ("kwarg", "did you mean kwargs?"),
        ("due", "did you mean due_at?"),
        ("dedupkey", "did you mean dedup_key?"),
        ("expires_on", "did you mean expires_in?"),
        ("tenant", "the options are " + ", ".join(Options.__annotations__)),
        ("task", "the options are " + ", ".join(Options.__annotations__)),
    ],
)
def test_an_unknown_option_is_answered_with_the_nearest(name: str, hint: str) -> None:
    for given in ("billing.charge", Message("billing.charge"), charge.s()):
        assert refusal(given, **{name: "hunter2"}) == f"add() has no option '{name}': {hint}"


@pytest.mark.parametrize(
    "given",
    [{"task": "a"}, {"task": "a", "args": [], "kwargs": {}}, {}, [("task", "a")], 7, None, b"billing.charge", object()],
)
def test_what_is_no_message_in_any_form_is_refused(given: object) -> None:
    assert refusal(given) == (
        f"add() takes a Message, a task name or a signature, not {type(given).__name__}: write"
        ' Message("task.name", kwargs={...})'
    )


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"task": 7}, "task must be the task's name as text, not int"),
        ({"task": "two words"}, "task 'two words' is not a Celery task name"),
        ({"task": "celery.chord"}, "task 'celery.chord' is built into Celery"),
        ({"args": {"a": 1}}, "args must be a list or tuple, not a dictionary"),
        ({"args": "abc"}, "args must be a list or tuple, not str"),
        ({"kwargs": [1]}, "kwargs must be a dictionary, not list"),
        ({"options": {"queue": "two words"}}, "queue 'two words' is not a queue name"),
        ({"options": {"queue": 7}}, "queue 7 is not a queue name"),
        ({"options": {"headers": {"id": "x"}}}, "header 'id' is set by Celery or the relay"),
        ({"subtask_type": "hunter2" * 20}, "a 'hunter2"),
    ],
)
def test_a_signature_made_by_hand_is_checked_like_any_message(change: dict[str, object], why: str) -> None:
    made = {"task": "a", "args": [], "kwargs": {}, "options": {}, "subtask_type": None} | change
    assert refusal(made).startswith(why)
    assert len(refusal(made)) < 250

import json
import math
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest

from outbox import ConfigurationError, InvalidMessage, Message
from outbox.codec import body_hash
from outbox.envelope import DEFAULT_MAX_PAYLOAD, Envelope, Rules, seal

ID = UUID(int=1)
ENCODERS: dict[type, Callable[[Any], object]] = {Decimal: str, date: date.isoformat, set: sorted, PurePosixPath: str}


def sealed(message: Message, **rules: Any) -> Envelope:
    return seal(message, ID, Rules(**rules), {})


def refusal(message: Message, **rules: Any) -> str:
    with pytest.raises(InvalidMessage) as refused:
        sealed(message, **rules)
    return str(refused.value)


def misconfigured(**rules: Any) -> str:
    with pytest.raises(ConfigurationError) as refused:
        Rules(**rules)
    return str(refused.value)


def test_an_envelope_holds_the_texts_and_their_hash() -> None:
    message = Message("a.task", (1, "é"), {"b": None}, headers={"tenant": "x"})
    assert sealed(message) == Envelope(
        ID, message, '[1,"\\u00e9"]', '{"b":null}', '{"tenant":"x"}', body_hash("a.task", [1, "é"], {"b": None})
    )
    empty = sealed(Message("a.task"))
    assert (empty.args, empty.kwargs, empty.headers) == ("[]", "{}", "{}")


@pytest.mark.parametrize("kwargs", [MappingProxyType({"a": 1}), OrderedDict(a=1), {"a": 1}])
@pytest.mark.parametrize("rules", [{}, {"encoders": ENCODERS}], ids=["plain", "encoders"])
def test_kwargs_may_be_any_mapping(kwargs: Any, rules: dict[str, Any]) -> None:
    found = sealed(Message("a", [2], kwargs), **rules)
    assert (found.args, found.kwargs) == ("[2]", '{"a":1}')
    assert found.body_hash == body_hash("a", (2,), {"a": 1})


def test_encoders_turn_types_into_ones_that_json_has() -> None:
    message = Message("a", (Decimal("1.10"), {"on": [date(2030, 1, 2)]}), {"tags": ({"b", "a"},), "n": 1})
    found = sealed(message, encoders=ENCODERS)
    assert found.args == '["1.10",{"on":["2030-01-02"]}]'
    assert found.kwargs == '{"tags":[["a","b"]],"n":1}'
    # Of what is sent: the worker computes it from what it decodes.
    expected = body_hash("a", ["1.10", {"on": ["2030-01-02"]}], {"tags": [["a", "b"]], "n": 1})
    assert found.body_hash == expected
    assert message.args[0] == Decimal("1.10"), "the caller's message is the caller's"


def test_an_encoder_serves_subclasses_and_the_nearest_one_wins() -> None:
    when = datetime(2030, 1, 2, 3, tzinfo=UTC)
    path = Path("/srv/x")
    assert sealed(Message("a", (path, when)), encoders=ENCODERS).args == '["/srv/x","2030-01-02"]'
    nearer = ENCODERS | {datetime: datetime.isoformat}
    assert sealed(Message("a", (path, when)), encoders=nearer).args == '["/srv/x","2030-01-02T03:00:00+00:00"]'


@pytest.mark.parametrize(
    ("returned", "why"),
    [
        (Decimal(1), "kwargs.a[0]: Decimal is not JSON; pass str(value) and rebuild it in the handler"),
        (math.nan, "kwargs.a[0]: nan is not JSON; pass None or a string"),
        ("\x00", "kwargs.a[0]: contains the character \\u0000"),
        ({"__type__": 1}, 'kwargs.a[0]: the key "__type__" is reserved'),
        ({"b": {1: 2}}, "kwargs.a[0].b: the key 1 is not a string"),
        (b"hunter2", "kwargs.a[0]: bytes is not JSON"),
    ],
)
def test_what_an_encoder_returns_is_checked_like_everything(returned: object, why: str) -> None:
    said = refusal(Message("a", kwargs={"a": [1j]}), encoders={complex: lambda _: returned})
    assert said.startswith(why)
    assert "hunter2" not in said


@pytest.mark.parametrize("kind", [list, dict, object])
def test_encoders_are_for_values_and_not_for_the_arguments_as_a_whole(kind: type) -> None:
    found = sealed(Message("a", [[1]], {"a": {"b": 1}}), encoders={kind: lambda value: f"<{type(value).__name__}>"})
    assert found.args.startswith("[")
    assert found.kwargs.startswith("{")


def test_what_was_changed_after_the_message_was_made_is_checked_again() -> None:
    """The message is frozen, its list and dictionaries are the caller's."""
    args: list[object] = [1]
    kwargs: dict[str, object] = {"a": 1}
    headers = {"tenant": "x"}
    message = Message("a", args, kwargs, headers=headers)
    args.append({1})
    assert refusal(message).startswith("args[1]: set is not JSON")
    args.pop()
    kwargs["self"] = 1
    assert refusal(message).startswith('kwargs: the name "self" is taken')
    kwargs.pop("self")
    headers["id"] = "x"
    assert refusal(message) == "header 'id' is set by Celery or the relay; choose another name"


def test_a_value_with_two_faces_is_hashed_as_it_is_sent() -> None:
    """A subclass may tell the encoder another thing than a reader: the worker has only the text."""

    class TwoFaces(dict[str, object]):
        def items(self) -> Any:
            return {"amount": 1}.items()

    found = sealed(Message("a", (TwoFaces(amount=1000),)))
    assert found.body_hash == body_hash("a", json.loads(found.args), json.loads(found.kwargs))


@pytest.mark.parametrize("over", [0, 1])
def test_the_payload_may_be_as_large_as_the_limit(over: int) -> None:
    fixed = len('["","é"]'.replace("é", "\\u00e9")) + len('{"a":1}') + len('{"h":"x"}')
    message = Message("a", ("x" * (DEFAULT_MAX_PAYLOAD - fixed + over), "é"), {"a": 1}, headers={"h": "x"})
    if not over:
        found = sealed(message)
        assert len(found.args) + len(found.kwargs) + len(found.headers) == DEFAULT_MAX_PAYLOAD == 256 * 1024
    else:
        assert refusal(message).startswith("payload is 2")


def test_a_payload_over_the_limit_is_refused_with_its_size() -> None:
    expected = "payload is 312 KiB, limit 256 KiB (Outbox(max_payload=...)); pass a reference to where the data is kept"
    for message in (
        Message("a", ("x" * 312 * 1024,)),
        Message("a", kwargs={"a": "x" * 312 * 1024}),
        Message("a", headers={"a": "x" * 312 * 1024}),
        Message("a", ("x" * 156 * 1024,), {"a": "x" * 156 * 1024}),
        Message("a", ("☃" * (312 * 1024 // 6),)),  # six bytes each, as it is written
    ):
        assert refusal(message) == expected


def test_a_trace_counts_as_payload() -> None:
    with pytest.raises(InvalidMessage, match=r"payload is 0\.0254 KiB, limit 0\.00977 KiB"):
        seal(Message("a"), ID, Rules(max_payload=10), {"traceparent": "00-x"})


@pytest.mark.parametrize(
    ("size", "limit", "said"),
    [
        (9 * 1024, 1024, "payload is 9 KiB, limit 1 KiB"),
        (1536, 1024, "payload is 1.5 KiB, limit 1 KiB"),
        (100 * 1024 * 1024, 1024 * 1024, "payload is 102400 KiB, limit 1024 KiB"),
    ],
)
def test_sizes_are_told_in_kibibytes(size: int, limit: int, said: str) -> None:
    overhead = len('[""]') + len("{}") * 2
    assert refusal(Message("a", ("x" * (size - overhead),)), max_payload=limit).startswith(said)


@pytest.mark.parametrize("limit", [5000, DEFAULT_MAX_PAYLOAD, 10 * 1024 * 1024])
def test_a_payload_over_the_limit_looks_over_the_limit(limit: int) -> None:
    said = refusal(Message("a", ("x" * (limit - 7),)), max_payload=limit)
    size, _, allowed = said.removeprefix("payload is ").partition(" (")[0].partition(", limit ")
    assert size != allowed


@pytest.mark.parametrize(
    ("tasks", "accepted", "refused"),
    [
        (["billing.charge"], ["billing.charge"], ["billing.charge2", "Billing.charge", "billing"]),
        ({"billing.*"}, ["billing.charge", "billing.a.b", "billing."], ["billing", "mail.billing.x"]),
        (("*.charge", "mail.?"), ["billing.charge", "mail.a"], ["charge", "mail.ab"]),
        (frozenset(), [], ["a"]),
        (["*"], ["a"], []),
    ],
)
def test_only_tasks_of_the_list_are_accepted(tasks: Any, accepted: list[str], refused: list[str]) -> None:
    for task in accepted:
        assert sealed(Message(task), tasks=tasks).message.task == task
    for task in refused:
        assert refusal(Message(task), tasks=tasks) == (
            f"task '{task}' is not among the tasks of this outbox; correct the name or add it to Outbox(tasks=...)"
        )


def test_only_queues_of_the_list_are_accepted_and_the_default_one() -> None:
    for queue in ("mail", "bulk.1", None):
        assert sealed(Message("a", queue=queue), queues=["mail", "bulk.*"]).message.queue == queue
    assert refusal(Message("a", queue="male"), queues=["mail", "bulk.*"]) == (
        "queue 'male' is not among the queues of this outbox; correct the name or add it to Outbox(queues=...)"
    )
    assert sealed(Message("a"), queues=[]).message.queue is None
    assert refusal(Message("b", queue="x"), tasks=["a"], queues=["mail"]).startswith("task 'b' is not among")


@pytest.mark.parametrize(
    ("given", "shown"), [(0, "0"), (-1, "-1"), (True, "True"), (1.5, "1.5"), ("1", "'1'"), (None, "None")]
)
def test_a_limit_that_is_none_is_refused(given: object, shown: str) -> None:
    assert misconfigured(max_payload=given) == f"max_payload {shown} is not a number of bytes above 0"


@pytest.mark.parametrize("name", ["tasks", "queues"])
def test_one_text_is_not_a_list_of_names(name: str) -> None:
    """`"a" in "abc"` is true."""
    expected = f'{name} must be a list of names, not one text: {name}=["billing.*"]'
    assert misconfigured(**{name: "billing.charge"}) == expected
    assert misconfigured(**{name: ""}) == expected


@pytest.mark.parametrize("encoders", [{"Decimal": str}, {Decimal: "str"}, {Decimal: None}, {list[int]: str}])
def test_encoders_are_functions_by_type(encoders: object) -> None:
    expected = "encoders must be a dictionary of type: function, like {Decimal: str}"
    assert misconfigured(encoders=encoders) == expected


@pytest.mark.parametrize(
    "rules",
    [{"tasks": 7}, {"tasks": [7]}, {"queues": [None]}, {"tasks": iter(["a"])}, {"tasks": b"a"}, {"encoders": [str]}],
    ids=["number", "numbers", "none", "iterator", "bytes", "list"],
)
def test_rules_that_cannot_work_are_found_when_the_outbox_is_made(rules: dict[str, Any]) -> None:
    assert misconfigured(**rules)

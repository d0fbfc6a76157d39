import json
import re
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outbox import InvalidMessage, Message, fingerprint
from outbox.fingerprint import dedup_hash
from tests.unit.outbox.payloads import as_decoded, keys, repeatable, texts, values

often = settings(repeatable, max_examples=400)
# Few leaves, so that equal values in different spellings turn up often.
close: st.SearchStrategy[object] = st.recursive(
    st.sampled_from([0, 1, -0.0, 0.0, 1.0, 1.5, True, False, None, "", "0", "1", "1.0", 10**22, 1e22]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.tuples(inner) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
    ),
    max_leaves=4,
)


def respelled(value: object) -> object:
    """The same value in other words: keys the other way round, lists as tuples, integers as floats where exact."""
    match value:
        case bool() | None | str():
            return value
        case int():
            return float(value) if abs(value) < 2**53 else value
        case float():
            return int(value) if value.is_integer() else value
        case dict():
            return {key: respelled(value[key]) for key in reversed(value)}
        case list():
            return tuple(respelled(item) for item in value)
        case tuple():
            return [respelled(item) for item in value]
    raise AssertionError(value)


def meaning(value: object) -> object:
    """Equal if and only if the values are the same work; types that JSON tells apart stay apart."""
    match value:
        case bool() | None | str():
            return repr(value)
        case int() | float():
            return ("number", value)
        case dict():
            return ("object", frozenset((key, meaning(item)) for key, item in value.items()))
        case list() | tuple():
            return ("array", tuple(meaning(item) for item in value))
    raise AssertionError(value)


@often
@given(texts.filter(bool), values)
def test_the_spelling_does_not_matter(task: str, payload: object) -> None:
    assert fingerprint(task, payload) == fingerprint(task, respelled(payload)) == fingerprint(task, as_decoded(payload))


@settings(repeatable, max_examples=1500)
@given(close, close)
def test_two_values_share_one_exactly_when_they_mean_the_same(one: object, other: object) -> None:
    same = fingerprint("a.task", one) == fingerprint("a.task", other)
    assert same == (meaning(one) == meaning(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (-0.0, 0.0),
        (0, -0.0),
        (1e22, 10**22),
        ([1, 2], (1, 2)),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": [{"x": 1.0, "y": ()}]}, {"a": ({"y": [], "x": 1},)}),
    ],
)
def test_these_are_the_same_work(one: object, other: object) -> None:
    assert fingerprint("a.task", one) == fingerprint("a.task", other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (True, 1),
        (False, 0),
        (None, False),
        ("1", 1),
        ("", None),
        ([], {}),
        ([1], 1),
        ([1, 2], [2, 1]),
        ([[1], 2], [1, [2]]),
        ({"a": None}, {}),
        ({"a": {"b": 1}}, {"b": {"a": 1}}),
        (0.1 + 0.2, 0.3),
        (2**53, 2**53 + 1),
        ("é", "e\u0301"),
    ],
)
def test_these_are_different_work(one: object, other: object) -> None:
    assert fingerprint("a.task", one) != fingerprint("a.task", other)


@repeatable
@given(texts.filter(bool), texts.filter(bool), values)
def test_another_task_is_other_work(one: str, other: str, payload: object) -> None:
    assert (fingerprint(one, payload) == fingerprint(other, payload)) == (one == other)
    assert fingerprint(one, [other, payload]) != fingerprint(other, [one, payload]) or one == other


@repeatable
@given(st.dictionaries(keys.filter(lambda key: key and "." not in key), values, min_size=1, max_size=4), st.data())
def test_chosen_fields_are_as_good_as_a_payload_of_those_alone(payload: dict[str, object], data: st.DataObject) -> None:
    fields = data.draw(st.lists(st.sampled_from(sorted(payload)), min_size=1, unique=True))
    alone = {name: payload[name] for name in fields}
    assert fingerprint("a.task", payload, fields) == fingerprint("a.task", alone)
    assert fingerprint("a.task", payload | {"at . now": 1}, fields[::-1]) == fingerprint("a.task", alone)


def test_a_field_may_lie_inside() -> None:
    order = {"order": {"id": 7, "at": "now"}, "request_id": "x"}
    chosen = fingerprint("a.task", order, ["order.id"])
    assert chosen == fingerprint("a.task", {"order": {"id": 7.0, "at": "later"}}, ("order.id",))
    assert chosen != fingerprint("a.task", {"order": {"id": 8}}, ["order.id"])
    assert chosen != fingerprint("a.task", order, ["order"])


@pytest.mark.parametrize("field", ["amount", "order.amount", "order.id.x", "order.", "", "x" * 99])
def test_a_missing_field_is_not_equal_to_anything(field: str) -> None:
    with pytest.raises(InvalidMessage) as refused:
        fingerprint("a.task", {"order": {"id": "hunter2"}}, ["order", field])
    shown = ascii(field) if len(field) < 59 else "'" + "x" * 56 + "..."
    assert str(refused.value) == f"payload: there is no field {shown}; correct `fields` or send it always"


@pytest.mark.parametrize("payload", [[1], "order", None])
def test_only_a_mapping_has_fields(payload: object) -> None:
    with pytest.raises(InvalidMessage, match="there is no field 'a'"):
        fingerprint("a.task", payload, ["a"])


@pytest.mark.parametrize("fields", ["order_id", "", [], ()])
def test_fields_are_a_list_of_names(fields: Sequence[str]) -> None:
    with pytest.raises(InvalidMessage) as refused:
        fingerprint("a.task", {"order_id": 7}, fields)
    expected = 'fields must be a list of names, like ["order_id"]; leave it out to take the whole payload'
    assert str(refused.value) == expected


@pytest.mark.parametrize("task", ["", None, 7, b"a.task"])
def test_the_task_must_be_named(task: Any) -> None:
    with pytest.raises(InvalidMessage) as refused:
        fingerprint(task, {})
    assert str(refused.value) == ("fingerprint needs the task's name, so that two tasks with one payload stay apart")


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        ({"at": {1}}, "payload.at: set is not JSON; pass sorted(value)"),
        ([float("nan")], "payload[0]: nan is not JSON"),
        ({1: 2}, "payload: the key 1 is not a string"),
        ("\ud800", "payload: contains a lone surrogate"),
    ],
)
def test_what_is_not_json_has_no_fingerprint(payload: object, why: str) -> None:
    with pytest.raises(InvalidMessage, match=re.escape(why)):
        fingerprint("a.task", payload)


def test_the_payload_may_be_any_mapping() -> None:
    """As a message's kwargs may."""
    assert fingerprint("a.task", MappingProxyType({"a": 1})) == fingerprint("a.task", {"a": 1})


def hashed(key: str, args: list[object], kwargs: dict[str, object], task: str = "a.task") -> str:
    return dedup_hash(key, task, json.dumps(args), json.dumps(kwargs))


def test_the_same_request_under_a_key_is_told_by_its_meaning() -> None:
    """Not by the hash of the body, which tells 2 from 2.0 because a handler can."""
    one = hashed("k", [1, {"a": 2, "b": 0.0}], {"x": 1e22})
    assert one == hashed("other", [1.0, {"b": -0.0, "a": 2}], {"x": 10**22})
    others = [hashed("k", [True], {}), hashed("k", [1], {}), hashed("k", [], {"x": 1}), hashed("k", [1], {}, "b.task")]
    assert len({one, *others}) == 5


def test_under_a_fingerprint_only_the_fingerprint_counts() -> None:
    """What was left out of it, like the time of the request, makes no conflict."""
    key = fingerprint("a.task", {"order_id": 7, "at": "now"}, ["order_id"])
    assert hashed(key, [], {"order_id": 7, "at": "now"}) == hashed(key, [], {"order_id": 7, "at": "later"})
    assert hashed(str(key), [], {"at": "now"}) != hashed(str(key), [], {"at": "later"})
    assert hashed(key, [], {}) != hashed(fingerprint("a.task", {"order_id": 8}), [], {})


def test_it_is_a_key_and_never_changes() -> None:
    """Keys live in the database, and other languages may compute them: SHA-256 of the canonical JSON."""
    key = fingerprint("billing.charge", {"order_id": 7, "amount": 12.5, "lines": (1.0, "é")})
    assert key == "02f979c63dd907b011a3e0eb84f960d462c2e64713b1ff6da0d43994e7c1af69"
    assert Message("billing.charge", dedup_key=key).dedup_key == key

"""The quick way and the careful way through the codec say the same, whatever they are given."""

import json
from decimal import Decimal
from types import MappingProxyType
from unittest.mock import patch
from uuid import UUID

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from outbox import codec
from outbox.envelope import Rules, seal
from outbox.errors import InvalidMessage
from outbox.message import Message
from tests.unit.outbox.nasty import TOO_LONG_INTEGER, Text, anything, as_handler_sees, fits, leaves, wrapped
from tests.unit.outbox.payloads import repeatable, values

ENCODERS = Rules({Decimal: str})
often = settings(repeatable, max_examples=600)


def outcome(value: object) -> tuple[str, str]:
    """The text, or the refusal; anything else is a mistake of the codec."""
    try:
        return "text", codec.encode(value, "kwargs")
    except InvalidMessage as refused:
        return "refused", str(refused)


def careful_outcome(value: object) -> tuple[str, str]:
    with patch.object(codec, "_plain", lambda *_: False):
        return outcome(value)


def at_top(value: object) -> object:
    """The outermost value may be any mapping: a message's kwargs may."""
    return dict(value) if isinstance(value, MappingProxyType) else value


@often
@given(anything)
def test_both_ways_agree_and_refuse_exactly_what_does_not_fit(value: object) -> None:
    found = outcome(value)
    assert found == careful_outcome(value)
    assert (found[0] == "text") == fits(at_top(value))


@often
@given(anything)
def test_whatever_is_accepted_reaches_the_handler_as_plain_values(value: object) -> None:
    value = at_top(value)
    assume(fits(value))
    text = codec.encode(value, "args")
    assert text.isascii()
    assert repr(json.loads(text)) == repr(as_handler_sees(value))
    # And with the same hash: the worker compares it.
    assert codec.body_hash("a.task", [value], {}) == codec.body_hash("a.task", [json.loads(text)], {})


@often
@given(leaves, st.integers(95, 103), st.booleans(), st.booleans())
def test_both_ways_end_at_the_same_depth(value: object, levels: int, in_lists: bool, stretched: bool) -> None:
    nested = wrapped([] if stretched else value, levels, in_lists=in_lists)
    found = outcome(nested)
    assert found == careful_outcome(nested)
    assert (found[0] == "text") == fits(nested)
    if levels > codec.MAX_DEPTH:
        assert found[1].endswith(": nested deeper than 100 levels; flatten it or pass a reference")


@pytest.mark.parametrize("levels", [1000, 100_000])
@pytest.mark.parametrize("in_lists", [True, False])
def test_whatever_the_depth_it_is_a_refusal(levels: int, in_lists: bool) -> None:
    """And not a RecursionError, with or without encoders."""
    nested = wrapped(1, levels, in_lists=in_lists)
    assert outcome(nested)[1].endswith(": nested deeper than 100 levels; flatten it or pass a reference")
    with pytest.raises(InvalidMessage, match=r"nested deeper than 100 levels; flatten it or pass a reference$"):
        seal(Message("a", [nested]), UUID(int=1), ENCODERS, {})


def test_both_ways_end_at_the_same_integer() -> None:
    for value in (TOO_LONG_INTEGER - 1, 2**14_283, 1 - TOO_LONG_INTEGER):
        assert fits(value)
        assert outcome(value) == careful_outcome(value) == ("text", str(value))


def circles() -> list[object]:
    alone: list[object] = []
    alone.append(alone)
    mapping: dict[str, object] = {}
    mapping["me"] = mapping
    first: dict[str, object] = {}
    first["second"] = [(first,)]
    late: list[object] = [1, {"a": 2}]
    late.append({"late": late})
    twice: list[object] = []
    twice.extend([twice, twice])
    return [alone, mapping, first, late, twice]


@pytest.mark.parametrize("circle", circles(), ids="alone mapping first late twice".split())
def test_a_circle_is_refused_both_ways(circle: object) -> None:
    found = outcome(circle)
    assert found == careful_outcome(circle)
    assert found[1].endswith(": nested deeper than 100 levels; flatten it or pass a reference")


def test_encoders_do_not_multiply_a_circle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MAX_DEPTH", 10)  # so that the walk ends at all
    calls: list[Decimal] = []

    def counted(value: Decimal) -> str:
        calls.append(value)
        return str(value)

    circle: list[object] = [Decimal(1)]
    circle.extend([circle, circle])
    with pytest.raises(InvalidMessage, match="nested deeper"):
        seal(Message("a", circle), UUID(int=1), Rules({Decimal: counted}), {})
    assert len(calls) <= 20


class Sly(Text):
    """Equal to nothing: no search in a dictionary finds it."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


def test_a_reserved_key_cannot_hide_behind_its_class() -> None:
    assert outcome({Sly("__type__"): "datetime", "__value__": "x"})[0] == "refused"


@often
@given(values)
def test_without_anything_to_convert_encoders_change_nothing(value: object) -> None:
    message = Message("a", [value], {"a": value})
    assert seal(message, UUID(int=1), ENCODERS, {}) == seal(message, UUID(int=1), Rules(), {})


def test_the_quick_way_is_taken_for_usual_payloads(monkeypatch: pytest.MonkeyPatch) -> None:
    def walked(*_: object) -> None:
        raise AssertionError("the careful way costs several times as much")

    monkeypatch.setattr(codec, "_check", walked)
    usual = {"order_id": 7, "lines": [{"sku": "a", "price": "1.10", "tags": ("x", None, True)}], "note": "grüße"}
    assert json.loads(codec.encode(usual, "kwargs"))["order_id"] == 7
    assert codec.encode((1, 2.5, [], {}), "args") == "[1,2.5,[],{}]"


def test_a_name_of_any_size_can_be_shown() -> None:
    assert codec.shown("x" * 100) == "'" + "x" * 56 + "..."
    assert codec.shown("\x1b[31m\n") == "'\\x1b[31m\\n'"
    assert codec.shown("x" * 58) == "'" + "x" * 58 + "'"


@pytest.mark.parametrize("value", [10**5000, {10**5000: 1}, (10**5000,)], ids=["integer", "key", "inside"])
def test_an_integer_of_any_size_can_be_shown(value: object) -> None:
    assert len(codec.shown(value)) <= 60
    assert outcome({"x": {10**5000: 1}})[0] == "refused"

import json
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import NamedTuple
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.codec import MAX_DEPTH, body_hash, encode
from outbox.errors import InvalidMessage
from tests.unit.outbox.payloads import arguments, as_decoded, keywords, repeatable, values


class Colour(StrEnum):
    RED = "red"


class Size(IntEnum):
    SMALL = 1


class Shade(Enum):
    DARK = "dark"


class Point(NamedTuple):
    x: int
    y: int


class Custom:
    pass


ISOFORMAT = "pass value.isoformat() and parse it in the handler"
BASE64 = "pass base64 text, or a reference to where the bytes are kept"
CONVERT = "convert it to str, int, float, bool, None, list or dict"


def not_json(kind: str, hint: str) -> str:
    return f"{kind} is not JSON; {hint}, or register an encoder: Outbox(encoders={{{kind}: ...}})"


REFUSED: list[tuple[object, str]] = [
    (datetime(2030, 1, 1, tzinfo=UTC), not_json("datetime", ISOFORMAT)),
    (date(2030, 1, 1), not_json("date", ISOFORMAT)),
    (time(12), not_json("time", ISOFORMAT)),
    (timedelta(1), not_json("timedelta", "pass value.total_seconds()")),
    (Decimal("1.10"), not_json("Decimal", "pass str(value) and rebuild it in the handler")),
    (UUID(int=0), not_json("UUID", "pass str(value)")),
    (b"raw", not_json("bytes", BASE64)),
    (bytearray(b"raw"), not_json("bytearray", BASE64)),
    ({3, 1}, not_json("set", "pass sorted(value)")),
    (frozenset({1}), not_json("frozenset", "pass sorted(value)")),
    (Custom(), not_json("Custom", CONVERT)),
    (1j, not_json("complex", CONVERT)),
    (Shade.DARK, not_json("Shade", CONVERT)),
    (-(10**4300), "an integer of over 4300 digits cannot be read back; pass it as text"),
    (10**5000, "an integer of over 4300 digits cannot be read back; pass it as text"),
    (float("nan"), "nan is not JSON; pass None or a string"),
    (float("inf"), "inf is not JSON; pass None or a string"),
    (float("-inf"), "-inf is not JSON; pass None or a string"),
    ("a\x00b", "contains the character \\u0000, which PostgreSQL cannot store; remove it"),
    ("\ud800", "contains a lone surrogate; it is not valid text, decode it again"),
    ("\ud83d\ude00", "contains a lone surrogate; it is not valid text, decode it again"),
    ({"__type__": "x"}, 'the key "__type__" is reserved by Celery\'s JSON decoder; rename it'),
    ({1: "x"}, "the key 1 is not a string; JSON would change it, convert it"),
    ({True: "x"}, "the key True is not a string; JSON would change it, convert it"),
    ({1.5: "x"}, "the key 1.5 is not a string; JSON would change it, convert it"),
    ({Size.SMALL: "x"}, "the key <Size.SMALL: 1> is not a string; JSON would change it, convert it"),
    ({("a",): "x"}, "the key ('a',) is not a string; JSON would change it, convert it"),
    ({None: "x"}, "the key None is not a string; JSON would change it, convert it"),
    ({"a\x00b": 1}, "contains the character \\u0000, which PostgreSQL cannot store; remove it"),
    ({"\udfff": 1}, "contains a lone surrogate; it is not valid text, decode it again"),
]


def nested(levels: int) -> list[object]:
    value: list[object] = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(("value", "expected"), REFUSED, ids=[expected[:30] for _, expected in REFUSED])
def test_what_json_cannot_carry_is_refused_with_its_path_and_a_remedy(value: object, expected: str) -> None:
    with pytest.raises(InvalidMessage) as refused:
        encode({"order": [0, {"lines": (value,)}]}, "kwargs")
    assert str(refused.value) == f"kwargs.order[1].lines[0]: {expected}"


@pytest.mark.parametrize(("value", "expected"), REFUSED, ids=[expected[:30] for _, expected in REFUSED])
def test_the_outermost_value_is_checked_too(value: object, expected: str) -> None:
    with pytest.raises(InvalidMessage) as refused:
        encode(value, "args[2]")
    assert str(refused.value) == f"args[2]: {expected}"


def test_the_deepest_nesting_is_accepted_and_one_more_is_not() -> None:
    assert json.loads(encode(nested(MAX_DEPTH), "args")) == nested(MAX_DEPTH)
    with pytest.raises(InvalidMessage, match=r"nested deeper than 100 levels; flatten it or pass a reference"):
        encode(nested(MAX_DEPTH + 1), "args")


def test_a_value_that_contains_itself_is_refused() -> None:
    circle: list[object] = []
    circle.append(circle)
    with pytest.raises(InvalidMessage, match="nested deeper"):
        encode(circle, "args")
    mapping: dict[str, object] = {}
    mapping["me"] = mapping
    with pytest.raises(InvalidMessage, match="nested deeper"):
        encode(mapping, "kwargs")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([], "[]"),
        ({}, "{}"),
        ((1, (2,)), "[1,[2]]"),
        ({"a": [True, None]}, '{"a":[true,null]}'),
        ("grüße ☃ 𝄞", '"gr\\u00fc\\u00dfe \\u2603 \\ud834\\udd1e"'),
        (2**70, "1180591620717411303424"),
        (1.0, "1.0"),
        (-0.0, "-0.0"),
        (Colour.RED, '"red"'),
        (Size.SMALL, "1"),
        (Point(1, 2), "[1,2]"),
        (OrderedDict(b=1, a=2), '{"b":1,"a":2}'),
        (defaultdict(list, {"a": [1]}), '{"a":[1]}'),
        ({"type": "__type__"}, '{"type":"__type__"}'),
        ("\\u0000", '"\\\\u0000"'),
        ("\\ud800", '"\\\\ud800"'),
        ("😀", '"\\ud83d\\ude00"'),
        ({Colour.RED: Colour.RED}, '{"red":"red"}'),
        (2**53 + 1, "9007199254740993"),
        (10**400, "1" + "0" * 400),
        (0.1 + 0.2, "0.30000000000000004"),
        (5e-324, "5e-324"),
    ],
)
def test_what_is_json_is_written_compactly_and_in_ascii(value: object, text: str) -> None:
    assert encode(value, "args") == text


@repeatable
@given(values)
def test_what_is_accepted_decodes_to_the_same_value(value: object) -> None:
    text = encode(value, "args")
    assert text.isascii()
    assert "\\u0000" not in text
    # repr: 1, 1.0 and True are equal, and a handler can tell them apart.
    assert repr(json.loads(text)) == repr(as_decoded(value))


@repeatable
@given(st.text(), arguments, keywords)
def test_a_worker_computes_the_same_hash_from_what_it_decoded(
    task: str, args: list[object], kwargs: dict[str, object]
) -> None:
    decoded_args: Sequence[object] = json.loads(encode(args, "args"))
    decoded_kwargs: Mapping[str, object] = json.loads(encode(kwargs, "kwargs"))
    assert body_hash(task, args, kwargs) == body_hash(task, decoded_args, decoded_kwargs)
    assert body_hash(task, tuple(args), kwargs) == body_hash(task, args, kwargs)


def reversed_keys(value: object) -> object:
    if isinstance(value, dict):
        return {key: reversed_keys(value[key]) for key in reversed(value)}
    return [reversed_keys(item) for item in value] if isinstance(value, list | tuple) else value


@repeatable
@given(keywords)
def test_the_hash_does_not_depend_on_the_order_of_keys(kwargs: dict[str, object]) -> None:
    other = reversed_keys(kwargs)
    assert isinstance(other, dict)
    assert body_hash("a.task", (), kwargs) == body_hash("a.task", (), other)


def test_the_hash_covers_task_arguments_and_types() -> None:
    bodies: list[tuple[str, Sequence[object], Mapping[str, object]]] = [
        ("a.task", (), {}),
        ("b.task", (), {}),
        ("a.task", (1,), {}),
        ("a.task", ("1",), {}),
        ("a.task", (1.0,), {}),
        ("a.task", (True,), {}),
        ("a.task", ([1],), {}),
        ("a.task", (1, 2), {}),
        ("a.task", (2, 1), {}),
        ("a.task", (), {"x": 1}),
        ("a.task", ({"x": 1},), {}),
        ("a.task", (), {"x": None}),
    ]
    assert len({body_hash(*body) for body in bodies}) == len(bodies)


def test_the_hash_of_a_stored_message_never_changes() -> None:
    """Messages written by an older version are checked by a newer worker."""
    stored = "709629dc540b7f742038fb5058846ad35293c44118b8b398bc13cb7a6e3c52cb"
    assert body_hash("billing.charge", (1, "é"), {"b": [None], "a": {"y": 1.5, "x": True}}).hex() == stored

"""Values that a caller may pass by mistake or out of malice, and what is to become of them, for Hypothesis."""

import math
from collections import OrderedDict, defaultdict
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from types import MappingProxyType
from typing import NamedTuple

from hypothesis import strategies as st

from tests.unit.outbox.payloads import scalars, texts

# Python itself reads and writes integers of 4300 digits at most.
TOO_LONG_INTEGER = 10**4300
LONG_INTEGER = 2**14_283 - 1


class Text(str):
    """A subclass that says something else about itself than it holds."""

    __slots__ = ()

    def __str__(self) -> str:
        return "something else"

    __repr__ = __str__


class Number(int):
    def __repr__(self) -> str:
        return "something else"


class Fraction(float):
    def __repr__(self) -> str:
        return "something else"


class Word(StrEnum):
    RED = "red"
    TYPE = "__type__"


class Size(IntEnum):
    SMALL = 1


class Shade(Enum):
    DARK = "dark"


class Point(NamedTuple):
    x: object
    y: object


odd_texts = st.sampled_from(
    [
        "__type__",
        '"__type__"',
        '{"__type__": 1}',
        "\x00",
        "a\x00b",
        "\\u0000",
        "\\\\u0000",
        "\\",
        "\ud800",
        "\udfff",
        "\ud83d\ude00",
        "\\ud800",
        "😀",
        "\ue000",
        "\ud7ff",
        "ud",
        "NaN",
        Text("x"),
        Text("__type__"),
        Text("\x00"),
        Word.RED,
        Word.TYPE,
    ]
)
odd_numbers = st.sampled_from(
    [
        math.nan,
        math.inf,
        -math.inf,
        -0.0,
        5e-324,
        1e22,
        2**53 + 1,
        10**400,
        LONG_INTEGER,
        Number(7),
        Fraction(0.5),
        Fraction("nan"),
        Size.SMALL,
        True,
    ]
)
# Made when needed: not even Hypothesis can print them.
long_integers = st.sampled_from([4300, 5000]).map(lambda digits: 10**digits)
strangers = st.sampled_from(
    [b"raw", {1}, Decimal("1.1"), datetime(2030, 1, 1, tzinfo=UTC), Shade.DARK, object(), 1j, ..., len, range(2)]
)
odd_keys = st.sampled_from([True, False, None, 1, 0, 1.5, Size.SMALL, Shade.DARK, ("a",), b"a", Number(1)])
leaves: st.SearchStrategy[object] = scalars | odd_texts | odd_numbers | long_integers
anything: st.SearchStrategy[object] = st.recursive(
    leaves | leaves | leaves | strangers,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.builds(Point, inner, inner)
        | st.dictionaries(texts | odd_texts, inner, max_size=3)
        | st.dictionaries(texts | odd_texts | odd_keys, inner, max_size=3)
        | st.dictionaries(texts | odd_texts, inner, max_size=2).map(OrderedDict)
        | st.dictionaries(texts, inner, max_size=2).map(lambda found: defaultdict(list, found))
        | st.dictionaries(texts, inner, max_size=2).map(MappingProxyType)
    ),
    max_leaves=8,
)


def wrapped(value: object, levels: int, *, in_lists: bool) -> object:
    """So many containers around a value."""
    for _ in range(levels):
        value = [value] if in_lists else {"in": value}
    return value


def fits(value: object, depth: int = 0) -> bool:
    """What JSON, PostgreSQL and Celery carry unchanged, said a second time and as plainly as possible."""
    if depth > 100:
        return False
    if value is None or isinstance(value, bool):
        return True
    if isinstance(value, int):
        return abs(value) < TOO_LONG_INTEGER
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, str):
        return not any(character == "\x00" or "\ud800" <= character <= "\udfff" for character in value)
    if isinstance(value, list | tuple):
        return all(fits(item, depth + 1) for item in value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and key != "__type__" and fits(key) for key in value) and all(
            fits(item, depth + 1) for item in value.values()
        )
    return False


def as_handler_sees(value: object) -> object:
    """The plain value: no subclass survives JSON."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return "".join(value)
    if isinstance(value, list | tuple):
        return [as_handler_sees(item) for item in value]
    assert isinstance(value, dict)
    return {as_handler_sees(key): as_handler_sees(item) for key, item in value.items()}

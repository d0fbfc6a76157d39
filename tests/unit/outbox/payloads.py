"""Payloads that a caller may write, for Hypothesis: the same examples on every run, nothing kept in the repository."""

from collections.abc import Mapping, Sequence

from hypothesis import configuration, settings
from hypothesis import strategies as st

from tests.support.processes import ROOT

# Even without an example database Hypothesis caches its tables of characters, by default beside the tests;
# build/ is ignored and swept away by `make clean`.
configuration.set_hypothesis_home_dir(ROOT / "build" / "hypothesis")

repeatable = settings(deadline=None, derandomize=True, database=None, max_examples=100)

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)
keys = texts.filter(lambda key: key != "__type__")
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(10**300), max_value=10**300)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
values: st.SearchStrategy[object] = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)
arguments: st.SearchStrategy[list[object]] = st.lists(values, max_size=4)
keywords: st.SearchStrategy[dict[str, object]] = st.dictionaries(
    keys.filter(lambda key: key != "self"), values, max_size=4
)


def as_decoded(value: object) -> object:
    """The value as JSON gives it back: a tuple is a list, a mapping is a dictionary."""
    if isinstance(value, Mapping):
        return {key: as_decoded(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [as_decoded(item) for item in value]
    return value

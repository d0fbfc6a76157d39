from hypothesis import given
from hypothesis import strategies as st

from relay.appetite import Appetite


def test_it_begins_small_and_doubles() -> None:
    appetite = Appetite(500)
    grown = []
    for _ in range(5):
        grown.append(appetite.rows)
        appetite.took(appetite.rows, 100)
    assert grown == [64, 128, 256, 500, 500]
    appetite.restart()
    assert appetite.rows == 64


@given(most=st.integers(1, 10_000), pages=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 10**9))))
def test_it_stays_in_its_bounds(most: int, pages: list[tuple[int, int]]) -> None:
    appetite = Appetite(most)
    for rows, size in pages:
        appetite.took(rows, size)
        assert 1 <= appetite.rows <= most


def test_large_messages_make_it_short() -> None:
    appetite = Appetite(500)
    appetite.took(64, 64 * 1_000_000)
    assert appetite.rows == 4

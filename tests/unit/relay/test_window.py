from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from relay.window import Bounds, Page, pages
from tests.unit.outbox.payloads import repeatable

xids = st.none() | st.integers(3, 2**63 - 1).map(str)
plans = st.lists(st.integers(1, 2**62), unique=True, max_size=8).map(sorted)


def test_pages_follow_each_other_without_gap_or_overlap() -> None:
    plan = [Bounds(10, "700", "705"), Bounds(25, "702", "709"), Bounds(26, "709", "709")]
    assert list(pages(4, plan)) == [
        Page(4, 10, "700", "705"),
        Page(10, 25, "702", "709"),
        Page(25, 26, "709", "709"),
    ]


def test_a_page_of_late_rows_only_has_an_empty_range_of_transactions() -> None:
    [page] = pages(0, [Bounds(9, None, None)])
    assert (page.low, page.high) == (0, 9)
    assert int(page.first_xid) > int(page.last_xid)


def test_an_empty_plan_has_no_pages() -> None:
    assert list(pages(5, [])) == []


@repeatable
@given(plans, st.data())
def test_every_seq_of_the_window_is_on_exactly_one_page(highs: list[int], data: st.DataObject) -> None:
    found = list(pages(0, [Bounds(high, data.draw(xids), data.draw(xids)) for high in highs]))
    assert [page.high for page in found] == highs
    assert all(earlier.high == later.low for earlier, later in pairwise(found))
    for seq in {1, *highs, *(high + 1 for high in highs[:-1])}:
        assert sum(page.low < seq <= page.high for page in found) == (1 if highs and seq <= highs[-1] else 0)

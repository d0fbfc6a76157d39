from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.lease import Term, trusted_until
from tests.unit.outbox.payloads import repeatable

HOLDER = UUID(int=7)
TERM = Term(epoch=3, holder=HOLDER, trusted_until=100.0)

moments = st.floats(0, 1e9)
ttls = st.floats(0.5, 60)


@pytest.mark.parametrize(("now", "trusted"), [(0.0, True), (99.999, True), (100.0, False), (100.001, False)])
def test_a_term_is_trusted_until_its_moment_and_not_at_it(now: float, trusted: bool) -> None:
    assert TERM.trusted(now) is trusted


def test_trust_ends_a_tenth_of_the_ttl_before_the_lease() -> None:
    assert trusted_until(1000.0, 3.0) == pytest.approx(1002.7)


def test_a_renewal_lengthens_trust_and_changes_nothing_else() -> None:
    renewed = TERM.renewed(started=200.0, ttl=10.0)
    assert renewed == Term(3, HOLDER, 209.0)
    assert TERM.trusted_until == 100.0


def test_a_late_answer_to_an_old_renewal_does_not_shorten_trust() -> None:
    assert TERM.renewed(started=50.0, ttl=10.0) == TERM


@repeatable
@given(moments, ttls, st.floats(0, 120))
def test_a_relay_never_trusts_itself_longer_than_the_database_does(started: float, ttl: float, delay: float) -> None:
    """The database counts from a moment after `started`: however slow the request, its lease ends later."""
    granted = started + delay
    assert trusted_until(started, ttl) < granted + ttl


@repeatable
@given(moments, st.lists(st.tuples(moments, ttls), max_size=6))
def test_trust_only_grows_by_renewals(first: float, renewals: list[tuple[float, float]]) -> None:
    term = Term(1, HOLDER, first)
    for started, ttl in renewals:
        renewed = term.renewed(started, ttl)
        assert renewed.trusted_until >= term.trusted_until
        term = renewed
    assert term.trusted_until == max([first, *(trusted_until(started, ttl) for started, ttl in renewals)])

"""Nothing is accepted by another message's answer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.confirms import Confirms, Disagreement
from tests.unit.outbox.payloads import repeatable


def opened(count: int, first_tag: int = 1) -> Confirms:
    confirms = Confirms([f"id-{index}" for index in range(count)], first_tag)
    confirms.send(count)
    return confirms


def test_an_answer_counts_for_its_number_alone() -> None:
    confirms = opened(3)
    confirms.ack(2, multiple=False)
    assert (confirms.accepted, confirms.unanswered(), confirms.oldest) == (1, [0, 2], 0)


def test_an_answer_to_all_so_far_leaves_the_later_ones_open() -> None:
    confirms = opened(5)
    confirms.ack(3, multiple=True)
    assert (confirms.accepted, confirms.unanswered(), confirms.oldest) == (3, [3, 4], 3)
    confirms.nack(0, multiple=True)
    assert (confirms.rejected, confirms.waiting, confirms.oldest) == ({3, 4}, 0, 5)


def test_a_returned_message_is_not_accepted_by_its_acknowledgement() -> None:
    confirms = opened(3)
    confirms.came_back("id-1")
    confirms.ack(3, multiple=True)
    assert (confirms.accepted, confirms.returned, confirms.waiting) == (2, {1}, 0)


def test_what_was_not_sent_is_unanswered() -> None:
    confirms = Confirms(["a", "b", "c"])
    confirms.send(1)
    confirms.ack(1, multiple=False)
    assert confirms.unanswered() == [1, 2]


@pytest.mark.parametrize(
    ("tag", "multiple"),
    [(1, False), (10, False), (14, False), (14, True), (12, False), (1, True)],
    ids=["of an earlier batch", "just before", "beyond", "all, and beyond", "twice", "all of an earlier batch"],
)
def test_an_answer_to_nothing_open_is_a_disagreement(tag: int, multiple: bool) -> None:
    confirms = opened(3, first_tag=11)
    confirms.ack(12, multiple=False)
    with pytest.raises(Disagreement):
        confirms.ack(tag, multiple)
    assert confirms.accepted == 1
    assert confirms.unanswered() == [0, 2]


def test_a_stranger_that_comes_back_is_a_disagreement() -> None:
    with pytest.raises(Disagreement):
        opened(2).came_back("id-7")


answers = st.lists(st.tuples(st.sampled_from(["ack", "nack", "return"]), st.integers(-1, 14), st.booleans()))


@repeatable
@given(st.integers(0, 12), st.integers(0, 12), st.integers(1, 5), answers)
def test_every_message_has_exactly_the_answer_that_named_it(
    count: int, sent: int, first_tag: int, told: list[tuple[str, int, bool]]
) -> None:
    sent = min(sent, count)
    confirms = Confirms([str(index) for index in range(count)], first_tag)
    confirms.send(sent)
    fate: dict[int, str] = {}
    returned: set[int] = set()
    for kind, place, multiple in told:
        try:
            if kind == "return":
                confirms.came_back(str(place))
                assert place not in fate
                returned.add(place)
                continue
            (confirms.ack if kind == "ack" else confirms.nack)(place + first_tag, multiple)
        except Disagreement:
            break
        for each in range(0 if multiple else place, place + 1):
            fate.setdefault(each, kind)
    assert confirms.unanswered() == [index for index in range(count) if index not in fate]
    assert confirms.accepted == sum(1 for index, kind in fate.items() if kind == "ack" and index not in returned)
    assert confirms.rejected == {index for index, kind in fate.items() if kind == "nack"} - returned
    assert confirms.returned == returned

"""What the database may refuse is one call of a batch, and the first: so keys are taken in one order, and a refusal
leaves nothing written."""

from datetime import timedelta
from itertools import chain
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from outbox import Message
from outbox.keys import calls, needs_write
from tests.unit.outbox.payloads import repeatable

often = settings(repeatable, max_examples=400)
OPTIONS: list[dict[str, Any]] = [
    {},
    {"dedup_key": "b"},
    {"unique_key": "a"},
    {"ordering_key": "é"},
    {"delay": 5},
    {"expires_in": timedelta(days=1)},
    {"dedup_key": "a", "unique_key": "b"},
]
batches = st.lists(st.sampled_from([Message("a", **options) for options in OPTIONS]), max_size=30)
sizes = st.integers(1, 7)


@often
@given(batches, sizes)
def test_every_message_is_written_once(batch: list[Message], size: int) -> None:
    found = calls(batch, size)
    assert sorted(chain.from_iterable(found)) == list(range(len(batch)))
    assert all(found), "an empty call is a statement for nothing"


@often
@given(batches, sizes)
def test_what_may_be_refused_is_one_call_and_the_first(batch: list[Message], size: int) -> None:
    special = [place for place, message in enumerate(batch) if needs_write(message)]
    found = calls(batch, size)
    if special:
        assert [place for place in found[0] if place in special] == special
    for call in found[1:]:
        assert not set(call) & set(special)


@often
@given(batches, sizes)
def test_plain_messages_keep_their_order_in_chunks(batch: list[Message], size: int) -> None:
    plain = [place for place, message in enumerate(batch) if not needs_write(message)]
    chunks = [call for call in calls(batch, size) if not any(needs_write(batch[place]) for place in call)]
    assert all(len(chunk) == size for chunk in chunks[:-1])
    assert all(len(chunk) <= size for chunk in chunks)
    written = [place for place in chain.from_iterable(calls(batch, size)) if place in plain]
    assert written == plain


def test_a_batch_of_one_chunk_is_left_as_it_is() -> None:
    batch = [Message("a"), Message("a", ordering_key="c"), Message("a"), Message("a", ordering_key="b")]
    assert calls(batch, 4) == [[0, 1, 2, 3]]
    assert calls(batch, 1) == [[1, 3], [0], [2]]
    assert calls([], 5) == []

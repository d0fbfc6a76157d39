"""Two batches that share keys must never wait for each other in a circle: keys are taken in one order everywhere."""

from itertools import chain, pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from outbox import Message
from outbox.keys import chunks
from tests.unit.outbox.payloads import repeatable

often = settings(repeatable, max_examples=400)
KINDS = ("dedup_key", "unique_key", "ordering_key")
some_keys = st.sampled_from(["a", "b", "c", "é", "𝄞", "A", " "])
sizes = st.integers(1, 7)


def messages(*kinds: str) -> st.SearchStrategy[list[Message]]:
    """Some with keys of these kinds, some with none."""
    options: dict[str, Any] = {kind: st.none() | some_keys for kind in kinds}
    return st.lists(st.fixed_dictionaries(options), max_size=30).map(
        lambda found: [Message("a", **each) for each in found]
    )


one_kind = st.sampled_from(KINDS).flatmap(lambda kind: st.tuples(st.just(kind), messages(kind)))
mixed = st.sampled_from([KINDS, KINDS[:2], KINDS[1:], KINDS[::2]]).flatmap(lambda kinds: messages(*kinds))


@often
@given(messages(*KINDS) | one_kind.map(lambda pair: pair[1]), sizes)
def test_every_message_is_written_once(batch: list[Message], size: int) -> None:
    places = list(chain.from_iterable(chunks(batch, size)))
    assert sorted(places) == list(range(len(batch)))
    assert all(chunks(batch, size)), "an empty chunk is a statement for nothing"


@often
@given(st.integers(0, 40), sizes)
def test_without_keys_the_order_is_that_of_the_call(count: int, size: int) -> None:
    found = chunks([Message("a")] * count, size)
    assert list(chain.from_iterable(found)) == list(range(count))
    assert all(len(chunk) == size for chunk in found[:-1])
    assert all(1 <= len(chunk) <= size for chunk in found)


@often
@given(one_kind, sizes)
def test_keys_of_one_kind_are_taken_in_one_order_over_all_chunks(pair: tuple[str, list[Message]], size: int) -> None:
    kind, batch = pair
    found = chunks(batch, size)
    assert all(len(chunk) <= size for chunk in found)
    taken = [sorted({key for place in chunk if (key := getattr(batch[place], kind))}) for chunk in found]
    # Within a chunk the database sorts, by bytes; a later chunk never takes a smaller key than an earlier one.
    for earlier, later in pairwise(keys for keys in taken if keys):
        assert earlier[-1].encode() <= later[0].encode()


@often
@given(one_kind, sizes)
def test_messages_of_one_key_keep_their_order(pair: tuple[str, list[Message]], size: int) -> None:
    kind, batch = pair
    places = list(chain.from_iterable(chunks(batch, size)))
    for key in {getattr(message, kind) for message in batch}:
        of_key = [place for place in places if getattr(batch[place], kind) == key]
        assert of_key == sorted(of_key)


@often
@given(mixed, sizes)
def test_keys_of_several_kinds_are_taken_in_one_call(batch: list[Message], size: int) -> None:
    found = chunks(batch, size)
    kinds = {kind for kind in KINDS for message in batch if getattr(message, kind) is not None}
    keyed = {at for at, message in enumerate(batch) if any(getattr(message, kind) is not None for kind in KINDS)}
    if len(kinds) > 1:
        (call,) = [chunk for chunk in found if keyed & set(chunk)]
        assert [place for place in call if place in keyed] == sorted(keyed)
    plain = [place for place in chain.from_iterable(found) if place not in keyed]
    assert plain == sorted(plain)


def test_a_batch_of_one_chunk_is_left_as_it_is() -> None:
    batch = [Message("a", ordering_key=key) for key in "cab"]
    assert chunks(batch, 3) == [[0, 1, 2]]
    assert chunks(batch, 2) == [[1, 2], [0]]
    assert chunks([], 5) == []

"""In which order the keys of a batch are taken. Pure.

Within one call outbox_write() takes keys in sorted order, so two calls that share keys wait for each other and never
deadlock. A batch of several chunks is several calls in one transaction, and must keep that promise as a whole.
"""

from collections.abc import Sequence

from outbox.message import Message

_KINDS = ("dedup_key", "unique_key", "ordering_key")


def chunks(messages: Sequence[Message], size: int) -> list[list[int]]:
    """The places of the messages, chunk by chunk, in the order in which they are to be written."""
    places = list(range(len(messages)))
    kinds = [kind for kind in _KINDS if any(getattr(message, kind) is not None for message in messages)]
    if not kinds or len(messages) <= size:
        return _cut(places, size)
    if len(kinds) == 1:
        # Sorted by that key over the whole batch. Stable: messages of one key keep their order.
        return _cut(sorted(places, key=lambda place: getattr(messages[place], kinds[0]) or ""), size)
    # Each call takes its dedup keys before its unique keys, and so on: only one call keeps the order of several kinds.
    keyed = [place for place in places if any(getattr(messages[place], kind) is not None for kind in kinds)]
    plain = [place for place in places if place not in set(keyed)]
    return [*_cut(plain, size), keyed]


def _cut(places: list[int], size: int) -> list[list[int]]:
    return [places[at : at + size] for at in range(0, len(places), size)]

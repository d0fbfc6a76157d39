"""The same items, read by another thread, never far ahead, and nothing left running."""

import threading
from collections.abc import Iterator

import pytest

from relay.ahead import read_ahead
from relay.embedded import wait_until


def alive() -> bool:
    return any(thread.name == "outbox-read" for thread in threading.enumerate())


def test_the_same_items_in_order() -> None:
    with read_ahead(iter(range(100))) as items:
        assert list(items) == list(range(100))
    assert not alive()


def test_what_is_raised_while_reading_is_raised_here() -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise LookupError

    with read_ahead(broken()) as items:
        assert next(items) == 1
        with pytest.raises(LookupError):
            next(items)
    assert not alive()


def test_it_is_bounded_and_leaving_early_ends_it() -> None:
    read: list[int] = []

    def endless() -> Iterator[int]:
        number = 0
        while True:
            read.append(number)
            yield number
            number += 1

    with read_ahead(endless()) as items:
        assert next(items) == 0
        wait_until(lambda: len(read) == 4, 5, "it has read ahead: one taken, two waiting, one in hand")
    assert not alive()
    assert len(read) <= 6

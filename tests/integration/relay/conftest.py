"""One relay's terms in the test's own process, and the application beside it."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.leading import Leading, Make, Outbox


@pytest.fixture
def make(database: str, broker_url: str) -> Iterator[Make]:
    with ExitStack() as undo:
        yield lambda **settings: Leading(database, broker_url, undo, **settings)


@pytest.fixture
def relay(make: Make) -> Leading:
    return make()


@pytest.fixture
def outbox(database: str) -> Iterator[Outbox]:
    made = Outbox(database)
    yield made
    made.client.close()

"""Valkey for tests: one server a run, one numbered database a test."""

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import redis

from relay.embedded import Valkey

_DATABASES = 1000


@dataclass(frozen=True)
class Broker:
    """A running Valkey or Redis, ours or one given by OUTBOX_TEST_REDIS_URL."""

    base: str  # without the database number
    databases: int
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def url(self, db: int = 0) -> str:
        """The URL of one numbered database."""
        return f"{self.base}/{db}"

    def fresh_url(self) -> str:
        """The next numbered database, emptied; a straggler of an earlier test cannot reach into it."""
        url = self.url(next(self._numbers) % self.databases)
        flush(url)
        return url


def flush(url: str) -> None:
    """Empty one numbered database."""
    with redis.Redis.from_url(url) as client:
        client.flushdb()


@pytest.fixture(scope="session")
def valkey() -> Iterator[Broker]:
    """The broker of this run. It must not be killed: take `own_valkey` for that."""
    if given := os.environ.get("OUTBOX_TEST_REDIS_URL"):
        yield Broker(given.rstrip("/"), databases=16)
        return
    with Valkey(append_only=False, settings={"databases": str(_DATABASES)}) as server:
        yield Broker(server.url().rpartition("/")[0], databases=_DATABASES)


@pytest.fixture
def broker_url(valkey: Broker) -> str:
    """The URL of an empty numbered database of this test alone."""
    return valkey.fresh_url()


@pytest.fixture
def own_valkey() -> Iterator[Valkey]:
    """A broker of this test alone that keeps its data over a kill."""
    with Valkey() as server:
        yield server


@pytest.fixture
def forgetful_valkey() -> Iterator[Valkey]:
    """A broker of this test alone that loses everything when it is killed."""
    with Valkey(append_only=False) as server:
        yield server

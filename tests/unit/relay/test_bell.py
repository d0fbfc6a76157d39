"""Heard once, from any thread, beside a socket."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from relay.bell import Bell


@pytest.fixture
def bell() -> Iterator[Bell]:
    made = Bell()
    yield made
    made.close()


def test_several_rings_are_heard_once(bell: Bell) -> None:
    for _ in range(3):
        bell.ring()
    started = time.monotonic()
    bell.wait(10.0)
    assert time.monotonic() - started < 5
    bell.wait(0.2)
    assert time.monotonic() - started >= 0.2, "silent again"


def test_a_full_pipe_never_blocks_whoever_rings(bell: Bell) -> None:
    for _ in range(100_000):
        bell.ring()


def test_a_ring_from_another_thread(bell: Bell) -> None:
    timer = threading.Timer(0.05, bell.ring)
    timer.start()
    started = time.monotonic()
    bell.wait(10.0)
    assert time.monotonic() - started < 5
    timer.join()


def test_a_socket_is_told_from_the_bell(bell: Bell) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert not bell.wait(0.0, ours.fileno())
        theirs.send(b"x")
        assert bell.wait(5.0, ours.fileno())
        ours.recv(1)
        bell.ring()
        assert not bell.wait(5.0, ours.fileno())

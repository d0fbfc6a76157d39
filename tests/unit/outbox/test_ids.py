import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from outbox.ids import MessageIds

ROOT = Path(__file__).resolve().parents[3]
FROZEN = 1_900_000_000_123  # milliseconds


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    def to(millis: int) -> None:
        monkeypatch.setattr(time, "time_ns", lambda: millis * 1_000_000 + 999_999)

    return to


def millis_of(message_id: UUID) -> int:
    return message_id.int >> 80


def test_an_id_is_a_uuid_of_version_7() -> None:
    ids = MessageIds()
    for message_id in (ids.new() for _ in range(1000)):
        assert message_id.version == 7
        assert message_id.variant == uuid4().variant
        assert UUID(str(message_id)) == message_id


def test_an_id_begins_with_the_milliseconds(set_clock: Callable[[int], None]) -> None:
    set_clock(FROZEN)
    assert millis_of(MessageIds().new()) == FROZEN


def test_ids_ascend_in_order_of_making() -> None:
    ids = MessageIds()
    made = [ids.new() for _ in range(20_000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)
    assert [str(message_id) for message_id in made] == sorted(str(message_id) for message_id in made)


def test_ids_ascend_within_one_millisecond_and_when_the_clock_goes_back(set_clock: Callable[[int], None]) -> None:
    ids = MessageIds()
    made = []
    for millis in (FROZEN, FROZEN, FROZEN - 5000, FROZEN, FROZEN + 1, FROZEN):
        set_clock(millis)
        made.append(ids.new())
    assert made == sorted(made)
    assert len(set(made)) == len(made)
    assert [millis_of(message_id) - FROZEN for message_id in made] == [0, 0, 0, 0, 1, 1]


def test_a_counter_that_overflows_borrows_the_next_millisecond(set_clock: Callable[[int], None]) -> None:
    set_clock(FROZEN)
    ids = MessageIds()
    first = ids.new()
    ids._counter = 2**74 - 1
    second, third = ids.new(), ids.new()
    assert first < second < third
    assert millis_of(second) == FROZEN + 1
    assert second.version == 7


def test_the_next_id_cannot_be_guessed_from_the_last(set_clock: Callable[[int], None]) -> None:
    set_clock(FROZEN)
    ids = MessageIds()
    made = [ids.new().int for _ in range(100)]
    assert len({later - earlier for earlier, later in pairwise(made)}) > 90


def test_two_generators_never_meet(set_clock: Callable[[int], None]) -> None:
    set_clock(FROZEN)
    made = [MessageIds().new() for _ in range(1000)]
    assert len(set(made)) == len(made)


def test_threads_get_ascending_ids_of_their_own() -> None:
    ids = MessageIds()
    start = threading.Barrier(8)
    made: list[list[UUID]] = [[] for _ in range(8)]

    def work(mine: list[UUID]) -> None:
        start.wait()
        mine.extend(ids.new() for _ in range(2000))

    threads = [threading.Thread(target=work, args=(mine,)) for mine in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(mine == sorted(mine) for mine in made)
    assert len({message_id for mine in made for message_id in mine}) == 16_000


FORK = """
import os, time
from outbox.ids import MessageIds
time.time_ns = lambda: 1_900_000_000_123_000_000
ids = MessageIds()
def say(who):
    os.write(1, f"{who} {ids.new()}\\n".encode())  # one write a line: two processes share the pipe
say("before")
child = os.fork()
for _ in range(100):
    say("parent" if child else "child")
if child:
    os.waitpid(child, 0)
else:
    os._exit(0)
"""


def test_a_forked_child_makes_other_ids_than_its_parent() -> None:
    """In a process of its own: this one has threads, and forking those is undefined."""
    run = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=True, cwd=ROOT)
    made: dict[str, list[UUID]] = {"before": [], "parent": [], "child": []}
    for line in run.stdout.splitlines():
        who, message_id = line.split()
        made[who].append(UUID(message_id))
    assert (len(made["parent"]), len(made["child"])) == (100, 100)
    assert len({*made["before"], *made["parent"], *made["child"]}) == 201
    assert made["child"] == sorted(made["child"])
    # Not merely stepped differently: the child started anew, so no later step can meet the parent's.
    assert abs(made["child"][0].int - made["parent"][0].int) > 2**32

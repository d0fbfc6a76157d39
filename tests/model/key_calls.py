"""What the writers of the keys model ask for, and in which order their calls take keys.

The lower half of the model; what is modelled and why is said in keys. Writers are given as text: transactions between
slashes, messages between plus signs, and each message as its keys: `d1u1+u2 / u2` is one transaction that asks for a
message with dedup key 1 and unique key 1 and for one with unique key 2, and another that asks for unique key 2. A quote
is another body, an asterisk another task.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

__all__ = ["BEGIN", "DEDUP", "LINK", "LOCK", "UNIQUE", "WRITE", "Bounds", "Message", "Op", "Protections"]
__all__ += ["calls", "cut", "program", "read"]

BEGIN, DEDUP, UNIQUE, LOCK, LINK, WRITE = range(6)


@dataclass(frozen=True)
class Protections:
    """What keeps a key with one message and writers out of each other's way; each can be removed alone."""

    sorted_keys: bool = True  # a call takes the keys of a kind in sorted order
    one_call: bool = True  # messages with keys are one call, however large the batch
    wait_for_inserter: bool = True  # a key that somebody is about to take is taken only once he has committed
    compare_and_set_unique: bool = True  # a key is taken over only from the ended message that was looked at
    compare_and_set_dedup: bool = True  # the same for a key whose window has passed
    take_back: bool = True  # a conflict gives back the keys that the call has taken
    take_back_rejected: bool = True  # a message refused by its unique key gives its dedup key back
    repeat_follows_first: bool = True  # the repeat of a message of the same call that is refused is refused too
    claimed_in_call: bool = True  # a message is live from the claim on, not only once it is written
    liveness_from_receipt: bool = True  # off: whoever has the key counts as live
    lock_row: bool = True  # one row an ordering key is the lock of its writers
    prune_by_holder: bool = True  # pruning deletes keys that still name the message, not keys that it asked for
    retry_takes_key: bool = True  # a dead letter is retried only if its unique key is free, and takes it
    judge_under_lock: bool = True  # whoever takes a key over looks once more with the row locked


class Bounds(NamedTuple):
    writers: str
    before: str = ""  # messages that are there already, each in a transaction of its own
    expired: bool = False  # their windows have passed
    chunk_size: int = 0
    ticks: int = 0  # how often the length of a window passes
    endings: int = 0
    prunings: int = 0
    dead_retries: int = 0


class Message(NamedTuple):
    number: int
    writer: int  # -1: was there before
    dedup: str = ""
    unique: str = ""
    ordering: str = ""
    body: str = ""
    task: str = ""


class Op(NamedTuple):
    """One thing to do for one message; WRITE and BEGIN are for all messages of a call."""

    kind: int
    message: Message
    call: tuple[int, ...]
    key: str


def read(bounds: Bounds) -> tuple[Message, ...]:
    """All messages, those that were there before first."""
    numbers = count()
    before = [parse(text, next(numbers), -1) for text in bounds.before.split("+") if text]
    transactions = enumerate(bounds.writers.split(" / "))
    asked = [parse(text, next(numbers), writer) for writer, texts in transactions for text in texts.split("+")]
    return (*before, *asked)


def parse(text: str, number: int, writer: int) -> Message:
    keys = {text[at]: text[at : at + 2] for at in range(len(text)) if text[at] in "duo"}
    body = "other" if "'" in text else ""
    task = "*" if "*" in text else ""
    return Message(number, writer, keys.get("d", ""), keys.get("u", ""), keys.get("o", ""), body, task)


def calls(messages: list[Message], size: int, on: Protections) -> list[list[Message]]:
    """The calls of a batch; a test holds this against outbox.keys."""
    return [messages] if not size or len(messages) <= size or on.one_call else cut(messages, size)


def cut(messages: list[Message], size: int) -> list[list[Message]]:
    return [messages[at : at + size] for at in range(0, len(messages), size)]


def program(messages: list[Message], bounds: Bounds, on: Protections) -> tuple[Op, ...]:
    """All that a transaction does, if nothing is refused."""
    return tuple(op for call in calls(messages, bounds.chunk_size, on) for op in statements(call, bounds, on))


def statements(call: list[Message], bounds: Bounds, on: Protections) -> list[Op]:
    numbers = tuple(message.number for message in call)

    def each(kind: int, field: str, suffix: str = "") -> list[Op]:
        found = [(getattr(message, field), message) for message in call if getattr(message, field)]
        if on.sorted_keys and kind != LINK:
            found.sort(key=lambda pair: str(pair[0]))
        return [Op(kind, message, numbers, key + (suffix or message.task * (kind == LINK))) for key, message in found]

    ops = [*each(DEDUP, "dedup"), *each(UNIQUE, "unique")]
    if on.lock_row:
        ops += each(LOCK, "ordering", " lock")
    ops += [*each(LINK, "ordering"), Op(WRITE, call[0], numbers, "")]
    return [Op(BEGIN, call[0], numbers, ""), *ops] if bounds.ticks else ops

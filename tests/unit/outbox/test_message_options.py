"""The options of a message, one by one and together."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import combinations
from typing import Any

import pytest

from outbox import InvalidMessage, Message
from outbox.message import Options

NOW = datetime(2030, 1, 1, tzinfo=UTC)
KEYS = ("dedup_key", "unique_key", "ordering_key")
GOOD: Mapping[str, Any] = {
    "args": (1,),
    "kwargs": {"order_id": 7},
    "queue": "mail",
    "priority": 3,
    "headers": {"tenant": "x"},
    "dedup_key": "charge:7",
    "dedup_window": timedelta(days=1),
    "unique_key": "customer:7",
    "ordering_key": "account:7",
    "due_at": NOW,
    "delay": 5,
    "expires_at": NOW + timedelta(days=1),
    "expires_in": 3600,
}
# Two options that no message may have together; dedup_window also needs its key.
CONTRADICTIONS = {
    frozenset(pair)
    for pair in (
        ("ordering_key", "priority"),
        ("ordering_key", "due_at"),
        ("ordering_key", "delay"),
        ("due_at", "delay"),
        ("expires_at", "expires_in"),
    )
}


def refusal(**options: Any) -> str:
    with pytest.raises(InvalidMessage) as refused:
        Message("a", **options)
    return str(refused.value)


def test_every_option_has_a_good_value_here() -> None:
    assert GOOD.keys() == Options.__annotations__.keys()


@pytest.mark.parametrize("names", list(combinations(GOOD, 2)), ids=" ".join)
def test_two_options_go_together_unless_they_contradict_each_other(names: tuple[str, str]) -> None:
    options = {name: GOOD[name] for name in names}
    if "dedup_window" in options:
        options["dedup_key"] = GOOD["dedup_key"]
    if frozenset(names) in CONTRADICTIONS:
        assert all(name in refusal(**options) for name in names)
    else:
        message = Message("a", **options)
        assert {name: getattr(message, name) for name in options} == options


@pytest.mark.parametrize("name", ["priority", "due_at", "delay"])
@pytest.mark.parametrize("value", ["usual", "zero"])
def test_what_would_change_the_order_is_refused_with_an_ordering_key(name: str, value: str) -> None:
    """Zero is a value, too: priority 0 is the last, and a delay of 0 is still the scheduled path."""
    given = GOOD[name] if value == "usual" or name == "due_at" else 0
    assert refusal(ordering_key="account:7", **{name: given}) == (
        f"ordering_key and {name} contradict each other: {name} would change the order; leave one of them out"
    )


def test_a_window_needs_its_key() -> None:
    expected = "dedup_window says how long a dedup_key is remembered; give a dedup_key with it"
    assert refusal(dedup_window=5) == expected
    assert refusal(dedup_window=5, unique_key="a", ordering_key="a") == expected


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("key", ["a", "order:7", "größe ☃ 𝄞", " ", "x" * 255, "𝄞" * 255, "%s", "'; --"])
def test_a_key_is_any_printable_text(name: str, key: str) -> None:
    options: dict[str, Any] = {name: key}
    assert getattr(Message("a", **options), name) == key


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize(("key", "kind"), [(7, "int"), (b"a", "bytes"), (True, "bool"), (("a", 1), "tuple")])
def test_a_key_that_is_no_text_is_refused(name: str, key: object, kind: str) -> None:
    assert refusal(**{name: key}) == f"{name} must be text, not {kind}; write it as text: f'order:{{order_id}}'"


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("length", [0, 256, 10_000])
def test_a_key_of_another_length_is_refused(name: str, length: int) -> None:
    assert refusal(**{name: "x" * length}) == (
        f"{name} has {length} characters, 1 to 255 are possible; shorten or hash it: fingerprint(...)"
    )


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("key", ["\x00", "a\nb", "\x1b[2J", "\ud800", "\u200b", "\u2028", "\ue000", "\x7f"])
def test_a_key_that_cannot_be_printed_is_refused(name: str, key: str) -> None:
    said = refusal(**{name: key})
    assert said == f"{name} {key!a} has characters that cannot be printed; use plain text"
    assert said.isprintable()


@pytest.mark.parametrize("queue", ["unacked", "unacked_index", "unacked_mutex", "_kombu.binding.celery", "_kombu"])
def test_kombus_own_keys_are_no_queues(queue: str) -> None:
    assert refusal(queue=queue) == f"queue '{queue}' is a name that Celery keeps for itself on Redis; choose another"
    assert Message("a", queue=f"x{queue}").queue == f"x{queue}"


@pytest.mark.parametrize("name", ["priority", "queue", "delay", "expires_in"])
def test_an_absurd_number_is_an_invalid_message(name: str) -> None:
    absurd: dict[str, Any] = {name: 10**5000}
    try:
        Message("a", **absurd)
    except ValueError as error:
        assert isinstance(error, InvalidMessage)  # noqa: PT017

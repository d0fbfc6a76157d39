import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.delivery import Delivery, read_delivery
from outbox.errors import InvalidMessage
from tests.unit.outbox.payloads import repeatable, values

ID = "01890000-0000-7000-8000-000000000001"
HASH = "ab" * 32
OURS: dict[str, object] = {
    "published_at": "2030-01-02T03:04:05+00:00",
    "created_at": "2030-01-01T00:00:00+00:00",
    "epoch": 7,
    "window": 11,
    "relay": "relay-1",
    "publication": 2,
    "attempt": 3,
    "hash": HASH,
}
WRONG_NUMBERS: list[object] = [None, "3", 3.0, True, False, -1, 2**31, 10**400, [], {}, [3], {"x": 3}]
WRONG_TEXTS: list[object] = [None, 7, 7.5, True, [], {}, ["x"], "x" * 256, "x" * 10_000_000]


def delivery(**changes: object) -> Delivery:
    return read_delivery(ID, "billing.charge", {"outbox": OURS | changes})


def test_the_relays_header_becomes_a_delivery() -> None:
    assert read_delivery(ID, "billing.charge", {"outbox": OURS, "tenant": "é"}) == Delivery(
        id=UUID(ID),
        consumer="billing.charge",
        attempt=3,
        publication=2,
        headers={"tenant": "é"},
        from_outbox=True,
        body_hash=HASH,
        published_at=datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC),
        epoch=7,
        relay="relay-1",
    )


def test_the_idempotency_key_is_the_same_on_every_copy() -> None:
    assert delivery(publication=0).idempotency_key == delivery(publication=5).idempotency_key == ID


@pytest.mark.parametrize("headers", [None, {}, {"tenant": "a"}])
def test_a_plain_call_is_not_from_the_outbox(headers: dict[str, str] | None) -> None:
    found = read_delivery(ID, "billing.charge", headers)
    assert not found.from_outbox
    assert found == Delivery(UUID(ID), "billing.charge", headers=headers or {})


@pytest.mark.parametrize("header", [None, "", "text", 7, True, [], [["hash", "x"]]])
def test_an_outbox_header_that_is_no_object_counts_for_nothing(header: object) -> None:
    found = read_delivery(ID, "billing.charge", {"outbox": header, "tenant": "a"})
    assert found == Delivery(UUID(ID), "billing.charge", headers={"tenant": "a"})


def test_an_empty_outbox_header_leaves_the_defaults() -> None:
    found = read_delivery(ID, "billing.charge", {"outbox": {}})
    assert found == Delivery(UUID(ID), "billing.charge", from_outbox=True)


@pytest.mark.parametrize("value", WRONG_NUMBERS, ids=lambda value: str(value)[:12])
def test_a_number_that_is_none_is_not_taken(value: object) -> None:
    found = delivery(attempt=value, publication=value, epoch=value)
    assert (found.attempt, found.publication, found.epoch) == (0, 0, None)


@pytest.mark.parametrize("value", [0, 1, 2**31 - 1])
def test_a_number_that_fits_the_database_is_taken(value: int) -> None:
    found = delivery(attempt=value, publication=value, epoch=value)
    assert (found.attempt, found.publication, found.epoch) == (value, value, value)


@pytest.mark.parametrize("value", WRONG_TEXTS, ids=lambda value: str(value)[:12])
def test_a_text_that_is_none_or_huge_is_not_taken(value: object) -> None:
    found = delivery(hash=value, published_at=value, relay=value)
    assert (found.body_hash, found.published_at, found.relay) == (None, None, None)


def test_a_header_that_is_no_text_does_not_reach_the_handler() -> None:
    headers: dict[str, object] = {"kept": "yes", "number": 1, "none": None, "list": ["x"], "object": {"a": "b"}}
    assert read_delivery(ID, "billing.charge", headers).headers == {"kept": "yes"}


@pytest.mark.parametrize("task_id", [None, "", "1", "not-a-uuid", ID + "0", "ж" * 36])
def test_an_id_that_is_no_uuid_is_refused(task_id: str | None) -> None:
    with pytest.raises(InvalidMessage) as refused:
        read_delivery(task_id, "billing.charge", {"outbox": OURS})
    assert str(refused.value) == "the task id of this call of billing.charge is not a UUID; do not set task_id"
    assert refused.value.__cause__ is None


def test_the_callers_headers_are_left_alone() -> None:
    headers: dict[str, object] = {"outbox": OURS, "tenant": "a"}
    read_delivery(ID, "billing.charge", headers)
    assert headers == {"outbox": OURS, "tenant": "a"}


@repeatable
@given(st.dictionaries(st.sampled_from([*OURS, "unknown"]), values), st.dictionaries(st.text(max_size=5), values))
def test_whatever_the_broker_says_a_delivery_has_the_types_it_promises(
    ours: dict[str, object], others: dict[str, object]
) -> None:
    hostile: dict[str, Any] = json.loads(json.dumps(others | {"outbox": ours}))
    found = read_delivery(ID, "billing.charge", hostile)
    assert found.from_outbox
    for number in (found.attempt, found.publication, found.epoch or 0):
        assert type(number) is int
        assert 0 <= number < 2**31
    for text in (found.body_hash, found.relay):
        assert text is None or (type(text) is str and len(text) <= 255)
    assert all(type(value) is str for value in found.headers.values())
    assert "outbox" not in found.headers

"""The relay's own part of the bytes; tests/contract/test_celery_wire.py holds the whole against Celery."""

import base64
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from outbox.codec import body_hash
from relay.encode import Encoded, Encoder, redis_priority
from relay.publication import Copy, Stamp
from relay.routing import DefaultQueue
from relay.window import Row

ID = "01890000-0000-7000-8000-000000000001"
STAMP = Stamp(datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC), epoch=7, window=11, relay='relay "one" ☃')
CREATED = "2030-01-01T00:00:00+02:00"
ROW = Row(
    id=ID,
    seq=1,
    task="billing.charge",
    queue="mail",
    priority=None,
    body=b'[[1], {"a":2}',
    headers="{}",
    facts=f'"created_at": "{CREATED}", "hash": "{"ab" * 32}"',
    hashed=True,
    ordering_key=None,
    created_at=0.0,
    expires_at=None,
    plain=False,
    ended=False,
)


def encoder(default_queue: str = "celery") -> Encoder:
    return Encoder(DefaultQueue(default_queue).queue_for)


def encoded(row: Row, publication: int = 0, attempt: int = 0, *, by: Encoder | None = None) -> Encoded:
    [only] = (by or encoder()).encode([Copy(row, publication, attempt)], STAMP)
    return only


def decoded(row: Row, publication: int = 0, attempt: int = 0) -> Any:
    return json.loads(encoded(row, publication, attempt).payload)


def test_the_outbox_header_says_when_and_by_whom_it_was_published() -> None:
    assert decoded(ROW)["headers"]["outbox"] == {
        "published_at": "2030-01-02T03:04:05+00:00",
        "created_at": CREATED,
        "epoch": 7,
        "window": 11,
        "relay": 'relay "one" ☃',
        "publication": 0,
        "attempt": 0,
        "hash": "ab" * 32,
    }


def test_a_row_without_a_hash_is_given_one() -> None:
    """Rows of raw SQL writers are the only payloads that the relay parses."""
    row = ROW._replace(
        hashed=False,
        facts=f'"created_at": "{CREATED}"',
        body=b'[[1,  "\\u00e9"], {"b": 1.50, "a": {"y": null, "x": 2}}',
    )
    expected = body_hash(ROW.task, [1, "é"], {"a": {"x": 2, "y": None}, "b": 1.5}).hex()
    assert decoded(row)["headers"]["outbox"]["hash"] == expected


def test_a_row_that_nobody_can_decode_has_no_hash() -> None:
    deep = "[" * 100_000 + "]" * 100_000
    row = ROW._replace(hashed=False, facts=f'"created_at": "{CREATED}"', body=f"[{deep}, {{}}".encode())
    assert decoded(row)["headers"]["outbox"]["hash"] is None


def test_what_postgresql_says_of_a_message_is_copied_and_not_read() -> None:
    facts = ROW.facts + ', "ordering_key": "order \\"7\\" é", "key_prev": null'
    assert decoded(ROW._replace(facts=facts))["headers"]["outbox"]["ordering_key"] == 'order "7" é'


def test_only_a_plain_task_is_given_celerys_own_expiry() -> None:
    """The worker would judge by its local clock; a consumer has the database's."""
    expiring = ROW._replace(expires_at=datetime(2031, 1, 1, tzinfo=UTC))
    assert decoded(expiring)["headers"]["expires"] is None
    assert decoded(expiring._replace(plain=True))["headers"]["expires"] == "2031-01-01T00:00:00+00:00"
    assert decoded(expiring._replace(plain=True))["headers"]["eta"] is None


@pytest.mark.parametrize(("publication", "tag"), [(0, ID), (1, f"{ID}.1"), (12, f"{ID}.12")])
def test_each_copy_has_a_tag_of_its_own_and_the_same_id(publication: int, tag: str) -> None:
    message = decoded(ROW, publication, attempt=3)
    assert message["properties"]["delivery_tag"] == tag
    assert (message["headers"]["id"], message["properties"]["correlation_id"]) == (ID, ID)
    assert message["headers"]["outbox"]["publication"] == publication
    assert message["headers"]["outbox"]["attempt"] == 3


def test_the_text_of_a_payload_is_copied_and_not_read() -> None:
    """1e2 and 1.50 would come out differently from any parser."""
    message = decoded(ROW._replace(body=b'[[1e2, 1.50], {"a" : 1, "a" : 2}'))
    assert base64.b64decode(message["body"]) == (
        b'[[1e2, 1.50], {"a" : 1, "a" : 2}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'
    )


@pytest.mark.parametrize("headers", ["{}", "{ }", " {} ", "{\n}"])
def test_no_headers_leave_no_trace(headers: str) -> None:
    assert decoded(ROW._replace(headers=headers)) == decoded(ROW)


@pytest.mark.parametrize("headers", ['{"tenant":"a"}', ' { "tenant" : "a" } ', '{\n"tenant":\t"a"\n}'])
def test_headers_are_spliced_in_however_they_are_written(headers: str) -> None:
    assert decoded(ROW._replace(headers=headers))["headers"] == decoded(ROW)["headers"] | {"tenant": "a"}


@pytest.mark.parametrize(
    ("priority", "step"),
    [(None, 0), (9, 0), (8, 0), (7, 0), (6, 3), (5, 3), (4, 3), (3, 6), (2, 6), (1, 6), (0, 9)],
)
def test_a_higher_priority_is_a_lower_step(priority: int | None, step: int) -> None:
    assert redis_priority(priority) == step
    message = encoded(ROW._replace(priority=priority))
    assert message.destination == (f"mail\x06\x16{step}" if step else "mail")
    assert json.loads(message.payload)["properties"]["priority"] == step


def test_a_message_without_a_queue_goes_to_the_default_queue() -> None:
    message = encoded(ROW._replace(queue=None), by=encoder("orders"))
    assert message.destination == "orders"
    assert json.loads(message.payload)["properties"]["delivery_info"] == {"exchange": "", "routing_key": "orders"}


def test_templates_of_one_encoder_do_not_mix() -> None:
    one = encoder()
    rows = [
        ROW._replace(task=task, queue=queue, priority=priority)
        for task in ("a.one", "a.two")
        for queue in (None, "mail", "celery")
        for priority in (None, 0, 5)
    ]
    for row in rows + rows:
        assert encoded(row, by=one) == encoded(row)


def test_a_message_is_ascii_on_the_wire() -> None:
    assert encoded(ROW).payload.isascii()

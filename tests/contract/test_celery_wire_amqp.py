"""The relay writes AMQP frames by hand. Here they are held against what the installed Celery and py-amqp write."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from amqp.method_framing import frame_handler
from hypothesis import given
from hypothesis import strategies as st

from consumers.delivery import read_delivery
from outbox import codec
from outbox.message import QUEUE_NAME, RESERVED_HEADERS, TASK_NAME, Message
from relay.encode_amqp import AmqpEncoder, AmqpMessage, content_frames, publish_frame
from relay.publication import Copy, Refusal
from relay.routing import DefaultQueue, Undeliverable
from tests.contract.celery_amqp_sender import CeleryAmqpSender, Published, read_back
from tests.support.copies import CREATED, STAMP, copy_of
from tests.unit.outbox.payloads import arguments, keywords, repeatable, texts

ID = "01890000-0000-7000-8000-000000000001"
# Every value that is not Celery's, each for a reason; the same as on Redis.
OUR_OWN_HEADERS = ("ignore_result", "origin", "argsrepr", "kwargsrepr")
ADDED_HEADERS = {"outbox"}

names = st.from_regex(TASK_NAME, fullmatch=True).filter(lambda name: not name.startswith("celery."))
queues = st.from_regex(QUEUE_NAME, fullmatch=True)
user_headers = st.dictionaries(
    st.from_regex(r"[a-z]{1,8}-[a-z]{1,8}", fullmatch=True) | st.just("traceparent") | st.just("é ☃"), texts, max_size=4
)
priorities = st.none() | st.integers(0, 9)


@pytest.fixture(scope="module")
def sender() -> CeleryAmqpSender:
    return CeleryAmqpSender()


def encoded(copy: Copy) -> AmqpMessage:
    return AmqpEncoder(DefaultQueue("celery")).encode(copy, STAMP)


def relay_sends(message: Message) -> AmqpMessage:
    return encoded(copy_of(message, message_id=ID))


def celery_sends(sender: CeleryAmqpSender, message: Message) -> Published:
    return sender.send(
        ID,
        message.task,
        message.args,
        message.kwargs,
        queue=message.queue or "celery",
        priority=message.priority,
        headers=message.headers,
    )


def without(values: dict[str, Any], *left_out: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in left_out}


@repeatable
@given(names, arguments, keywords, queues, user_headers, priorities)
def test_a_message_equals_celerys_but_for_the_listed_values(
    sender: CeleryAmqpSender,
    task: str,
    args: list[object],
    kwargs: dict[str, object],
    queue: str,
    headers: dict[str, str],
    priority: int | None,
) -> None:
    message = Message(task, args, kwargs, queue=queue, headers=headers, priority=priority)
    ours, theirs = relay_sends(message), celery_sends(sender, message)
    properties = read_back(ours.properties)
    our_headers, their_headers = properties["application_headers"], theirs.properties["application_headers"]

    assert (theirs.exchange, ours.queue) == ("", theirs.queue)
    assert repr(json.loads(ours.body)) == repr(json.loads(theirs.body))
    assert without(properties, "application_headers") == without(theirs.properties, "application_headers")
    assert our_headers.keys() == their_headers.keys() | ADDED_HEADERS
    assert without(our_headers, *OUR_OWN_HEADERS, *ADDED_HEADERS) == without(their_headers, *OUR_OWN_HEADERS)


def test_every_listed_difference_is_still_one(sender: CeleryAmqpSender) -> None:
    ours = read_back(relay_sends(Message("a.task", (1,))).properties)["application_headers"]
    theirs = celery_sends(sender, Message("a.task", (1,))).properties["application_headers"]
    for name in OUR_OWN_HEADERS:
        assert ours[name] != theirs[name], name


@repeatable
@given(names, arguments, keywords, user_headers, st.none() | texts.filter(bool), st.integers(0, 3))
def test_a_consumer_reads_back_what_the_writer_wrote(
    task: str,
    args: list[object],
    kwargs: dict[str, object],
    headers: dict[str, str],
    key: str | None,
    publication: int,
) -> None:
    message = Message(task, args, kwargs, headers=headers)
    copy = copy_of(message, message_id=ID, publication=publication)
    if key is not None:
        facts = {"created_at": CREATED.isoformat(), "hash": "ab", "ordering_key": key, "key_prev": None}
        copy = copy._replace(row=copy.row._replace(facts=json.dumps(facts)[1:-1], ordering_key=key))
    received = read_back(encoded(copy).properties)["application_headers"]
    outbox = received["outbox"]
    delivery = read_delivery(received["id"], task, {name: received[name] for name in (*headers, "outbox")})

    assert delivery.headers == headers
    assert (delivery.from_outbox, delivery.publication, delivery.attempt) == (True, publication, 0)
    assert (delivery.epoch, delivery.relay, delivery.published_at) == (7, "relay-1", STAMP.published_at)
    assert outbox["window"] == STAMP.window
    assert outbox["created_at"] == CREATED.isoformat()
    if key is None:
        assert delivery.body_hash == codec.body_hash(task, args, kwargs).hex()
    else:
        assert (outbox["ordering_key"], outbox["key_prev"]) == (key, None)


def test_only_a_plain_task_is_given_celerys_expiry(sender: CeleryAmqpSender) -> None:
    moment = datetime(2031, 1, 1, tzinfo=UTC)
    message = Message("a.task", expires_at=moment)
    theirs = sender.send(ID, "a.task", (), {}, queue="celery", expires=moment).properties["application_headers"]
    plain = read_back(encoded(copy_of(message, plain=True)).properties)["application_headers"]
    consumed = read_back(encoded(copy_of(message)).properties)["application_headers"]
    assert plain["expires"] == theirs["expires"] == moment.isoformat()
    assert consumed["expires"] is None
    assert consumed["outbox"]["expires_at"] == plain["outbox"]["expires_at"] == moment.isoformat()


@pytest.mark.parametrize("name", sorted(RESERVED_HEADERS))
def test_a_row_written_by_hand_cannot_override_our_headers(name: str) -> None:
    plain = copy_of(Message("a.task"), message_id=ID)
    forged = plain._replace(row=plain.row._replace(headers=json.dumps({name: "forged", "kept": "yes"})))
    expected = read_back(encoded(plain).properties)["application_headers"]
    seen = read_back(encoded(forged).properties)["application_headers"]
    assert {key: seen[key] for key in expected} == expected
    assert seen["kept"] == "yes"


def test_a_row_without_a_hash_gets_the_one_that_the_worker_computes() -> None:
    copy = copy_of(Message("a.task", (1,), {"b": 2}))
    bare = copy._replace(row=copy.row._replace(facts='"created_at": "2030-01-01T00:00:00+00:00"', hashed=False))
    outbox = read_back(encoded(bare).properties)["application_headers"]["outbox"]
    assert outbox["hash"] == codec.body_hash("a.task", (1,), {"b": 2}).hex()


@pytest.mark.parametrize(
    "headers",
    [
        json.dumps({"k" * 300: "x"}),
        json.dumps({"n": 2**70}),
        "[1]",
        '{"deep": ' + "[" * 5000 + "]" * 5000 + "}",
    ],
    ids=["name too long", "number too large", "no object", "too deep"],
)
def test_headers_that_amqp_cannot_carry_are_the_messages_fault(headers: str) -> None:
    copy = copy_of(Message("a.task"))
    with pytest.raises(Undeliverable) as raised:
        encoded(copy._replace(row=copy.row._replace(headers=headers)))
    assert raised.value.refusal is Refusal.MESSAGE


class _Line:
    """Stands where py-amqp's frame reader keeps its statistics."""

    bytes_recv = 0


def frames_in(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    while data:
        kind, channel, size = data[0], int.from_bytes(data[1:3], "big"), int.from_bytes(data[3:7], "big")
        assert data[7 + size] == 0xCE
        yield kind, channel, data[7 : 7 + size]
        data = data[8 + size :]


@pytest.mark.parametrize("size", [0, 1, 4096 - 8, 4096 - 7, 50_000])
def test_py_amqp_puts_the_frames_together_again(size: int) -> None:
    message = AmqpMessage(ID, "mail", relay_sends(Message("a.task")).properties, b"x" * size)
    arrived: list[Any] = []
    # As a delivery: the content is laid out in the same way, and py-amqp reads only those.
    on_frame: Any = frame_handler(_Line(), lambda *given: arrived.append(given[3]))
    on_frame((1, 3, b"\x00\x3c\x00\x3c"))
    sent = list(frames_in(content_frames(message, 3, 4096)))
    assert all(len(frame) <= 4096 - 8 for _, _, frame in sent)
    for frame in sent:
        on_frame(frame)
    (read,) = arrived
    assert read.properties == read_back(message.properties)
    assert (read.body if size else b"") == message.body


def test_headers_larger_than_a_frame_are_the_messages_fault() -> None:
    message = relay_sends(Message("a.task", headers={"a-b": "x" * 5000}))
    with pytest.raises(Undeliverable, match="larger than a frame") as raised:
        content_frames(message, 1, 4096)
    assert raised.value.refusal is Refusal.MESSAGE


def test_a_message_is_mandatory_and_goes_to_the_default_exchange() -> None:
    ((kind, channel, method),) = frames_in(publish_frame("mail", 3))
    assert (kind, channel) == (1, 3)
    assert method == b"\x00\x3c\x00\x28" + b"\x00\x00" + b"\x00" + b"\x04mail" + b"\x01"

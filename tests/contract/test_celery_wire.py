"""The relay writes Celery's wire format by hand. Here it is held against what the installed Celery and kombu write."""

import base64
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, cast
from uuid import UUID

import pytest
from celery.app.task import Context
from celery.worker.request import Request
from hypothesis import given, settings
from hypothesis import strategies as st
from kombu import serialization
from kombu.transport import virtual

from consumers.delivery import Delivery, read_delivery
from consumers.inbox import intact
from outbox import codec
from outbox.envelope import Rules, seal
from outbox.message import QUEUE_NAME, RESERVED_HEADERS, TASK_NAME, Message
from relay.encode import Encoded, Encoder
from relay.publication import Copy, Stamp
from relay.routing import DefaultQueue
from relay.window import Row
from tests.contract.celery_sender import CelerySender, Pushed
from tests.support.copies import copy_of
from tests.unit.outbox.payloads import arguments, keywords, repeatable, texts, values

ID = "01890000-0000-7000-8000-000000000001"
STAMP = Stamp(datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC), epoch=7, window=11, relay="relay-1")

# Every value that is not Celery's, each for a reason.
OUR_OWN_HEADERS = {
    "ignore_result": "null lets the worker take the task's own setting; False would override it",
    "origin": "Celery writes pid@host of the sender; who ran the relay is in the outbox header",
    "argsrepr": "a picture of the payload for logs and events; the relay never parses a payload",
    "kwargsrepr": "as argsrepr",
}
OUR_OWN_PROPERTIES = {
    "delivery_tag": "random in kombu; ours is the message id, so that reconcile finds the message in `unacked`",
}
ADDED_HEADERS = {"outbox"}

names = st.from_regex(TASK_NAME, fullmatch=True).filter(lambda name: not name.startswith("celery."))
queues = st.from_regex(QUEUE_NAME, fullmatch=True)
user_headers = st.dictionaries(
    st.from_regex(r"[a-z]{1,8}-[a-z]{1,8}", fullmatch=True) | st.just("traceparent") | st.just("é ☃"), texts, max_size=4
)
priorities = st.none() | st.integers(0, 9)


@pytest.fixture(scope="module")
def sender() -> CelerySender:
    return CelerySender()


def row_of(message: Message) -> Row:
    """The row as the writer stores it and the page query returns it."""
    return copy_of(message, message_id=ID).row


def sent(row: Row) -> Encoded:
    """What the relay puts on the wire for it."""
    [encoded] = Encoder(DefaultQueue("celery").queue_for).encode([Copy(row)], STAMP)
    return encoded


def relay_sends(message: Message) -> Encoded:
    return sent(row_of(message))


def celery_sends(sender: CelerySender, message: Message, priority: int | None = None) -> Pushed:
    """`priority` as Celery's users give it on Redis, where 0 runs first."""
    return sender.send(
        ID,
        message.task,
        message.args,
        message.kwargs,
        queue=message.queue or "celery",
        priority=priority,
        headers=message.headers,
    )


def parsed(encoded: Encoded) -> dict[str, Any]:
    """Strictly: two equal keys in one object would be read differently by different readers."""

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        assert len({key for key, _ in pairs}) == len(pairs), [key for key, _ in pairs]
        return dict(pairs)

    return cast(dict[str, Any], json.loads(encoded.payload, object_pairs_hook=unique))


def body(message: Mapping[str, Any]) -> Any:
    return json.loads(base64.b64decode(message["body"]))


def exactly(value: object) -> str:
    """1, 1.0 and True are equal in Python and different to a handler."""
    return repr(value)


def without(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def received(sender: CelerySender, encoded: Encoded) -> Request:
    """Through kombu's and Celery's own readers, as in a worker."""
    message = virtual.Message(json.loads(encoded.payload), channel=sender.channel)
    return Request(message, app=sender.app, task=sender.task)


def delivered(sender: CelerySender, encoded: Encoded, task: str) -> Delivery:
    request = Context(received(sender, encoded).request_dict)
    return read_delivery(request.id, task, request.headers)


@repeatable
@given(names, arguments, keywords, queues, user_headers)
def test_a_message_equals_celerys_but_for_the_listed_values(
    sender: CelerySender,
    task: str,
    args: list[object],
    kwargs: dict[str, object],
    queue: str,
    headers: dict[str, str],
) -> None:
    message = Message(task, args, kwargs, queue=queue, headers=headers)
    encoded, pushed = relay_sends(message), celery_sends(sender, message)
    ours, theirs = parsed(encoded), pushed.message

    assert encoded.destination == pushed.key
    assert without(ours, "body", "headers", "properties") == without(theirs, "body", "headers", "properties")
    assert ours.keys() == theirs.keys()
    assert exactly(body(ours)) == exactly(body(theirs))
    assert ours["headers"].keys() == theirs["headers"].keys() | ADDED_HEADERS
    assert without(ours["headers"], *OUR_OWN_HEADERS, *ADDED_HEADERS) == without(theirs["headers"], *OUR_OWN_HEADERS)
    assert ours["properties"].keys() == theirs["properties"].keys()
    assert without(ours["properties"], *OUR_OWN_PROPERTIES) == without(theirs["properties"], *OUR_OWN_PROPERTIES)


def test_every_listed_difference_is_still_one(sender: CelerySender) -> None:
    ours, theirs = parsed(relay_sends(Message("a.task", (1,)))), celery_sends(sender, Message("a.task", (1,))).message
    for name in OUR_OWN_HEADERS:
        assert ours["headers"][name] != theirs["headers"][name], name
    for name in OUR_OWN_PROPERTIES:
        assert ours["properties"][name] != theirs["properties"][name], name


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        (("grüße ☃ 𝄞",), {"ключ": "值"}),
        ((2**64, -(2**200), 10**300), {"n": 0}),
        ((True, 1, 1.0, None, -0.0, 1e300, 5e-324), {}),
        (('"\\\n\r\t\x01\x7f\u2028',), {'a"b\\c': "</script>"}),
        (([], {}, [[]], {"": {}}), {"": ""}),
    ],
)
def test_a_body_decodes_to_what_celery_sends(
    sender: CelerySender, args: Sequence[object], kwargs: Mapping[str, object]
) -> None:
    message = Message("a.task", args, kwargs)
    assert exactly(body(parsed(relay_sends(message)))) == exactly(body(celery_sends(sender, message).message))


@pytest.mark.parametrize("priority", range(10))
def test_a_priority_goes_to_the_list_that_kombu_reads_for_it(sender: CelerySender, priority: int) -> None:
    message = Message("a.task", queue="mail", priority=priority)
    encoded, pushed = relay_sends(message), celery_sends(sender, message, priority=9 - priority)
    assert encoded.destination == pushed.key
    assert encoded.destination == sender.channel._q_for_pri("mail", 9 - priority)
    polled = [sender.channel._q_for_pri("mail", step) for step in sender.channel.priority_steps]
    assert encoded.destination in polled
    # A message that kombu gives back goes by this number: it must lead to the same list.
    returned = sender.channel._get_message_priority(parsed(encoded), reverse=False)
    assert sender.channel._q_for_pri("mail", returned) == encoded.destination


def test_a_higher_priority_is_never_popped_later(sender: CelerySender) -> None:
    order = [sender.channel._q_for_pri("celery", step) for step in sender.channel.priority_steps]
    places = [order.index(relay_sends(Message("a.task", priority=priority)).destination) for priority in range(10)]
    assert places == sorted(places, reverse=True)
    assert places[0] > places[9]


def test_without_a_priority_the_list_is_celerys_default(sender: CelerySender) -> None:
    message = Message("a.task", queue="mail")
    assert relay_sends(message).destination == celery_sends(sender, message).key == "mail"


def test_the_names_that_celery_sends_are_reserved(sender: CelerySender) -> None:
    names = celery_sends(sender, Message("a.task")).message["headers"].keys() | ADDED_HEADERS
    assert names <= RESERVED_HEADERS


@pytest.mark.parametrize("name", sorted(RESERVED_HEADERS))
def test_a_row_written_by_hand_cannot_override_our_headers(sender: CelerySender, name: str) -> None:
    """The CHECK of the table demands an object and nothing more, so the order of the keys must decide."""
    plain = row_of(Message("a.task"))
    forged = plain._replace(headers=json.dumps({name: "forged", "kept": "yes"}))
    expected = json.loads(sent(plain).payload)["headers"]
    seen = received(sender, sent(forged)).message.headers
    assert {key: seen[key] for key in expected} == expected
    assert seen["kept"] == "yes"


@repeatable
@given(names, arguments, keywords, user_headers, priorities)
def test_a_consumer_reads_back_what_the_writer_wrote(
    sender: CelerySender,
    task: str,
    args: list[object],
    kwargs: dict[str, object],
    headers: dict[str, str],
    priority: int | None,
) -> None:
    encoded = relay_sends(Message(task, args, kwargs, priority=priority, headers=headers))
    request = received(sender, encoded)
    delivery = delivered(sender, encoded, task)

    assert (request.id, request.type, request.root_id, request.correlation_id) == (ID, task, ID, ID)
    assert delivery.headers == headers
    assert delivery.from_outbox
    assert (delivery.id, delivery.epoch, delivery.relay) == (UUID(ID), STAMP.epoch, STAMP.relay)
    assert delivery.published_at == STAMP.published_at
    assert delivery.body_hash == codec.body_hash(task, args, kwargs).hex()
    assert intact(delivery, request.args, request.kwargs)


def loaded_by_kombu(encoded: Encoded) -> tuple[list[object], dict[str, object]]:
    """As a worker decodes the body: kombu's JSON reader, which makes other objects of dictionaries with a __type__."""
    message = parsed(encoded)
    content_type, encoding = message["content-type"], message["content-encoding"]
    args, kwargs, embed = serialization.loads(
        base64.b64decode(message["body"]), content_type, encoding, accept={"application/json"}
    )
    assert not any(embed.values())
    return args, kwargs


rich: st.SearchStrategy[object] = st.recursive(
    values | st.decimals(allow_nan=False) | st.dates() | st.sampled_from(["__type__", "__value__", "\\u0000"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner)
        | st.dictionaries(texts | st.just("__value__"), inner, max_size=3).filter(lambda found: "__type__" not in found)
    ),
    max_leaves=6,
)


def converted(value: object) -> object:
    if isinstance(value, Decimal | date):
        return str(value)
    if isinstance(value, list | tuple):
        return [converted(item) for item in value]
    return {key: converted(item) for key, item in value.items()} if isinstance(value, dict) else value


@settings(repeatable, max_examples=300)
@given(
    names, st.lists(rich, max_size=3), st.dictionaries(texts.filter(lambda key: key not in ("self", "__type__")), rich)
)
def test_a_worker_decodes_the_converted_values_and_their_hash(
    task: str, args: list[object], kwargs: dict[str, object]
) -> None:
    rules = Rules(encoders={Decimal: str, date: str})
    sealed = seal(Message(task, args, kwargs), UUID(ID), rules, {})
    decoded = loaded_by_kombu(sent(row_of(Message(task))._replace(body=f"[{sealed.args}, {sealed.kwargs}".encode())))
    assert exactly(decoded) == exactly((converted(args), converted(kwargs)))
    assert codec.body_hash(task, *decoded) == sealed.body_hash


@repeatable
@given(arguments, keywords)
def test_a_row_without_a_hash_gets_the_one_that_the_worker_computes(
    args: list[object], kwargs: dict[str, object]
) -> None:
    """Rows of raw SQL writers; the relay has only the text."""
    row = row_of(Message("a.task", args, kwargs))
    unhashed = row._replace(hashed=False, facts='"created_at": "2030-01-01T00:00:00+00:00"')
    by_relay = parsed(sent(unhashed))["headers"]["outbox"]["hash"]
    assert by_relay == codec.body_hash("a.task", args, kwargs).hex()


def test_a_changed_argument_is_not_what_was_written(sender: CelerySender) -> None:
    delivery = delivered(sender, relay_sends(Message("a.task", (1,), {"amount": 10})), "a.task")
    assert intact(delivery, [1], {"amount": 10})
    assert not intact(delivery, [1], {"amount": 1000})
    assert not intact(delivery, ["1"], {"amount": 10})

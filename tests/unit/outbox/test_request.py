"""What is sent for a message, and what an answer means; whether PostgreSQL agrees is tested with PostgreSQL."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given

from outbox import Added, DedupConflict, Existing, InvalidMessage, Message, NotSupported, Outbox, State
from outbox.codec import body_hash
from outbox.envelope import Rules
from outbox.request import Request, Requests
from outbox.state import BatchProgress, Cancellation, CancelOutcome, Rejected
from tests.unit.outbox.payloads import arguments, keywords, repeatable

ID, OTHER, BATCH = (UUID(int=number) for number in (1, 2, 9))
DUE = datetime(2030, 1, 2, 3, 4, 5, 6, tzinfo=timezone(timedelta(hours=2)))
NOTHING: Mapping[str, str] = {}


@pytest.fixture
def requests() -> Requests:
    return Requests("public", Rules())


def single(requests: Requests, message: Message) -> Request[Added]:
    return requests.add(message, {}, NOTHING)


def document(request: Request[Any]) -> list[dict[str, Any]]:
    """The parameter of outbox_write(), with args, kwargs and headers as JSON."""
    (parameter,) = request.parameters
    assert isinstance(parameter, str)
    found: list[dict[str, Any]] = json.loads(parameter)
    return found


def test_a_plain_message_is_one_insert_of_what_differs_from_the_defaults(requests: Requests) -> None:
    request = single(requests, Message("a.task"))
    assert request.statement == (
        'INSERT INTO "public".outbox_message (id, task, kwargs, body_hash) VALUES (%s, %s, %s, %s)'
    )
    added = request.answer([])
    assert request.parameters == [added.id, "a.task", "{}", body_hash("a.task", (), {})]
    assert (added.duplicate, added.existing, request.has_rows) == (False, None, False)


def test_every_column_of_a_plain_message(requests: Requests) -> None:
    message = Message("a", (1,), {"b": 2}, queue="q", priority=0, headers={"h": "x"}, expires_at=DUE)
    request = single(requests, message)
    columns = request.statement.partition("(")[2].partition(")")[0].split(", ")
    found = dict(zip(columns, request.parameters, strict=True))
    assert found == {
        "id": request.answer([]).id,
        "task": "a",
        "args": "[1]",
        "kwargs": '{"b":2}',
        "headers": '{"h":"x"}',
        "body_hash": body_hash("a", [1], {"b": 2}),
        "queue": "q",
        "priority": 0,
        "expires_at": DUE,
    }
    assert isinstance(found["expires_at"], datetime)
    assert found["expires_at"].tzinfo is UTC


def test_a_trace_is_a_header_without_headers_of_the_callers_own(requests: Requests) -> None:
    request = requests.add("a", {}, {"traceparent": "00-x"})
    assert '{"traceparent":"00-x"}' in request.parameters
    assert "headers" in request.statement


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"dedup_key": "k"}, {"dedup_key": "k"}),
        (
            {"dedup_key": "k", "dedup_window": timedelta(hours=1)},
            {"dedup_key": "k", "dedup_window": "3600.000000 seconds"},
        ),
        ({"unique_key": "é☃"}, {"unique_key": "é☃"}),
        ({"ordering_key": "'\";--"}, {"ordering_key": "'\";--"}),
        ({"delay": 1.5, "priority": 0}, {"delay": "1.500000 seconds", "priority": 0}),
        ({"delay": 0}, {"delay": "0.000000 seconds"}),
        ({"delay": -1}, {"delay": "-1.000000 seconds"}),
        ({"delay": timedelta(days=36_500)}, {"delay": "3153600000.000000 seconds"}),
        ({"expires_in": timedelta(microseconds=1)}, {"expires_in": "0.000001 seconds"}),
        ({"due_at": DUE, "queue": "q"}, {"due_at": "2030-01-02T01:04:05.000006+00:00", "queue": "q"}),
        (
            {"due_at": DUE, "expires_at": DUE + timedelta(1)},
            {"due_at": "2030-01-02T01:04:05.000006+00:00", "expires_at": "2030-01-03T01:04:05.000006+00:00"},
        ),
    ],
    ids=lambda value: " ".join(value),
)
def test_keys_and_relative_times_go_to_the_function(
    requests: Requests, options: dict[str, Any], expected: dict[str, object]
) -> None:
    request = single(requests, Message("a", (1,), {"b": 2}, headers={"h": "x"}, **options))
    assert request.statement == 'SELECT number, id, outcome, state FROM "public".outbox_write(%s::json)'
    assert request.has_rows
    (found,) = document(request)
    message_id = UUID(found.pop("id"))
    assert message_id.version == 7
    assert ("dedup_hash" in found) == ("dedup_key" in options)
    found.pop("dedup_hash", None)
    assert (
        found
        == {
            "task": "a",
            "args": [1],
            "kwargs": {"b": 2},
            "headers": {"h": "x"},
            "body_hash": body_hash("a", [1], {"b": 2}).hex(),
        }
        | expected
    )


@repeatable
@given(arguments, keywords)
def test_the_function_gets_the_very_text_that_was_checked(args: list[object], kwargs: dict[str, object]) -> None:
    requests = Requests("public", Rules())
    message = Message("a", args, kwargs, dedup_key='", "args": [666], "k": "')
    (parameter,) = single(requests, message).parameters
    plain = single(requests, Message("a", args, kwargs)).parameters
    assert isinstance(parameter, str)
    assert f'"kwargs": {plain[2]}' in parameter
    (found,) = json.loads(parameter)
    assert repr([found["args"], found["kwargs"]]) == repr(json.loads(json.dumps([args, kwargs])))
    assert found["dedup_key"] == message.dedup_key


def test_a_batch_is_one_statement_a_chunk(requests: Requests) -> None:
    batch = requests.add_many(["a", "b", "c", "d", "e"], 2, BATCH, NOTHING)
    assert [places for places, _ in batch.chunks] == [[0, 1], [2, 3], [4]]
    answer = batch.answer([request.answer([]) for _, request in batch.chunks])
    assert (answer.id, len(answer)) == (BATCH, 5)
    for (places, request), names in zip(batch.chunks, (["a", "b"], ["c", "d"], ["e"]), strict=True):
        batch_id, ids, tasks, kwargs, hashes = request.parameters
        assert (batch_id, tasks, kwargs) == (BATCH, names, ["{}"] * len(names))
        assert ids == [answer[place].id for place in places]
        assert hashes == [body_hash(name, (), {}) for name in names]
        assert not request.has_rows
    assert len({added.id for added in answer}) == 5


def test_a_column_that_one_message_has_is_written_for_all(requests: Requests) -> None:
    messages = [
        Message("a"),
        Message("b", (1,), priority=0),
        Message("c", kwargs={"x": 1}, queue="q", expires_at=DUE),
        Message("d", headers={"h": "x"}),
    ]
    (_, request), *more = requests.add_many(messages, 500, None, NOTHING).chunks
    assert not more
    columns = request.statement.partition("(")[2].partition(")")[0].split(", ")
    assert columns.pop() == "batch_id"
    found = dict(zip(columns, request.parameters[1:], strict=True))
    assert {name: values for name, values in found.items() if name not in ("id", "body_hash")} == {
        "task": ["a", "b", "c", "d"],
        "args": ["[]", "[1]", "[]", "[]"],
        "kwargs": ["{}", "{}", '{"x":1}', "{}"],
        "headers": ["{}", "{}", "{}", '{"h":"x"}'],
        "queue": [None, None, "q", None],
        "priority": [None, 0, None, None],
        "expires_at": [None, None, DUE, None],
    }


def test_a_chunk_with_one_key_goes_to_the_function_and_says_its_batch(requests: Requests) -> None:
    batch = requests.add_many(["a", Message("b", dedup_key="k")], 500, BATCH, NOTHING)
    ((places, request),) = batch.chunks
    assert places == [0, 1]
    assert [(each["task"], each["batch_id"]) for each in document(request)] == [("a", str(BATCH)), ("b", str(BATCH))]


def test_answers_come_back_in_the_order_of_the_call(requests: Requests) -> None:
    batch = requests.add_many([Message("a", dedup_key=key) for key in "cab"], 2, None, NOTHING)
    assert [places for places, _ in batch.chunks] == [[0, 1, 2]]
    answers = [
        request.answer([(at, UUID(document(request)[at - 1]["id"]), "added", None) for at in range(1, len(places) + 1)])
        for places, request in batch.chunks
    ]
    by_key = {each["dedup_key"]: UUID(each["id"]) for _, request in batch.chunks for each in document(request)}
    assert [added.id for added in batch.answer(answers)] == [by_key[key] for key in "cab"]


def test_a_batch_of_nothing_writes_nothing(requests: Requests) -> None:
    batch = requests.add_many([], 500, None, NOTHING)
    assert (batch.chunks, len(batch.answer([]))) == ([], 0)
    assert batch.batch_id.version == 7


def test_a_batch_is_read_once_and_checked_before_the_first_chunk(requests: Requests) -> None:
    assert len(requests.add_many(iter(["a", "b"]), 1, None, NOTHING).chunks) == 2
    with pytest.raises(InvalidMessage) as refused:
        requests.add_many(["a", "b", Message("c", ({1},))], 1, None, NOTHING)
    assert str(refused.value) == (
        "message 2 of the batch: args[0]: set is not JSON; pass sorted(value), or register an encoder:"
        " Outbox(encoders={set: ...}); nothing was written"
    )


@pytest.mark.parametrize("given", ["billing.charge", {"task": "a"}, None, 7])
def test_a_batch_is_a_list_of_messages(requests: Requests, given: Any) -> None:
    with pytest.raises(InvalidMessage) as refused:
        requests.add_many(given, 500, None, NOTHING)
    assert str(refused.value) == f"add_many() takes a list of messages, not {type(given).__name__}"


@pytest.mark.parametrize("size", [0, -1, 10_001, True, 1.5, "5", None])
def test_a_chunk_has_a_size(requests: Requests, size: Any) -> None:
    with pytest.raises(InvalidMessage) as refused:
        requests.add_many(["a"], size, None, NOTHING)
    assert str(refused.value) == f"chunk_size {size!r} is not a number from 1 to 10000"
    assert requests.add_many(["a"], 10_000, None, NOTHING).chunks


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ((1, ID, "added", None), Added(ID)),
        ((1, OTHER, "duplicate", None), Added(OTHER, duplicate=True)),
        ((1, OTHER, "live", "running"), Added(OTHER, True, Existing(OTHER, State.RUNNING))),
    ],
)
def test_what_the_function_did(requests: Requests, row: tuple[Any, ...], expected: Added) -> None:
    assert single(requests, Message("a", dedup_key="k", unique_key="k")).answer([row]) == expected


CONFLICT = (
    f"this dedup_key stands for another body, that of message {OTHER}; use a key that is different for different work"
    " (fingerprint(task, payload) makes one)"
)
ELSEWHERE = "unique_key needs the receipts of the task, and this task is consumed in another database; use dedup_key"


@pytest.mark.parametrize(
    ("outcome", "error", "said"),
    [
        ("conflict", DedupConflict, CONFLICT),
        ("elsewhere", NotSupported, ELSEWHERE),
        ("never", InvalidMessage, "it would expire before it is due; expire it later"),
    ],
)
def test_what_the_function_refused(requests: Requests, outcome: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error) as refused:
        single(requests, Message("a", dedup_key="k")).answer([(1, OTHER, outcome, None)])
    assert str(refused.value) == said
    ((_, request),) = requests.add_many([Message("a", dedup_key=key) for key in "cab"], 5, None, NOTHING).chunks
    with pytest.raises(error) as refused:
        request.answer([(2, OTHER, outcome, None)])
    assert str(refused.value) == f"message 1 of the batch: {said}"
    assert getattr(refused.value, "existing", OTHER) == OTHER


def test_a_refusal_names_the_place_in_the_call_and_not_in_the_chunk(requests: Requests) -> None:
    batch = requests.add_many(["plain", "plain", Message("a", dedup_key="k")], 2, None, NOTHING)
    assert [places for places, _ in batch.chunks] == [[2], [0, 1]]
    with pytest.raises(DedupConflict, match="message 2 of the batch"):
        batch.chunks[0][1].answer([(1, OTHER, "conflict", None)])


@pytest.mark.parametrize("given", [ID, str(ID), ID.hex, f"{{{ID}}}", str(ID).upper()])
def test_an_id_is_a_uuid_or_its_text(requests: Requests, given: Any) -> None:
    for request in (requests.cancel(given), requests.state(given), requests.batch_progress(given)):
        assert request.parameters == [ID]


@pytest.mark.parametrize("given", ["", "abc", None, 7, b"x" * 16, str(ID)[:-1], "'; DROP TABLE x; --", ["a"]])
def test_what_is_no_id_is_refused(requests: Requests, given: Any) -> None:
    for name, ask in (("id", requests.cancel), ("id", requests.state), ("batch_id", requests.batch_progress)):
        with pytest.raises(InvalidMessage) as refused:
            ask(given)
        assert str(refused.value) == f"{name} {given!a} is not a message id: pass the UUID that add() returned"


def test_what_cancel_did(requests: Requests) -> None:
    for outcome in CancelOutcome:
        found = requests.cancel(ID).answer([(str(outcome), "published")])
        assert found == Cancellation(ID, outcome, State.PUBLISHED)
    with pytest.raises(NotSupported) as refused:
        requests.cancel(ID).answer([("elsewhere", "published")])
    assert str(refused.value) == (
        "cancel() cannot reach this message: its task is consumed in another database, where this transaction decides"
        " nothing; cancel it there"
    )


def test_states_and_progress_are_read_as_words(requests: Requests) -> None:
    assert requests.state(ID).answer([("retrying",)]) is State.RETRYING
    progress = requests.batch_progress(BATCH).answer([("queued", 2), ("applied", 3)])
    assert progress == BatchProgress(BATCH, {State.APPLIED: 3, State.QUEUED: 2})
    assert requests.batch_progress(BATCH).answer([]).total == 0


def test_what_unique_keys_refused(requests: Requests) -> None:
    row = ("k", ID, 3, DUE, DUE)
    request = requests.rejected("k", 5)
    assert request.parameters == ["k", 5]
    assert request.answer([row]) == [Rejected(*row)]


@pytest.mark.parametrize(("key", "limit"), [(None, -1), (None, "many"), (None, 2**63), (7, 5), ("a\x00", 5)])
def test_a_question_that_postgresql_would_refuse_is_not_sent(requests: Requests, key: Any, limit: Any) -> None:
    with pytest.raises(InvalidMessage):
        requests.rejected(key, limit)


def test_statements_are_rendered_once_a_shape(requests: Requests) -> None:
    first, second = (single(requests, Message("a", queue="q")) for _ in range(2))
    assert first.statement is second.statement
    assert single(requests, Message("a")).statement != first.statement


def test_an_outbox_writes_into_its_own_schema() -> None:
    Outbox("Odd % schema")
    requests = Requests("Odd % schema", Rules())
    assert single(requests, Message("a")).statement.startswith('INSERT INTO "Odd %% schema".outbox_message')
    assert '"Odd %% schema".outbox_write' in single(requests, Message("a", dedup_key="k")).statement

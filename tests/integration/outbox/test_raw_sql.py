"""outbox_add(): the same message from any language, with the same rules; its errors show nothing of a payload."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from outbox import Message, Outbox
from outbox.codec import MAX_DEPTH, body_hash
from outbox.message import RESERVED_HEADERS
from tests.integration.outbox.storage import CHARGE, Postgres, ask, end, keys, messages, register

SECRET = "4111-1111"
HASH = body_hash(CHARGE, [], {})
Opened = Callable[[], Postgres]
Answer = tuple[UUID, bool, str | None]


def add(connection: Postgres, task: str | None = CHARGE, **options: object) -> Answer:
    """`SELECT * FROM outbox_add(task, name => value, ...)`, JSON values as text."""
    names = "".join(f", {name} => %s" for name in options)
    statement = f"SELECT message_id, duplicate, state FROM outbox_add(%s{names})"  # noqa: S608
    row = connection.execute(statement.encode(), [task, *options.values()]).fetchone()
    assert row is not None
    return row[0], row[1], row[2]


def refused(connection: Postgres, task: str | None = CHARGE, **options: object) -> psycopg.Error:
    """The error, in which nothing of the payload is to be seen, wherever PostgreSQL would show it."""
    options.setdefault("args", json.dumps([SECRET]))
    with pytest.raises(psycopg.Error) as caught:
        add(connection, task, **options)
    connection.rollback()
    told = caught.value.diag
    shown = [told.message_primary, told.message_detail, told.message_hint, told.context, told.internal_query, str(told)]
    assert SECRET not in " ".join(filter(None, [*shown, str(caught.value)]))
    return caught.value


def test_everything_left_out(opened: Opened, database: str) -> None:
    connection = opened()
    message, duplicate, state = add(connection)
    connection.commit()
    assert (duplicate, state) == (False, None)
    columns = (
        "id, task, queue, priority, args::text, kwargs::text, headers::text, body_hash, held, expires_at, batch_id"
    )
    assert ask(database, f"SELECT {columns} FROM outbox_message") == [  # noqa: S608
        (message, CHARGE, None, None, "[]", "{}", "{}", None, False, None, None)
    ]


def test_everything_given(opened: Opened, database: str) -> None:
    connection, own, batch, later = opened(), uuid4(), uuid4(), datetime(2099, 1, 1, tzinfo=UTC)
    answer = add(
        connection,
        args='[1, {"a": "\\u00e9"}]',
        kwargs='{"b":   2}',
        queue="mail",
        priority=3,
        headers='{"x": "y"}',
        id=own,
        body_hash=HASH,
        dedup_key="d",
        dedup_window=timedelta(hours=1),
        unique_key="u",
        delay=timedelta(hours=1),
        expires_at=later,
        batch_id=batch,
    )
    connection.commit()
    assert answer == (own, False, None)
    columns = "id, queue, priority, args::text, kwargs::text, headers::text, body_hash, held, unique_key, expires_at"
    assert ask(database, f"SELECT {columns} FROM outbox_message") == [  # noqa: S608
        (own, "mail", 3, '[1, {"a": "\\u00e9"}]', '{"b":   2}', '{"x": "y"}', None, True, "u", later)
    ], "the text of the JSON is kept to the letter, and the relay makes the hash that consumers compare"
    assert ask(database, "SELECT body_hash FROM outbox_key WHERE kind = 'dedup'") == [(HASH,)]
    assert ask(database, "SELECT batch_id FROM outbox_message") == [(batch,)]
    assert keys(database, "dedup") == {"d": own}
    assert keys(database, "unique") == {"u": own}
    assert ask(database, "SELECT count(*) FROM outbox_due WHERE reason = 'scheduled'") == [(1,)]


def test_ids_are_version_7_and_follow_the_clock(opened: Opened, database: str) -> None:
    connection = opened()
    ids = [add(connection)[0] for _ in range(50)]
    assert {each.version for each in ids} == {7}
    assert {each.variant for each in ids} == {"specified in RFC 4122"}
    assert len(set(ids)) == 50
    now = datetime.now(UTC).timestamp() * 1000
    assert all(abs(now - (each.int >> 80)) < 60_000 for each in ids)
    assert [each.int >> 80 for each in ids] == sorted(each.int >> 80 for each in ids)


def test_it_shares_keys_with_the_python_writer(opened: Opened, database: str) -> None:
    connection, outbox = opened(), Outbox()
    first, _, _ = add(connection, body_hash=HASH, dedup_key="d", unique_key="u", ordering_key="o")
    connection.commit()
    assert add(connection, body_hash=HASH, dedup_key="d") == (first, True, None)
    assert add(connection, unique_key="u") == (first, True, "queued")
    assert outbox.add(connection, Message(CHARGE, dedup_key="d")).id == first
    assert outbox.add(connection, Message(CHARGE, unique_key="u")).id == first
    second = outbox.add(connection, Message(CHARGE, ordering_key="o")).id
    third, _, _ = add(connection, ordering_key="o")
    connection.commit()
    assert ask(database, "SELECT id, key_prev FROM outbox_message ORDER BY seq") == [
        (first, None),
        (second, first),
        (third, second),
    ]
    end(database, first)
    assert add(connection, unique_key="u")[1] is False


def test_a_dedup_key_for_another_body(opened: Opened, database: str) -> None:
    connection = opened()
    first, _, _ = add(connection, body_hash=HASH, dedup_key="d")
    connection.commit()
    error = refused(connection, body_hash=bytes(32), dedup_key="d", unique_key="u")
    assert isinstance(error, psycopg.errors.UniqueViolation)
    assert error.diag.message_primary == f"outbox_add: dedup_key 'd' stands for another body, that of message {first}"
    assert messages(database) == [first]
    with connection.transaction():
        with pytest.raises(psycopg.errors.UniqueViolation), connection.transaction():
            add(connection, body_hash=bytes(32), dedup_key="d")
        add(connection, body_hash=HASH, dedup_key="e")
    assert len(messages(database)) == 2


WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "args null": ({"args": None}, "22023", "outbox_add: args, kwargs and headers cannot be NULL; leave them out"),
    "args object": ({"args": "{}"}, "22023", "outbox_add: args must be a JSON array"),
    "kwargs array": ({"kwargs": "[]"}, "22023", "outbox_add: kwargs must be a JSON object"),
    "headers array": ({"headers": "[]"}, "22023", "outbox_add: headers must be a JSON object of text values"),
    "dedup without hash": ({"dedup_key": "d"}, "22023", "outbox_add: a dedup_key needs the body_hash"),
    "window alone": ({"dedup_window": timedelta(1)}, "22023", "outbox_add: dedup_window needs a dedup_key"),
    "no window": (
        {"dedup_key": "d", "body_hash": HASH, "dedup_window": timedelta()},
        "22023",
        "outbox_add: dedup_window must be longer than nothing",
    ),
    "long dedup_key": (
        {"dedup_key": "d" * 256, "body_hash": HASH},
        "22023",
        "outbox_add: dedup_key must have 1 to 255 characters",
    ),
    "empty dedup_key": (
        {"dedup_key": "", "body_hash": HASH},
        "22023",
        "outbox_add: dedup_key must have 1 to 255 characters",
    ),
    "both due": (
        {"due_at": datetime(2099, 1, 1, tzinfo=UTC), "delay": timedelta(1)},
        "22023",
        "outbox_add: give due_at or delay, not both",
    ),
    "both expire": (
        {"expires_at": datetime(2099, 1, 1, tzinfo=UTC), "expires_in": timedelta(1)},
        "22023",
        "outbox_add: give expires_at or expires_in, not both",
    ),
    "order and delay": (
        {"ordering_key": "o", "delay": timedelta(1)},
        "22023",
        "outbox_add: ordering_key cannot be combined with priority, due_at or delay",
    ),
    "order and priority": (
        {"ordering_key": "o", "priority": 1},
        "22023",
        "outbox_add: ordering_key cannot be combined with priority, due_at or delay",
    ),
    "priority": ({"priority": 10}, "22023", "outbox_add: priority must be from 0 to 9"),
    "huge priority": ({"priority": 100_000}, "22023", "outbox_add: priority must be from 0 to 9"),
    "never": (
        {"delay": timedelta(days=2), "expires_in": timedelta(days=1)},
        "22023",
        "outbox_add: it would expire before it is due",
    ),
    "nul": (
        {"args": f'["{SECRET}", "\\u0000"]'},
        "22P05",
        "outbox_add: the payload contains \\u0000 or a lone surrogate",
    ),
    "surrogate": (
        {"kwargs": f'{{"{SECRET}": "\\ud800"}}'},
        "22P05",
        "outbox_add: the payload contains \\u0000 or a lone",
    ),
    "surrogates": ({"args": f'["{SECRET}\\udc00"]'}, "22P05", "outbox_add: the payload contains \\u0000 or a lone"),
    "large": (
        {"args": json.dumps([SECRET * 32_000])},
        "54000",
        "outbox_add: the payload of billing.charge is 281 KiB, limit 256 KiB",
    ),
    "deep": (
        {"kwargs": '{"a":' * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 1)},
        "22023",
        "outbox_add: kwargs is nested deeper than 100 levels",
    ),
    "type": ({"args": '[{"a": [{"__type__": "date"}]}]'}, "22023", 'outbox_add: args has the key "__type__"'),
    "number": ({"args": "[1e309]"}, "22003", "outbox_add: args has a number that a worker cannot read back"),
    "long number": ({"args": "[1" + "0" * 400 + ".5]"}, "22003", "outbox_add: args has a number that a worker cannot"),
    "self": ({"kwargs": '{"self": 1}'}, "22023", 'outbox_add: the name "self" is taken by Celery'),
    "header value": ({"headers": '{"x": 1}'}, "22023", "outbox_add: header 'x' must be text"),
    "task": ({"task": "a b"}, "23514", "this message could not run: task must be a Celery task name"),
    "celery task": ({"task": "celery.chord"}, "23514", "this message could not run: task is built into Celery"),
    "queue": ({"queue": "a b"}, "23514", "this message could not run: queue must be letters"),
    "kombu queue": ({"queue": "unacked"}, "23514", "this message could not run: queue is a name that Celery keeps"),
    "hash": ({"body_hash": b"short"}, "22023", "outbox_add: body_hash must be the 32 bytes"),
    "endless": ({"expires_at": "infinity"}, "23514", "this message could not run: expires_at must be finite"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_could_not_run_is_refused(opened: Opened, database: str, case: str) -> None:
    options, code, words = WRONG[case]
    connection = opened()
    error = refused(connection, **options)
    assert error.sqlstate == code
    assert (error.diag.message_primary or "").startswith(words)
    assert error.diag.message_detail is None
    assert messages(database) == []


# What PostgreSQL would refuse by itself, in its own words and with the row in its DETAIL.
UNFRIENDLY: dict[str, dict[str, Any]] = {
    "no task": {"task": None},
    "empty unique_key": {"unique_key": ""},
    "long ordering_key": {"ordering_key": "o" * 256},
    "hash of a dedup_key": {"dedup_key": "d", "body_hash": b"short"},
    "enormous number": {"args": "[1e400000]"},
}


@pytest.mark.parametrize("case", UNFRIENDLY)
def test_every_refusal_says_what_to_do(opened: Opened, case: str) -> None:
    error = refused(opened(), **UNFRIENDLY[case])
    assert error.diag.message_detail is None
    assert (error.diag.message_primary or "").startswith(("outbox_add: ", "this message could not run: "))


def test_an_expiry_before_now_is_refused_as_in_python(opened: Opened) -> None:
    refused(opened(), expires_in=timedelta(seconds=-1))


def test_reserved_headers_are_those_of_the_python_writer(opened: Opened) -> None:
    connection = opened()
    for name in sorted(RESERVED_HEADERS):
        error = refused(connection, headers=json.dumps({name: "x"}))
        assert (error.diag.message_primary or "").startswith(f"outbox_add: header '{name}' is set by Celery")


@pytest.mark.parametrize(
    "value",
    [
        [1, -1, 0.5, 1e308, 10**308, True, None, "", "é 日本 🙂", [], {}],
        ["e999", "9" * 400, {"1e999": 1}],
        [json.loads("[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1))],
        [{"type": "__type__", "selfish": 1, "\U0001f642": "\\ud800 as text"}],
    ],
    ids=["values", "numbers in text", "as deep as can be", "almost reserved"],
)
def test_what_can_run_is_accepted(opened: Opened, database: str, value: list[Any]) -> None:
    """Escaped or not: what the codec accepts, this accepts too."""
    connection = opened()
    Outbox().add(connection, Message(CHARGE, value))
    for ascii_only in (True, False):
        add(connection, args=json.dumps(value, ensure_ascii=ascii_only))
    connection.commit()
    assert [json.loads(row[0]) for row in ask(database, "SELECT args::text FROM outbox_message")] == [value] * 3


def test_a_consumer_in_another_database(opened: Opened, database: str) -> None:
    register(database, inbox="other")
    error = refused(opened(), unique_key="u")
    assert isinstance(error, psycopg.errors.FeatureNotSupported)
    assert (error.diag.message_primary or "").startswith(f"outbox_add: {CHARGE} is consumed in another database")


def test_from_a_trigger_of_the_application(opened: Opened, database: str) -> None:
    """In its transaction: rolled back together, whatever search_path the application has."""
    connection = opened()
    connection.execute(
        "CREATE FUNCTION pg_temp.charge() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " PERFORM public.outbox_add('billing.charge', kwargs => json_build_object('order_id', NEW.id)); RETURN NULL;"
        " END $$"
    )
    connection.execute("CREATE TEMP TABLE outbox_message (LIKE public.outbox_message)")
    connection.execute("CREATE TRIGGER t AFTER INSERT ON shop_order FOR EACH ROW EXECUTE FUNCTION pg_temp.charge()")
    connection.execute("SET LOCAL search_path TO pg_temp, public")
    connection.execute("INSERT INTO shop_order VALUES (1), (2)")
    count = "SELECT count(*) FROM public.outbox_message WHERE kwargs->>'order_id' IN ('1', '2')"
    assert connection.execute(count).fetchone() == (2,)
    connection.rollback()
    assert messages(database) == []

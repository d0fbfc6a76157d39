"""The catalogue of bad input, row by row, for writing and migrating: the exact words, nothing written, nothing leaked.

B01–B16 and B25 are given to the writer inside a transaction that must stay usable; B17, B18, B22 and B29 to `migrate`,
whose refusals are tested at length in tests/migrations.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg
import pytest
import sqlalchemy as sa
from click.testing import CliRunner
from sqlalchemy.orm import Session

from outbox import (
    CancelOutcome,
    DedupConflict,
    InvalidMessage,
    Message,
    NotInTransaction,
    Outbox,
    OutboxError,
    SchemaMismatch,
    State,
)
from relay import migrate
from relay.cli import commands
from tests.support.postgres import Cluster

SECRET = "4111-hunter2"
LIMITED = Outbox(tasks=["billing.*"], queues=["mail"])
NAIVE = datetime(2030, 1, 1)  # noqa: DTZ001
ENCODER = "or register an encoder: Outbox(encoders={{{}: ...}})"
DEEP = "nested deeper than 100 levels; flatten it or pass a reference"
NUL = "contains the character \\u0000, which PostgreSQL cannot store; remove it"
SURROGATE = "contains a lone surrogate; it is not valid text, decode it again"
TASK = "is not a Celery task name: use letters, digits and _ . : -, at most 255, starting with a letter or _"
QUEUE = "is not a queue name: use letters, digits and _ . : @ / # -"
KEY = "characters, 1 to 255 are possible; shorten or hash it: fingerprint(...)"
ZONE = "has no time zone: which moment is it? Use datetime.now(UTC) or replace(tzinfo=...)"
OUTSIDE = (
    "the outbox was called outside a transaction: the message would commit apart from your changes, or never."
    " Call it inside `with session.begin():`, before the commit"
)
FOREIGN = UUID("00000000-0000-7000-8000-000000000001")


def nested(levels: int) -> list[object]:
    value: list[object] = [SECRET]
    for _ in range(levels):
        value = [value]
    return value


def payload(value: object) -> Callable[[Session], object]:
    """Added as a keyword argument, among others that hold the secret."""
    return lambda session: Outbox().add(session, "a.task", kwargs={"card": SECRET, "items": [0, {"price": value}]})


def added(task: Any = "a.task", outbox: Outbox | None = None, **options: Any) -> Callable[[Session], object]:
    options = {"kwargs": {"card": SECRET}} | options
    return lambda session: (outbox or Outbox()).add(session, task, **options)


PRICE = "kwargs.items[1].price: "
REFUSED: list[tuple[str, str, Callable[[Session], object], str]] = [
    (
        "B01",
        "datetime",
        payload(datetime.now(UTC)),
        f"{PRICE}datetime is not JSON; pass value.isoformat() and parse it in the handler,"
        f" {ENCODER.format('datetime')}",
    ),
    (
        "B01",
        "Decimal",
        payload(Decimal("4111.00")),
        f"{PRICE}Decimal is not JSON; pass str(value) and rebuild it in the handler, {ENCODER.format('Decimal')}",
    ),
    ("B01", "set", payload({SECRET}), f"{PRICE}set is not JSON; pass sorted(value), {ENCODER.format('set')}"),
    (
        "B01",
        "bytes",
        payload(SECRET.encode()),
        f"{PRICE}bytes is not JSON; pass base64 text, or a reference to where the bytes are kept,"
        f" {ENCODER.format('bytes')}",
    ),
    (
        "B01",
        "object",
        payload(object()),
        f"{PRICE}object is not JSON; convert it to str, int, float, bool, None, list or dict,"
        f" {ENCODER.format('object')}",
    ),
    ("B02", "nan", payload(float("nan")), f"{PRICE}nan is not JSON; pass None or a string"),
    ("B02", "infinity", payload(float("inf")), f"{PRICE}inf is not JSON; pass None or a string"),
    ("B03", "nul", payload(f"{SECRET}\x00"), f"{PRICE}{NUL}"),
    ("B03", "nul in a header", added(headers={"tenant": "\x00"}), f"headers.tenant: {NUL}"),
    ("B03", "surrogate", payload(f"{SECRET}\ud800"), f"{PRICE}{SURROGATE}"),
    (
        "B04",
        "5000 digits",
        payload(10**5000),
        f"{PRICE}an integer of over 4300 digits cannot be read back; pass it as text",
    ),
    ("B05", "key", payload({1: SECRET}), f"{PRICE}the key 1 is not a string; JSON would change it, convert it"),
    (
        "B06",
        "312 KiB",
        payload(SECRET + "x" * 312 * 1024),
        "payload is 312 KiB, limit 256 KiB (Outbox(max_payload=...)); pass a reference to where the data is kept",
    ),
    ("B07", "deep", added(args=[nested(10_000)]), f"args{'[0]' * 101}: {DEEP}"),
    ("B08", "empty", added(""), f"task '' {TASK}"),
    ("B08", "long", added("x" * 300), f"task '{'x' * 56}... {TASK}"),
    ("B08", "newline", added("a\nb"), f"task 'a\\nb' {TASK}"),
    ("B08", "spaces", added("a b"), f"task 'a b' {TASK}"),
    ("B08", "unicode", added("größe"), f"task 'gr\\xf6\\xdfe' {TASK}"),
    (
        "B09",
        "not allowed",
        added("mail.send", LIMITED),
        "task 'mail.send' is not among the tasks of this outbox; correct the name or add it to Outbox(tasks=...)",
    ),
    (
        "B10",
        "unknown",
        added("billing.charge", LIMITED, queue="male"),
        "queue 'male' is not among the queues of this outbox; correct the name or add it to Outbox(queues=...)",
    ),
    ("B10", "empty", added(queue=""), f"queue '' {QUEUE}"),
    ("B10", "star", added(queue="all*"), f"queue 'all*' {QUEUE}"),
    ("B13", "empty", added(dedup_key=""), f"dedup_key has 0 {KEY}"),
    ("B13", "long", added(dedup_key="x" * 256), f"dedup_key has 256 {KEY}"),
    ("B16", "naive", added(due_at=NAIVE), f"due_at {ZONE}"),
    ("B16", "naive expiry", added(expires_at=NAIVE), f"expires_at {ZONE}"),
    (
        "B25",
        "malformed, cancel",
        lambda session: Outbox().cancel(session, "42"),
        "id '42' is not a message id: pass the UUID that add() returned",
    ),
    (
        "B25",
        "malformed, state",
        lambda session: Outbox().state(session, "'; --"),
        'id "\'; --" is not a message id: pass the UUID that add() returned',
    ),
]


@dataclass(frozen=True)
class Written:
    """A migrated database, and what was written to it."""

    url: str
    engine: sa.Engine

    def count(self) -> int:
        with psycopg.connect(self.url) as connection:
            row = connection.execute("SELECT count(*) FROM outbox_message").fetchone()
        assert row is not None
        return int(row[0])


@pytest.fixture
def written(database: str) -> Iterator[Written]:
    engine = sa.create_engine(sa.make_url(database).set(drivername="postgresql+psycopg"))
    yield Written(database, engine)
    engine.dispose()


@pytest.fixture(scope="module")
def shared(cluster: Cluster, template: str) -> Iterator[Written]:
    """For tests that leave nothing behind."""
    with cluster.database("bad", template) as url:
        engine = sa.create_engine(sa.make_url(url).set(drivername="postgresql+psycopg"))
        yield Written(url, engine)
        engine.dispose()


@pytest.mark.parametrize(
    ("call", "said"), [row[2:] for row in REFUSED], ids=[f"{row} {what}" for row, what, _, _ in REFUSED]
)
def test_it_is_refused_and_the_transaction_stays_usable(
    shared: Written, call: Callable[[Session], object], said: str
) -> None:
    with Session(shared.engine) as session, session.begin():
        session.execute(sa.text("CREATE TEMPORARY TABLE business (id int) ON COMMIT DROP"))
        with pytest.raises(InvalidMessage) as refused:
            call(session)
        assert str(refused.value) == said
        assert SECRET not in said
        session.execute(sa.text("INSERT INTO business VALUES (1)"))
    assert shared.count() == 0


def stored(session: Session, message_id: UUID) -> str:
    asked = sa.text("SELECT kwargs::text FROM outbox_message WHERE id = :id")
    return str(session.execute(asked, {"id": message_id}).scalar_one())


@pytest.mark.parametrize("options", [{}, {"dedup_key": "k"}, {"delay": 5}], ids=["insert", "key", "delay"])
@pytest.mark.parametrize("value", [10**400, 2**53 + 1, -(2**63) - 1, 0.1 + 0.2, 1e-320, 1.7976931348623157e308, -0.0])
def test_b04_numbers_are_kept_to_the_digit(shared: Written, value: float, options: dict[str, Any]) -> None:
    with Session(shared.engine) as session:
        one = Outbox().add(session.connection(), "a", kwargs={"x": value}, **options)
        assert stored(session, one.id) == f'{{"x":{value!r}}}'
        session.rollback()


def test_b11_the_same_key_and_body_is_the_same_message(written: Written) -> None:
    message = Message("a", kwargs={"card": SECRET, "n": 1}, dedup_key="k")
    with Session(written.engine) as session, session.begin():
        first = Outbox().add(session, message)
    with Session(written.engine) as session, session.begin():
        again = Outbox().add(session, "a", kwargs={"n": 1, "card": SECRET}, dedup_key="k", queue="mail")
    assert (again.id, first.duplicate, again.duplicate, written.count()) == (first.id, False, True, 1)


def test_b12_the_same_key_with_another_body_is_a_conflict(written: Written) -> None:
    with Session(written.engine) as session, session.begin():
        first = Outbox().add(session, "a", kwargs={"card": SECRET}, dedup_key=SECRET)
    with Session(written.engine) as session, session.begin():
        with pytest.raises(DedupConflict) as refused:
            Outbox().add(session, "a", kwargs={"card": "other " + SECRET}, dedup_key=SECRET)
        assert str(refused.value) == (
            f"this dedup_key stands for another body, that of message {first.id}; use a key that is different for"
            " different work (fingerprint(task, payload) makes one)"
        )
        assert refused.value.existing == first.id
        Outbox().add(session, "a")
    assert written.count() == 2


@pytest.mark.parametrize(
    "batch",
    [
        [Message("a", (0,), dedup_key="a"), Message("a", (1,), dedup_key="b")],
        [Message("a"), Message("a", due_at=datetime(2100, 1, 1, tzinfo=UTC), expires_in=5)],
    ],
    ids=["conflict", "never"],
)
def test_b12_a_refused_batch_writes_nothing_however_it_is_cut(written: Written, batch: list[Message]) -> None:
    """`Nothing was written`, say DedupConflict and InvalidMessage."""
    with Session(written.engine) as session, session.begin():
        Outbox().add(session, "a", dedup_key="b")
    with Session(written.engine) as session, session.begin(), pytest.raises((DedupConflict, InvalidMessage)):
        Outbox().add_many(session, batch, chunk_size=1)
    assert written.count() == 1


def begun(written: Written, how: str) -> Any:
    """A connection that carries no transaction."""
    connection: Any = written.engine.connect()
    match how:
        case "AUTOCOMMIT engine":
            connection = connection.execution_options(isolation_level="AUTOCOMMIT")
            connection.begin()
        case "closed":
            connection.begin()
            connection.close()
        case "rolled back":
            connection.begin().rollback()
        case "psycopg autocommit" | "psycopg closed" | "psycopg failed":
            connection.close()
            connection = psycopg.connect(written.url, autocommit=how.endswith("autocommit"))
            if how.endswith("closed"):
                connection.close()
            if how.endswith("failed"):
                with pytest.raises(psycopg.errors.DivisionByZero):
                    connection.execute("SELECT 1/0")
    return connection


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("no begin", OUTSIDE),
        (
            "AUTOCOMMIT engine",
            "the outbox was called on an AUTOCOMMIT connection: the message would commit apart from your changes."
            " Use a connection with a real transaction (isolation_level other than AUTOCOMMIT)",
        ),
        (
            "psycopg autocommit",
            "the outbox was called on an autocommit connection outside a transaction: the message would commit apart"
            " from your changes. Call it inside `with connection.transaction():`",
        ),
        ("closed", OUTSIDE),
        ("rolled back", OUTSIDE),
        ("psycopg closed", "the outbox was called on a connection that is closed; open one and begin again"),
        (
            "psycopg failed",
            "the outbox was called in a transaction that has already failed; roll it back and begin again",
        ),
    ],
    ids=lambda value: value if len(value) < 20 else "",
)
def test_b14_b15_without_a_transaction_nothing_is_written(shared: Written, how: str, said: str) -> None:
    connection = begun(shared, how)
    with pytest.raises(NotInTransaction) as refused:
        Outbox().add(connection, "a", kwargs={"card": SECRET})
    assert str(refused.value) == said
    connection.close()
    assert shared.count() == 0


def test_b16_the_far_future_is_capped_and_the_past_is_now(shared: Written) -> None:
    with Session(shared.engine) as session:
        connection, outbox = session.connection(), Outbox()
        last = datetime.max.replace(tzinfo=UTC)
        far = outbox.add(connection, "a", due_at=last)
        waits = session.execute(sa.text("SELECT due_at - clock_timestamp() FROM outbox_due")).scalar_one()
        assert timedelta(days=3650) < waits < timedelta(days=3655)
        for past in (datetime(1990, 1, 1, tzinfo=UTC), datetime.min.replace(tzinfo=UTC)):
            assert outbox.state(connection, outbox.add(connection, "a", due_at=past, expires_at=last).id) == "queued"
        assert outbox.state(connection, far.id) == "scheduled"
        session.rollback()


def test_b25_unknown_and_finished_messages_are_told_apart(written: Written) -> None:
    outbox = Outbox()
    with Session(written.engine) as session, session.begin():
        unknown = outbox.cancel(session, FOREIGN)
        assert (unknown.outcome, unknown.state, outbox.state(session, str(FOREIGN))) == (
            CancelOutcome.UNKNOWN,
            State.UNKNOWN,
            State.UNKNOWN,
        )
        message = outbox.add(session, "a", delay=60)
        done = sa.text("INSERT INTO inbox_receipt (message_id, consumer, status) VALUES (:id, 'a', 'applied')")
        session.execute(done, {"id": message.id})
        finished = outbox.cancel(session, message.id)
        assert (finished.outcome, finished.state) == (CancelOutcome.FINISHED, State.APPLIED)
        waiting = outbox.add(session, "a", delay=60)
        assert outbox.cancel(session, waiting.id).outcome is CancelOutcome.CANCELLED
        assert outbox.cancel(session, waiting.id).outcome is CancelOutcome.FINISHED


def migrated(url: str, *options: str) -> tuple[int, str]:
    """Exit code and everything said."""
    result = CliRunner().invoke(commands, ["migrate", *options], env={"OUTBOX_DATABASE_URL": url})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("url", "options", "code", "start"),
    [
        ("", (), 2, "outbox: OUTBOX_DATABASE_URL is not set"),
        (f"mysql://u:{SECRET}@h/d", (), 2, "outbox: the database URL does not start with postgresql://"),
        (f"postgresql://u:{SECRET}@h:0/d", (), 2, "outbox: the database URL is malformed (host, port or"),
        (f"postgresql://u:{SECRET}@127.0.0.1:1/d", (), 5, "outbox: cannot connect to PostgreSQL at postgresql://127"),
        (f"postgresql://u:{SECRET}@h/d", ("--schema", "x" * 64), 2, "outbox: schema name 'xxxxx"),
        (f"postgresql://u:{SECRET}@h/d", ("--schema", "pg_x"), 2, "outbox: schema name 'pg_x' is reserved"),
    ],
    ids=["B17 missing", "B17 scheme", "B17 port", "B17 refused", "B22 long", "B22 reserved"],
)
def test_migrate_refuses_in_one_line(url: str, options: tuple[str, ...], code: int, start: str) -> None:
    found, said = migrated(url, *options)
    assert (found, said.count("\n"), SECRET in said) == (code, 1, False)
    assert said.startswith(start)


@pytest.mark.parametrize("options", [{}, {"dedup_key": "k"}, {"delay": 5}], ids=["insert", "key", "delay"])
def test_b18_a_database_without_our_tables_is_named_as_such(empty_database: str, options: dict[str, Any]) -> None:
    with psycopg.connect(empty_database) as connection, pytest.raises(SchemaMismatch) as refused:
        Outbox().add(connection, "a", kwargs={"card": SECRET}, **options)
    assert str(refused.value) == (
        "the outbox tables are not in this database and schema, or are older than this library; run `outbox migrate`"
        " (for another schema: Outbox(schema=...))"
    )


def test_b18_tables_of_a_newer_version_are_left_alone(database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE outbox_alembic_version SET version_num = 'outbox_9999'")
        connection.execute(
            "CREATE OR REPLACE FUNCTION outbox_revision() RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE"
            " AS $$ SELECT 'outbox_9999' $$"
        )
    assert migrated(database, "--status")[0] == 6
    with pytest.raises(OutboxError, match="outbox_9999"):
        migrate.upgrade(database)
    assert migrated(database)[0] == 4


def test_b29_migrating_twice_changes_nothing(database: str) -> None:
    """At once, half-done and without the right to: tests/migrations."""
    assert migrated(database) == (0, "schema public: nothing to do, already outbox_0001\n")

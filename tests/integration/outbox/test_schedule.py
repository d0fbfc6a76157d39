"""due_at, delay and expiry: what is written, what is refused, and that a relay and a worker do it when it is due."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from outbox import InvalidMessage, Message, Outbox, State
from relay.embedded import wait_until
from tests.integration.outbox.storage import CHARGE, Order, Postgres, ask, committed, engine_of, keys, messages
from tests.support import ledger
from tests.support.postgres import Cluster
from tests.support.processes import Programs, wait_for_line

OUTBOX = Outbox()
Opened = Callable[[], Postgres]


def due(url: str) -> list[tuple[Any, ...]]:
    """Every message: held or not, its plan if it has one."""
    return ask(
        url,
        "SELECT m.id, m.held, d.due_at, d.reason, d.attempt, d.publication"
        " FROM outbox_message m LEFT JOIN outbox_due d ON d.message_id = m.id ORDER BY m.seq",
    )


def from_now(url: str) -> timedelta:
    ((left,),) = ask(url, "SELECT due_at - clock_timestamp() FROM outbox_due")
    assert isinstance(left, timedelta)
    return left


def test_a_moment_is_kept_with_the_message(opened: Opened, database: str) -> None:
    moment = datetime.now(UTC).replace(microsecond=123456) + timedelta(hours=1)
    east = moment.astimezone(timezone(timedelta(hours=9)))
    connection = opened()
    added = OUTBOX.add(connection, Message(CHARGE, due_at=east))
    assert due(database) == [], "with the transaction, not before"
    connection.commit()
    assert due(database) == [(added.id, True, moment, "scheduled", 0, 0)]


@pytest.mark.parametrize("delay", [3600, 3600.0, timedelta(hours=1)])
def test_a_delay_counts_from_the_database_clock(opened: Opened, database: str, delay: float | timedelta) -> None:
    """From the moment of the call, not from the beginning of a long transaction."""
    connection = opened()
    connection.execute("SELECT now()")
    ((before,),) = ask(database, "SELECT clock_timestamp()")
    OUTBOX.add(connection, Message(CHARGE, delay=delay))
    connection.commit()
    ((after, planned),) = ask(database, "SELECT clock_timestamp(), due_at FROM outbox_due")
    assert before + timedelta(hours=1) <= planned <= after + timedelta(hours=1)


@pytest.mark.parametrize(
    "options",
    [
        {"delay": 0},
        {"delay": -60},
        {"due_at": datetime(2020, 1, 1, tzinfo=UTC)},
        {"due_at": datetime.min.replace(tzinfo=UTC)},
    ],
    ids=["no delay", "negative", "past", "year one"],
)
def test_what_is_due_already_is_an_ordinary_message(opened: Opened, database: str, options: dict[str, Any]) -> None:
    connection = opened()
    added = OUTBOX.add(connection, Message(CHARGE, **options))
    connection.commit()
    assert due(database) == [(added.id, False, None, None, None, None)]
    assert OUTBOX.state(connection, added.id) is State.QUEUED


@pytest.mark.parametrize(
    "options",
    [
        {"delay": timedelta(days=36_500)},
        {"due_at": datetime(2999, 1, 1, tzinfo=UTC)},
        {"due_at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-12)))},
    ],
    ids=["delay", "moment", "last moment"],
)
def test_ten_years_is_the_most(opened: Opened, database: str, options: dict[str, Any]) -> None:
    connection = opened()
    OUTBOX.add(connection, Message(CHARGE, **options))
    connection.commit()
    assert timedelta(days=3650) <= from_now(database) <= timedelta(days=3654)


def test_a_batch_with_and_without_a_time(opened: Opened, database: str) -> None:
    connection = opened()
    batch = OUTBOX.add_many(connection, [Message(CHARGE), Message(CHARGE, delay=60), Message(CHARGE, delay=-1)])
    connection.commit()
    assert [(row[0], row[1], row[3]) for row in due(database)] == [
        (batch[0].id, False, None),
        (batch[1].id, True, "scheduled"),
        (batch[2].id, False, None),
    ]


def test_a_rollback_leaves_no_plan(opened: Opened, database: str) -> None:
    connection = opened()
    OUTBOX.add(connection, Message(CHARGE, delay=60))
    connection.rollback()
    assert ask(database, "SELECT count(*) FROM outbox_due") == [(0,)]


@pytest.mark.parametrize("name", ["due_at", "expires_at"])
def test_a_naive_moment_is_refused(name: str) -> None:
    options: dict[str, Any] = {name: datetime(2099, 1, 1)}  # noqa: DTZ001
    with pytest.raises(InvalidMessage, match=f"^{name} has no time zone"):
        Message(CHARGE, **options)


SOON = datetime.now(UTC) + timedelta(minutes=1)


@pytest.mark.parametrize(
    "options",
    [{"delay": 3600, "expires_at": SOON}, {"due_at": SOON + timedelta(hours=1), "expires_in": 60.0}],
    ids=["delay", "moment"],
)
def test_what_expires_before_it_is_due_is_refused(engine: sa.Engine, database: str, options: dict[str, Any]) -> None:
    """Only the database can tell, because one of the two counts from its clock."""
    never = Message(CHARGE, dedup_key="d", unique_key="u", **options)
    with Session(engine) as session, session.begin():
        session.add(Order(id=7))
        with pytest.raises(InvalidMessage, match=r"^it would expire before it is due"):
            OUTBOX.add(session, never)
        with pytest.raises(InvalidMessage, match=r"^message 1 of the batch: it would expire"):
            OUTBOX.add_many(session, [Message(CHARGE, dedup_key="e"), never])
        good = OUTBOX.add(session, Message(CHARGE))
    assert committed(database) == ([str(good.id)], [7])
    assert keys(database, "dedup") == keys(database, "unique") == {}


def test_nothing_of_a_refused_batch_is_left_whatever_the_chunks(opened: Opened, database: str) -> None:
    connection = opened()
    with pytest.raises(InvalidMessage, match=r"^message 1 of the batch: it would expire"):
        OUTBOX.add_many(connection, [Message(CHARGE), Message(CHARGE, delay=3600, expires_at=SOON)], chunk_size=1)
    connection.commit()
    assert messages(database) == []


def test_expiry_is_kept_with_the_message(opened: Opened, database: str) -> None:
    connection = opened()
    moment = datetime(2099, 1, 1, tzinfo=UTC)
    OUTBOX.add(connection, Message(CHARGE, expires_at=moment))
    OUTBOX.add(connection, Message(CHARGE, expires_at=moment, delay=60))
    OUTBOX.add(connection, Message(CHARGE, expires_in=timedelta(hours=1)))
    connection.commit()
    found = ask(database, "SELECT expires_at, expires_at - created_at FROM outbox_message ORDER BY seq")
    assert [row[0] for row in found[:2]] == [moment, moment]
    assert timedelta(minutes=59) < found[2][1] <= timedelta(hours=1)


@pytest.fixture
def scene(cluster: Cluster, template: str, programs: Programs, broker_url: str) -> Iterator[str]:
    """A database of its own with a relay and a worker."""
    with cluster.database("schedule", template) as url:
        ledger.create(url)
        ask(url, "CREATE TABLE echo (id uuid, told json)")
        programs.environment |= {"OUTBOX_DATABASE_URL": url, "OUTBOX_BROKER_URL": broker_url}
        worker = programs.worker("tests.support.ledger_app", "--without-gossip", "--without-mingle", concurrency=1)
        programs.relay(url, broker_url)
        wait_for_line(worker, r"ready\.")
        yield url


def test_a_relay_publishes_it_when_due_and_a_worker_runs_it(scene: str) -> None:
    """With a consumer and without; what was cancelled does not run."""
    engine = engine_of(scene, poolclass=sa.NullPool)

    def add(session: Session, task: str, name: str) -> UUID:
        return OUTBOX.add(session, Message(task, kwargs={"name": name}, delay=timedelta(hours=1))).id

    with Session(engine) as session, session.begin():
        ids = {name: add(session, "ledger.echo", name) for name in ("kept", "cancelled")}
        plain = {name: add(session, "ledger.plain", name) for name in ("plain", "plain cancelled")}
        marker = OUTBOX.add(session, Message("ledger.echo", kwargs={"name": "now"})).id

    def states(*wanted: UUID) -> list[State]:
        with Session(engine) as session, session.begin():
            return [OUTBOX.state(session, each) for each in wanted]

    wait_until(lambda: states(marker) == [State.APPLIED], 30, "the message that was not delayed")
    assert set(states(*ids.values(), *plain.values())) == {State.SCHEDULED}
    assert told(scene) == ["now"]
    with Session(engine) as session, session.begin():
        assert OUTBOX.cancel(session, ids["cancelled"]).outcome == "cancelled"
        assert OUTBOX.cancel(session, plain["plain cancelled"]).outcome == "cancelled"
    # All at once: the cancelled ones first, so that they would have run before the others.
    ask(
        scene,
        "UPDATE outbox_due SET due_at = clock_timestamp()"
        " - CASE WHEN message_id = ANY (%s) THEN interval '1 s' ELSE '0' END",
        [ids["cancelled"], plain["plain cancelled"]],
    )
    wait_until(lambda: {"kept", "plain"} <= set(told(scene)), 30, "both to run")
    assert told(scene) == ["kept", "now", "plain"]
    assert states(ids["kept"], ids["cancelled"], plain["plain"], plain["plain cancelled"]) == [
        State.APPLIED,
        State.CANCELLED,
        State.PUBLISHED,
        State.CANCELLED,
    ]


def told(url: str) -> list[str]:
    return [row[0] for row in ask(url, "SELECT told->'kwargs'->>'name' FROM echo ORDER BY 1")]

"""The checker itself must be able to see each fault, or every other test proves nothing."""

import uuid
from collections.abc import Iterator

import psycopg
import pytest
import sqlalchemy as sa
from psycopg import conninfo
from sqlalchemy.orm import Session

from tests.support import ledger
from tests.support.ledger import LedgerReport

BLANK = LedgerReport(written=0, applied=0, lost=0, doubled=0, phantom=0, stuck=0, out_of_order=0)

# Only what the checker reads: it must not depend on how the real tables grow.
TABLES = """
CREATE TABLE outbox_message (id uuid PRIMARY KEY, task text NOT NULL DEFAULT 'a.task');
CREATE TABLE inbox_receipt (message_id uuid, consumer text DEFAULT 'a.task', status text NOT NULL);
"""

Connection = psycopg.Connection[tuple[object, ...]]


@pytest.fixture
def books(empty_database: str) -> Iterator[Connection]:
    ledger.create(empty_database)
    with psycopg.connect(empty_database, autocommit=True) as connection:
        connection.execute(TABLES)
        yield connection


def url_of(connection: Connection) -> str:
    return conninfo.make_conninfo(**connection.info.get_parameters(), password=connection.info.password)


def message(
    books: Connection, *, intent: bool = True, effects: int = 1, receipt: str | None = "applied", key: str | None = None
) -> uuid.UUID:
    found = uuid.uuid4()
    books.execute("INSERT INTO outbox_message (id) VALUES (%s)", [found])
    if intent:
        ledger.intend(books, found, key)
    for number in range(effects):
        ledger.effect(books, found, run_id=f"run {number}")
    if receipt:
        books.execute("INSERT INTO inbox_receipt (message_id, status) VALUES (%s, %s)", [found, receipt])
    return found


def faults(report: LedgerReport) -> dict[str, int]:
    rules = ("lost", "doubled", "phantom", "stuck", "out_of_order")
    return {rule: getattr(report, rule) for rule in rules if getattr(report, rule)}


def test_books_without_entries_balance(books: Connection) -> None:
    assert ledger.assert_balanced(url_of(books)) == BLANK


def test_a_message_with_one_effect_balances(books: Connection) -> None:
    message(books)
    report = ledger.assert_balanced(url_of(books))
    assert (report.written, report.applied) == (1, 1)


@pytest.mark.parametrize("status", ["dead", "cancelled", "expired", "discarded"])
def test_another_outcome_explains_a_missing_effect(books: Connection, status: str) -> None:
    message(books, effects=0, receipt=status)
    report = ledger.assert_balanced(url_of(books))
    assert (report.written, report.applied) == (1, 0)


def test_a_commit_without_message_is_lost(books: Connection) -> None:
    lost = uuid.uuid4()
    ledger.intend(books, lost)
    report = ledger.check(url_of(books))
    assert faults(report) == {"lost": 1}
    assert not report.balanced
    assert str(lost) in str(report)


def test_an_applied_receipt_without_effect_is_lost(books: Connection) -> None:
    message(books, effects=0, receipt="applied")
    assert faults(ledger.check(url_of(books))) == {"lost": 1}


def test_two_effects_are_doubled(books: Connection) -> None:
    doubled = message(books, effects=3)
    report = ledger.check(url_of(books))
    assert faults(report) == {"doubled": 1}
    assert report.examples == (("doubled", (str(doubled),)),)


def test_an_effect_nobody_committed_is_a_phantom(books: Connection) -> None:
    message(books, intent=False)
    assert faults(ledger.check(url_of(books))) == {"phantom": 1}


def test_an_effect_of_a_cancelled_message_is_a_phantom(books: Connection) -> None:
    message(books, effects=1, receipt="cancelled")
    assert faults(ledger.check(url_of(books))) == {"phantom": 1}


def test_a_message_without_any_end_is_stuck(books: Connection) -> None:
    message(books, intent=False, effects=0, receipt=None)
    assert faults(ledger.check(url_of(books))) == {"stuck": 1}


def test_a_message_to_a_plain_task_is_never_stuck(books: Connection) -> None:
    message(books, intent=False, effects=0, receipt=None)
    ledger.assert_balanced(url_of(books), plain_tasks=["a.task"])


def test_effects_of_one_key_against_their_positions_are_out_of_order(books: Connection) -> None:
    for key, positions in {"wrong": (1, 3, 2), "right": (1, 2, 3)}.items():
        for position in positions:
            found = message(books, key=key, effects=0)
            ledger.effect(books, found, ordering_key=key, position=position)
    assert faults(ledger.check(url_of(books))) == {"out_of_order": 1}


def test_an_unbalanced_report_fails_the_test_that_asked(books: Connection) -> None:
    message(books, effects=2)
    with pytest.raises(AssertionError, match=r"NOT BALANCED.*doubled 1"):
        ledger.assert_balanced(url_of(books))


def test_settling_waits_for_the_last_effect(books: Connection) -> None:
    late = message(books, effects=0)
    with pytest.raises(AssertionError, match=f"lost: {late}"):
        ledger.settle(url_of(books), deadline=0.05)
    ledger.effect(books, late)
    assert ledger.settle(url_of(books), deadline=5).applied == 1


def test_a_rolled_back_transaction_leaves_no_intent(books: Connection, empty_database: str) -> None:
    engine = sa.create_engine(empty_database.replace("postgresql:", "postgresql+psycopg:"))
    with Session(engine) as session:
        ledger.intend(session, uuid.uuid4())
        session.rollback()
        ledger.intend(session, uuid.uuid4())
        session.commit()
    engine.dispose()
    assert ledger.check(url_of(books)).written == 1

"""Reading the log costs what is read, not what lies there: each statement on the one log index, rows bounded."""

from typing import Any

import psycopg
import pytest

from relay.window import Bounds, Page, Window, only_page, pages
from tests.plans.conftest import EACH, PAGE, TASK, TRANSACTIONS, Log
from tests.plans.explained import Explained, Plan

ROWS = TRANSACTIONS * EACH
END = 2**63 - 1


def only_the_log_index(plan: Plan) -> None:
    assert not {"Seq Scan", "Sample Scan"} & plan.kinds("outbox_message")
    scans = [node for node in plan.nodes if node.table == "outbox_message" and node.index]
    bitmaps = [node for node in plan.nodes if node.kind == "Bitmap Index Scan"]
    assert {node.index for node in (*scans, *bitmaps)} == {"outbox_message_log"}


def set_position(session: Explained, **columns: Any) -> str:
    """Put the position somewhere; gives the ctid of the row."""
    assignments = ", ".join(f"{name} = %({name})s" for name in columns)
    update = f"UPDATE outbox_leader SET {assignments} RETURNING ctid::text"  # noqa: S608
    row = session.connection.execute(update.encode(), columns).fetchone()
    assert row is not None
    return str(row[0])


def page_parameters(log: Log, prev: str, following: str, page: Page) -> dict[str, Any]:
    return {"prev": prev, "next": following, "low": page.low, "high": page.high, "first_xid": page.first_xid,
            "last_xid": page.last_xid, "xids": list(page.xids), "most": END}  # fmt: skip


def test_polling_an_idle_log_reads_no_message(log: Log, session: Explained) -> None:
    ctid = set_position(session, prev=log.after(TRANSACTIONS))
    plan = session.run(log.queries.open_at, log.fence | {"page": PAGE, "ctid": ctid})
    only_the_log_index(plan)
    assert plan.touched("outbox_message") == 0
    assert plan.blocks < 20


@pytest.mark.parametrize("published", [0, TRANSACTIONS // 2, TRANSACTIONS - 1])
def test_opening_looks_no_further_than_one_page(log: Log, session: Explained, published: int) -> None:
    ctid = set_position(session, prev=log.after(published))
    plan = session.run(log.queries.open_at, log.fence | {"page": PAGE, "ctid": ctid})
    only_the_log_index(plan)
    assert 0 < plan.touched("outbox_message") <= 1 + PAGE + 1
    assert plan.blocks < 60


@pytest.mark.parametrize("published", [1, TRANSACTIONS - 1])
def test_turning_looks_no_further_than_one_page(log: Log, session: Explained, published: int) -> None:
    ctid = set_position(session, prev=log.after(published - 1), next=log.after(published), window_no=4)
    plan = session.run(log.queries.turn_at, log.fence | {"page": PAGE, "window_no": 4, "ctid": ctid})
    only_the_log_index(plan)
    assert 0 < plan.touched("outbox_message") <= 1 + PAGE + 1
    assert plan.blocks < 60


def test_resuming_counts_no_further_than_one_page(log: Log, session: Explained) -> None:
    set_position(session, prev=log.after(0), next=log.after(TRANSACTIONS), last_seq=100)
    plan = session.run(log.queries.position, log.fence | {"page": PAGE})
    only_the_log_index(plan)
    assert plan.touched("outbox_message") == PAGE + 1


def planned(log: Log, session: Explained, prev: str, following: str, last_seq: int = 0) -> tuple[Plan, list[Page]]:
    parameters = {"prev": prev, "next": following, "last_seq": last_seq, "page": PAGE}
    plan = session.run(log.queries.plan, parameters)
    rows = session.connection.execute(log.queries.plan, parameters).fetchall()
    return plan, list(pages(last_seq, [Bounds(*row) for row in rows]))


def test_the_page_plan_is_one_pass_over_the_index(log: Log, session: Explained) -> None:
    plan, found = planned(log, session, log.after(0), log.after(TRANSACTIONS))
    only_the_log_index(plan)
    assert plan.kinds("outbox_message") == {"Index Only Scan"}
    assert plan.touched("outbox_message") == ROWS
    assert len(found) == TRANSACTIONS
    # An index entry is 24 bytes; the table itself would be some 7,000 pages.
    assert plan.blocks < 1200


@pytest.mark.parametrize("number", [0, TRANSACTIONS // 2, TRANSACTIONS - 1])
def test_a_page_of_a_large_window_reads_its_own_rows_only(log: Log, session: Explained, number: int) -> None:
    prev, following = log.after(0), log.after(TRANSACTIONS)
    _, found = planned(log, session, prev, following)
    plan = session.run(log.queries.page, page_parameters(log, prev, following, found[number]))
    only_the_log_index(plan)
    assert plan.touched("outbox_message") == PAGE
    assert plan.blocks < 100


def test_a_small_window_at_the_end_reads_its_own_rows_only(log: Log, session: Explained) -> None:
    prev, following = log.after(TRANSACTIONS - 1), log.after(TRANSACTIONS)
    plan = session.run(
        log.queries.only_page, page_parameters(log, prev, following, only_page(Window(1, prev, following, 0, 0)))
    )
    only_the_log_index(plan)
    assert plan.touched("outbox_message") == EACH
    assert plan.blocks < 100


@pytest.fixture
def late(log: Log) -> Any:
    """A transaction that was open all the while: its 1000 rows are older than everything by xid, newer by commit."""
    connection = psycopg.connect(log.url)
    statement = "INSERT INTO outbox_message (id, task) SELECT gen_random_uuid(), %s FROM generate_series(1, 1000)"
    connection.execute(statement, [TASK])
    row = connection.execute("SELECT pg_current_xact_id()::text").fetchone()
    assert row is not None
    with psycopg.connect(log.url, autocommit=True) as other:
        # Nobody takes part in this test but these two, so the window between them is known.
        other.execute(
            "INSERT INTO outbox_message (id, task) SELECT gen_random_uuid(), %s FROM generate_series(1, 700)", [TASK]
        )
        snapshot = other.execute("SELECT pg_current_snapshot()::text").fetchone()
    assert snapshot is not None
    yield connection, int(row[0]), snapshot[0]
    connection.close()
    with psycopg.connect(log.url, autocommit=True) as other:
        other.execute("DELETE FROM outbox_message WHERE xid >= %s::xid8", [row[0]])
        other.execute("VACUUM ANALYZE outbox_message")


def test_an_open_older_transaction_costs_nothing_until_it_commits(log: Log, session: Explained, late: Any) -> None:
    _, xid, snapshot = late
    assert snapshot.endswith(f":{xid}")
    set_position(session, prev=snapshot)
    plan = session.run(log.queries.open, log.fence | {"page": PAGE})
    only_the_log_index(plan)
    assert plan.touched("outbox_message") == 0


def test_late_rows_are_found_one_transaction_at_a_time(log: Log, session: Explained, late: Any) -> None:
    connection, _, prev = late
    connection.commit()
    set_position(session, prev=prev)
    plan = session.run(log.queries.open, log.fence | {"page": PAGE})
    only_the_log_index(plan)
    assert 0 < plan.touched("outbox_message") <= 1 + PAGE + 1

    row = session.connection.execute("SELECT next::text FROM outbox_leader").fetchone()
    assert row is not None
    plan, found = planned(log, session, prev, row[0])
    only_the_log_index(plan)
    assert plan.touched("outbox_message") == 1000
    assert len(found) == 2
    for page in found:
        plan = session.run(log.queries.page, page_parameters(log, prev, row[0], page))
        only_the_log_index(plan)
        assert plan.touched("outbox_message") == PAGE
        assert plan.blocks < PAGE + 100

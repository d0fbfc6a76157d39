"""What each statement may touch at most: rows that are not wanted now are not read."""

from datetime import timedelta
from typing import Any

import psycopg

from relay.outcome import Fates
from relay.queries.status import status_queries_for
from relay.window import Window, only_page
from tests.plans.conftest import EACH, PAGE, TRANSACTIONS, Log
from tests.plans.explained import Explained, explained
from tests.plans.test_due_plans import DUE, LOOK, RETRIES, load
from tests.plans.test_leader_plans import FENCE, QUERIES, WEAR
from tests.plans.test_log_plans import only_the_log_index, page_parameters

FUTURE = "UPDATE {} SET due_at = clock_timestamp() + interval '1 day' WHERE due_at < clock_timestamp()"


def test_a_small_window_with_a_backlog_behind_it_reads_its_own_rows_only(log: Log, session: Explained) -> None:
    prev, following = log.after(TRANSACTIONS // 2), log.after(TRANSACTIONS // 2 + 1)
    plan = session.run(
        log.queries.only_page, page_parameters(log, prev, following, only_page(Window(1, prev, following, 0, 0)))
    )
    only_the_log_index(plan)
    assert plan.touched("outbox_message") == EACH


def vacuum(log: Log) -> None:
    with psycopg.connect(log.url, autocommit=True) as other:
        other.execute("VACUUM outbox_due, inbox_retry")


def test_what_is_due_tomorrow_is_not_read_today(log: Log, session: Explained) -> None:
    vacuum(log)
    load(session, DUE.replace("-", "+", 1).replace("interval '1 s' * seq", "interval '1 day' + interval '1 s' * seq"))
    plan = session.run(log.queries.due, LOOK)
    assert plan.touched("outbox_due") == 0
    assert plan.blocks < 30


def test_what_is_retried_tomorrow_is_not_read_today(log: Log, session: Explained) -> None:
    vacuum(log)
    load(
        session, RETRIES.replace("-", "+", 1).replace("interval '1 s' * seq", "interval '1 day' + interval '1 s' * seq")
    )
    plan = session.run(log.queries.collect, log.fence)
    assert plan.touched("inbox_retry") == 0
    assert plan.blocks < 30


def test_collecting_touches_what_it_takes(log: Log, session: Explained) -> None:
    load(session, RETRIES)
    plan = session.run(log.queries.collect, log.fence)
    assert plan.touched("inbox_retry") == 2000  # found by index, deleted by place
    assert not plan.kinds("inbox_retry") & {"Seq Scan"}


def test_settling_touches_the_batch(log: Log, session: Explained) -> None:
    load(session, DUE)
    ids = [row[0] for row in session.connection.execute(log.queries.due, LOOK).fetchall()]
    plan = session.run(
        log.queries.settle, log.fence | Fates().parameters() | {"finished": ids[:100], "published": ids[100:]}
    )
    assert plan.touched("outbox_due") == PAGE


def test_the_sweep_finds_late_rows_by_index(log: Log, session: Explained) -> None:
    xid = log.xids[10]
    begin = log.after(TRANSACTIONS // 2).split(":")[1]
    session.connection.execute("UPDATE outbox_leader SET reconciled = %s", [f"{xid}:{begin}:{xid}"])
    plan = session.run(
        log.queries.sweep,
        log.fence | {"upto": log.after(TRANSACTIONS // 2 + 1), "age": timedelta(seconds=30), "window_no": 0},
    )
    only_the_log_index(plan)
    assert plan.touched("outbox_message") == 2 * EACH


def test_status_counts_the_backlog_by_index(log: Log, session: Explained) -> None:
    queries = status_queries_for("public")
    session.connection.execute("UPDATE outbox_leader SET prev = %s", [log.after(TRANSACTIONS - 1)])
    plan = session.run(queries.backlog, {"most": 1000})
    only_the_log_index(plan)
    assert plan.touched("outbox_message") == EACH
    session.connection.execute("UPDATE outbox_leader SET prev = %s", [f"{log.xids[10]}:{log.xids[-1]}:{log.xids[10]}"])
    plan = session.run(queries.backlog, {"most": 1000})
    only_the_log_index(plan)
    assert plan.touched("outbox_message") == 2 * EACH


def test_status_looks_at_the_newest_receipts_only(log: Log, session: Explained) -> None:
    queries = status_queries_for("public")
    plan = session.run(queries.receipts, {"most": 1000})
    assert "inbox_receipt_applied_at" in plan.indexes()
    assert plan.touched("inbox_receipt") < 10_000


def test_a_cached_plan_finds_the_leader_row_by_its_place(empty_database: str) -> None:
    from relay.migrate import upgrade

    upgrade(empty_database)
    with psycopg.connect(empty_database, autocommit=True) as other, psycopg.connect(empty_database) as snapshot:
        other.execute(QUERIES.acquire, FENCE | {"ttl": timedelta(hours=1), "lock": False, "seen": 0, "dead": None})
        other.execute("UPDATE outbox_leader SET prev = '10:10:', next = '20:20:', window_no = 4")
        other.execute("VACUUM ANALYZE outbox_leader")  # an unvacuumed table is taken for ten pages
        with explained(empty_database, generic=True) as session:

            def advance(ctid: str) -> Any:
                return session.run(QUERIES.advance_at, FENCE | {"window_no": 4, "last_seq": 3001, "ctid": ctid})

            advance("(0,99)")  # planned while the table is one page, as every relay plans it
            snapshot.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            snapshot.execute("SELECT FROM outbox_leader")
            other.execute(WEAR)
            row = other.execute("SELECT ctid::text FROM outbox_leader").fetchone()
            assert row is not None
            plan = advance(row[0])
    assert plan.kinds("outbox_leader") == {"Tid Scan"}
    assert plan.blocks < 40

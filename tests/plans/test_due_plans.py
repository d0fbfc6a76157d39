"""Plans, retries and the sweep: what is due is read by index, the rest of the tables is left alone."""

from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from relay.outcome import Fates
from tests.plans.conftest import EACH, PAGE, TRANSACTIONS, Log
from tests.plans.explained import Explained

DUE = """
INSERT INTO outbox_due (message_id, due_at, publication, reason)
    SELECT id, clock_timestamp() - interval '1 s' * seq, 1, 'redelivery' FROM outbox_message ORDER BY seq LIMIT 20000
"""
LOOK = {"page": PAGE, "since": datetime.min.replace(tzinfo=UTC)}
RETRIES = """
INSERT INTO inbox_retry (message_id, consumer, kind, due_at)
    SELECT id, task, 'failure', clock_timestamp() - interval '1 s' * seq FROM outbox_message ORDER BY seq LIMIT 20000
"""


def load(session: Explained, statement: str) -> None:
    """Inside the transaction of the test, with statistics as autovacuum would leave them."""
    session.connection.execute(statement.encode())
    session.connection.execute("ANALYZE outbox_due, inbox_retry")


def test_what_is_due_is_read_a_batch_at_a_time(log: Log, session: Explained) -> None:
    load(session, DUE)
    plan = session.run(log.queries.due, LOOK)
    assert {"outbox_due_at", "outbox_message_pkey", "inbox_receipt_pkey"} <= plan.indexes()
    for table in ("outbox_due", "outbox_message", "inbox_receipt"):
        assert not plan.kinds(table) & {"Seq Scan"}
        assert plan.touched(table) == PAGE


def test_nothing_due_costs_nothing(log: Log, session: Explained) -> None:
    with psycopg.connect(log.url, autocommit=True) as other:
        other.execute("VACUUM outbox_due, inbox_retry")  # other tests have left dead rows there
    for statement, parameters in ((log.queries.due, LOOK), (log.queries.collect, log.fence)):
        plan = session.run(statement, parameters)
        assert plan.touched("outbox_message") == 0
        assert plan.blocks < 20


def test_retries_are_found_in_the_order_they_are_due(log: Log, session: Explained) -> None:
    load(session, RETRIES)
    plan = session.run(log.queries.collect, log.fence)
    assert "inbox_retry_due" in plan.indexes()
    (found,) = [node for node in plan.nodes if node.index == "inbox_retry_due"]
    assert found.touched == 1000


def test_settling_a_batch_touches_the_batch(log: Log, session: Explained) -> None:
    load(session, DUE)
    ids = [row[0] for row in session.connection.execute(log.queries.due, LOOK).fetchall()]
    plan = session.run(
        log.queries.settle, log.fence | Fates().parameters() | {"finished": ids[:100], "published": ids[100:]}
    )
    assert not plan.kinds("outbox_message") & {"Seq Scan"}
    assert plan.touched("outbox_message") == PAGE - 100


@pytest.mark.parametrize("transactions", [1, 20])
def test_the_sweep_reads_its_stretch_and_probes_receipts_by_id(log: Log, session: Explained, transactions: int) -> None:
    begin = TRANSACTIONS // 2
    session.connection.execute("UPDATE outbox_leader SET reconciled = %s", [log.after(begin)])
    upto = {"upto": log.after(begin + transactions), "age": timedelta(seconds=30), "window_no": 0}
    plan = session.run(log.queries.sweep, log.fence | upto)
    assert {"outbox_message_log", "inbox_receipt_pkey"} <= plan.indexes()
    assert plan.touched("outbox_message") <= transactions * EACH + 1
    assert not plan.kinds("inbox_receipt") & {"Seq Scan"}
    assert plan.touched("inbox_receipt") == transactions * EACH

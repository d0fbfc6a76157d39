"""Retention reads a bounded stretch by index or by place, whatever is kept around it."""

from datetime import timedelta
from typing import Any

import pytest

from relay.prune import BATCH, BLOCKS
from relay.queries.prune import prune_queries_for
from tests.plans.conftest import EACH, TASK, TRANSACTIONS, Log
from tests.plans.explained import Explained

QUERIES = prune_queries_for("public")
NOTE = """
INSERT INTO outbox_window (window_no, from_snapshot, to_snapshot, last_seq, epoch, relay, closed_at)
    VALUES (1, %(upto)s, %(upto)s, 0, 1, 'test', clock_timestamp() - interval '9 days')
"""


def parameters(log: Log, **more: Any) -> dict[str, Any]:
    common = {"batch": BATCH, "blocks": BLOCKS, "keep": timedelta(days=8), "everywhere": True}
    return log.fence | common | {"receipt_table": "public.inbox_receipt"} | more


def let_it_be_old(session: Explained, upto: str) -> None:
    session.connection.execute(NOTE, {"upto": upto})
    session.connection.execute("UPDATE outbox_leader SET prev = %s, reconciled = %s", [upto, upto])


@pytest.mark.parametrize("kept", [False, True], ids=["all-goes", "all-stays"])
def test_messages_are_looked_at_a_batch_at_a_time(log: Log, session: Explained, kept: bool) -> None:
    """From the middle of the log: what lies before and behind is not read, and nothing is read twice."""
    let_it_be_old(session, log.after(TRANSACTIONS))
    if not kept:
        session.connection.execute("DELETE FROM inbox_consumer")
        session.connection.execute(
            "UPDATE inbox_receipt SET applied_at = applied_at - interval '10 days' WHERE message_id = ANY (ARRAY("
            "SELECT id FROM outbox_message WHERE xid >= %s::text::xid8 AND xid < %s::text::xid8))",
            [log.xids[TRANSACTIONS // 2], log.xids[TRANSACTIONS // 2 + 2 * BATCH // EACH]],
        )
    middle = str(log.xids[TRANSACTIONS // 2])
    plan = session.run(QUERIES.log, parameters(log, xid=middle, seq="0"))
    assert "outbox_message_log" in plan.indexes()
    for table in ("outbox_message", "inbox_receipt", "outbox_key", "outbox_due", "inbox_retry"):
        assert not plan.kinds(table) & {"Seq Scan"}, table
    assert plan.touched("outbox_message") <= 2 * BATCH + 1
    assert plan.touched("inbox_receipt") <= 4 * BATCH
    gone = session.connection.execute("SELECT count(*) FROM outbox_message").fetchall()[0][0]
    assert gone == TRANSACTIONS * EACH - (0 if kept else BATCH)


def test_nothing_old_costs_nothing(log: Log, session: Explained) -> None:
    plan = session.run(QUERIES.log, parameters(log, xid="0", seq="0"))
    assert plan.touched("outbox_message") == 0


def test_scheduled_messages_have_their_own_index(log: Log, session: Explained) -> None:
    session.connection.execute(
        "INSERT INTO outbox_message (id, task, held) SELECT gen_random_uuid(), %s, true FROM generate_series(1, 5000)",
        [TASK],
    )
    session.connection.execute("ANALYZE outbox_message")
    plan = session.run(QUERIES.held, parameters(log, xid="0", seq="0"))
    assert "outbox_message_held" in plan.indexes()
    assert plan.touched("outbox_message") <= BATCH


def test_keys_and_plans_are_walked_in_their_own_order(log: Log, session: Explained) -> None:
    session.connection.execute(
        "INSERT INTO outbox_key (kind, key, message_id) SELECT 'unique', seq::text, id FROM outbox_message"
        " ORDER BY seq LIMIT 20000"
    )
    session.connection.execute(
        "INSERT INTO outbox_due (message_id, due_at, reason) SELECT id, now(), 'retry' FROM outbox_message"
        " ORDER BY seq LIMIT 20000"
    )
    session.connection.execute("ANALYZE outbox_key, outbox_due")
    plan = session.run(QUERIES.keys, parameters(log, kind="unique", scope="", key="3"))
    assert not plan.kinds("outbox_key") & {"Seq Scan"}
    assert not plan.kinds("outbox_message") & {"Seq Scan"}
    assert plan.touched("outbox_key") <= BATCH
    plan = session.run(QUERIES.plans, parameters(log, id="80000000-0000-0000-0000-000000000000"))
    assert not plan.kinds("outbox_due") & {"Seq Scan"}
    assert plan.touched("outbox_due") <= 2 * BATCH


def test_receipts_are_read_by_place(log: Log, session: Explained) -> None:
    plan = session.run(QUERIES.receipts, parameters(log, block="100"))
    assert "Tid Range Scan" in plan.kinds("inbox_receipt")
    assert not plan.kinds("inbox_receipt") & {"Seq Scan"}
    assert 0 < plan.touched("inbox_receipt") <= 2 * BATCH
    assert not plan.kinds("outbox_message") & {"Seq Scan"}

"""Bad rows are impossible: each CHECK refuses one, by raw SQL, and a good row passes all of them."""

import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.migrations.rows import GOOD, ID
from tests.support.postgres import Cluster

# One row: the constraint, and what is changed in the good row of its table.
REFUSED: list[tuple[str, dict[str, str]]] = [
    ("outbox_message_task_check", {"task": "''"}),
    ("outbox_message_task_check", {"task": "'9lives'"}),
    ("outbox_message_task_check", {"task": "'two words'"}),
    ("outbox_message_task_check", {"task": "E'line\\nbreak'"}),
    ("outbox_message_task_check", {"task": "E'ends\\n'"}),
    ("outbox_message_task_check", {"task": "'größe'"}),
    ("outbox_message_task_check", {"task": "repeat('x', 256)"}),
    ("outbox_message_task_celery_check", {"task": "'celery.chord'"}),
    ("outbox_message_queue_check", {"queue": "''"}),
    ("outbox_message_queue_check", {"queue": "'all*'"}),
    ("outbox_message_queue_check", {"queue": "E'mail\\n'"}),
    ("outbox_message_queue_check", {"queue": "repeat('x', 256)"}),
    ("outbox_message_queue_kombu_check", {"queue": "'unacked_index'"}),
    ("outbox_message_queue_kombu_check", {"queue": "'_kombu.binding.x'"}),
    ("outbox_message_expires_at_check", {"expires_at": "'infinity'"}),
    ("outbox_message_priority_check", {"priority": "10", "ordering_key": "NULL", "key_prev": "NULL"}),
    ("outbox_message_priority_check", {"priority": "-1", "ordering_key": "NULL", "key_prev": "NULL"}),
    ("outbox_message_args_check", {"args": "'{}'"}),
    ("outbox_message_args_check", {"args": "'null'"}),
    ("outbox_message_kwargs_check", {"kwargs": "'[]'"}),
    ("outbox_message_kwargs_check", {"kwargs": "'7'"}),
    ("outbox_message_headers_check", {"headers": "'[]'"}),
    ("outbox_message_headers_check", {"headers": """'{"tenant": 7}'"""}),
    ("outbox_message_headers_check", {"headers": """'{"a": "x", "tenant": null}'"""}),
    ("outbox_message_headers_check", {"headers": """'{"tenant": {"a": "x"}}'"""}),
    ("outbox_message_body_hash_check", {"body_hash": "'\\xab'"}),
    ("outbox_message_ordering_key_check", {"ordering_key": "''"}),
    ("outbox_message_ordering_key_check", {"ordering_key": "repeat('x', 256)"}),
    ("outbox_message_unique_key_check", {"unique_key": "''"}),
    ("outbox_message_unique_key_check", {"unique_key": "repeat('x', 256)"}),
    ("outbox_message_key_prev_check", {"key_prev": ID}),
    ("outbox_message_key_prev_check", {"ordering_key": "NULL"}),
    ("outbox_message_order_check", {"priority": "5"}),
    ("outbox_message_order_check", {"held": "true"}),
    ("outbox_leader_singleton_check", {"singleton": "false"}),
    ("outbox_leader_epoch_check", {"epoch": "-1"}),
    ("outbox_leader_holder_check", {"holder": "NULL", "holds_lock": "true"}),
    ("outbox_leader_last_seq_check", {"base_seq": "5", "last_seq": "4"}),
    ("outbox_due_attempt_check", {"attempt": "-1"}),
    ("outbox_due_publication_check", {"publication": "-1"}),
    ("outbox_due_reason_check", {"reason": "'whim'"}),
    ("outbox_due_blocked_check", {"blocked_by": "'whim'"}),
    ("outbox_due_blocked_check", {"blocked_by": "'pause'"}),
    ("outbox_due_blocked_check", {"blocked_by": "'key'"}),
    ("outbox_key_kind_check", {"kind": "'whim'"}),
    ("outbox_key_key_check", {"key": "''"}),
    ("outbox_key_key_check", {"key": "repeat('x', 256)"}),
    ("outbox_key_body_hash_check", {"body_hash": "'\\xab'"}),
    ("outbox_rejected_count_check", {"count": "0"}),
    ("inbox_receipt_status_check", {"status": "'running'"}),
    ("inbox_receipt_body_hash_check", {"body_hash": "'\\xab'"}),
    ("inbox_retry_kind_check", {"kind": "'whim'", "waits_for": "NULL"}),
    ("inbox_retry_attempt_check", {"attempt": "-1"}),
    ("inbox_retry_waits_for_check", {"kind": "'failure'"}),
    ("inbox_dead_letter_category_check", {"category": "'whim'"}),
    ("inbox_dead_letter_attempts_check", {"attempts": "-1"}),
    ("inbox_dead_letter_message_check", {"message": "'[]'"}),
    ("inbox_consumer_receipt_timeout_check", {"receipt_timeout": "'0'"}),
    ("inbox_consumer_receipt_timeout_check", {"receipt_timeout": "'-1 s'"}),
    ("inbox_consumer_policy_check", {"policy": "'[]'"}),
]

Connection = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture(scope="module")
def emptied(cluster: Cluster, template: str) -> Iterator[Connection]:
    """Each test works in a transaction that is rolled back; the leader's row is taken away, so that one fits."""
    with cluster.database("checks", template) as url, psycopg.connect(url) as connection:
        connection.execute("DELETE FROM outbox_leader")
        connection.commit()
        yield connection
        connection.rollback()


def insert(connection: Connection, table: str, row: dict[str, str]) -> None:
    columns, values = ", ".join(row), ", ".join(row.values())
    with connection.transaction(force_rollback=True):
        connection.execute(f"INSERT INTO {table} ({columns}) VALUES ({values})".encode())  # noqa: S608


def table_of(constraint: str) -> str:
    return next(table for table in GOOD if constraint.startswith(f"{table}_"))


@pytest.mark.parametrize("table", GOOD)
def test_a_good_row_passes(emptied: Connection, table: str) -> None:
    insert(emptied, table, GOOD[table])


@pytest.mark.parametrize(("constraint", "change"), REFUSED, ids=[f"{name} {change}" for name, change in REFUSED])
def test_a_bad_row_is_refused_by_its_constraint(emptied: Connection, constraint: str, change: dict[str, str]) -> None:
    table = table_of(constraint)
    with pytest.raises(psycopg.errors.CheckViolation) as refused:
        insert(emptied, table, GOOD[table] | change)
    diagnosis = refused.value.diag
    assert (diagnosis.constraint_name, diagnosis.table_name) == (constraint, table)


MESSAGES = [(name, change) for name, change in REFUSED if name.startswith("outbox_message_")]
SECRET = "hunter2"
CARRIER = {
    "args": f"""'["{SECRET}"]'""",
    "kwargs": f"""'{{"pin": "{SECRET}"}}'""",
    "headers": f"""'{{"h": "{SECRET}"}}'""",
}


@pytest.mark.parametrize(("constraint", "change"), MESSAGES, ids=[f"{name} {change}" for name, change in MESSAGES])
def test_a_refused_message_is_named_in_words_and_not_shown(
    emptied: Connection, constraint: str, change: dict[str, str]
) -> None:
    """PostgreSQL's own error for a CHECK has the whole row in its DETAIL, and logs keep it."""
    with pytest.raises(psycopg.errors.CheckViolation) as refused:
        insert(emptied, "outbox_message", GOOD["outbox_message"] | CARRIER | change)
    diagnosis = refused.value.diag
    assert diagnosis.constraint_name == constraint
    assert diagnosis.message_detail is None
    assert diagnosis.message_primary is not None
    assert re.fullmatch(r"this message could not run: [ -~]{20,100}", diagnosis.message_primary)
    everything = [str(refused.value), *(str(getattr(diagnosis, name)) for name in dir(diagnosis) if name[0] != "_")]
    assert SECRET not in "".join(everything)


def test_each_rule_says_something_of_its_own(emptied: Connection) -> None:
    said: dict[str, set[str | None]] = {}
    for constraint, change in MESSAGES:
        with pytest.raises(psycopg.errors.CheckViolation) as refused:
            insert(emptied, "outbox_message", GOOD["outbox_message"] | change)
        said.setdefault(constraint, set()).add(refused.value.diag.message_primary)
    assert all(len(texts) == 1 for texts in said.values())
    assert len(set.union(*said.values())) == len(said) == 14


def test_there_is_only_ever_one_leader_row(emptied: Connection) -> None:
    with emptied.transaction(force_rollback=True):
        leader = GOOD["outbox_leader"]
        statement = f"INSERT INTO outbox_leader ({', '.join(leader)}) VALUES ({', '.join(leader.values())})"  # noqa: S608
        emptied.execute(statement.encode())
        with pytest.raises(psycopg.errors.UniqueViolation):
            emptied.execute(statement.encode())


def test_no_constraint_is_left_out_here(emptied: Connection) -> None:
    found = emptied.execute(
        "SELECT conname FROM pg_constraint WHERE contype = 'c' AND connamespace = 'public'::regnamespace"
    )
    # The rules of a message are one function, which raises in the name of the rule.
    rules = {constraint for constraint, _ in MESSAGES}
    assert {name for (name,) in found} - {"outbox_message_check"} == {name for name, _ in REFUSED} - rules
    source = emptied.execute("SELECT prosrc FROM pg_proc WHERE proname = 'outbox_message_check'").fetchone()
    assert source is not None
    raised = set(re.findall(r"^ +WHEN .* THEN '(\w+)'$", source[0], re.MULTILINE))
    assert {f"outbox_message_{rule}_check" for rule in raised} == rules
    tables = emptied.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    assert {name for (name,) in tables} == {*GOOD, "outbox_alembic_version"}

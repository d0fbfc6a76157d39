"""`outbox pause`, `resume` and `status` against a real database."""

import json

import psycopg
import pytest
from click.testing import CliRunner, Result

from relay.cli import commands


def run(database: str, *arguments: str) -> Result:
    return CliRunner().invoke(commands, arguments, env={"OUTBOX_DATABASE_URL": database}, prog_name="outbox")


def audit(database: str) -> list[tuple[str, str, str]]:
    with psycopg.connect(database) as connection:
        return connection.execute("SELECT action, why, detail->>'queue' FROM outbox_audit ORDER BY id").fetchall()


def test_pause_and_resume_are_told_and_audited(database: str) -> None:
    done = run(database, "pause", "mail", "--reason", "smtp is down", "--for", "30m")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("queue mail is paused until 20")
    assert run(database, "pause", "--all", "--reason", "upgrade").stdout == (
        "everything is paused until it is resumed: upgrade\n"
    )
    state = run(database, "status")
    assert "PAUSED     queue mail by " in state.stdout
    assert "PAUSED     everything by " in state.stdout
    ended = run(database, "resume", "--all")
    assert ended.stdout.endswith(": upgrade; still paused: queue mail\n")
    assert run(database, "resume", "mail").exit_code == 0
    again = run(database, "resume", "mail")
    assert (again.exit_code, again.stderr) == (3, "outbox: queue mail was not paused\n")
    assert audit(database) == [
        ("pause", "smtp is down", "mail"),
        ("pause", "upgrade", "*"),
        ("resume", "upgrade", "*"),
        ("resume", "smtp is down", "mail"),
    ]


def test_a_pause_that_has_run_out_is_none(database: str) -> None:
    run(database, "pause", "mail", "--reason", "x")
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE outbox_pause SET paused_until = clock_timestamp()")
    assert json.loads(run(database, "status", "--json").stdout)["pauses"] == []
    assert run(database, "resume", "mail").exit_code == 3


@pytest.mark.parametrize(
    "arguments",
    [
        ("pause", "--reason", "x"),
        ("pause", "mail", "--all", "--reason", "x"),
        ("pause", "a b", "--reason", "x"),
        ("pause", "*", "--reason", "x"),
        ("pause", "mail", "--reason", " "),
        ("pause", "mail", "--reason", "a\nb"),
        ("pause", "mail", "--reason", "x", "--for", "soon"),
        ("pause", "mail", "--reason", "x", "--for", "0s"),
        ("resume",),
    ],
)
def test_a_mistake_writes_nothing(database: str, arguments: tuple[str, ...]) -> None:
    refused = run(database, *arguments)
    assert (refused.exit_code, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert audit(database) == []


def test_fail_on_tells_a_bad_answer_from_none(database: str) -> None:
    result = run(database, "status", "--json", "--fail-on", "leader,age=1s,backlog=1,parked=1")
    assert (result.exit_code, result.stderr) == (6, "outbox: no relay leads\n")
    assert json.loads(result.stdout)["leader"] is None
    assert run(database, "status", "--fail-on", "age=1s").exit_code == 0
    assert run(database, "status", "--fail-on", "nonsense").exit_code == 2


def test_a_database_of_another_cluster_is_told_not_refused(database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE outbox_leader SET system_id = 1")
    result = run(database, "status")
    assert result.exit_code == 0
    assert "--adopt" in result.stdout


def test_parked_messages_are_grouped_by_what_they_wait_for(database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute(
            "INSERT INTO outbox_due (message_id, due_at, reason, queue, blocked_by, why, parked_at)"
            " SELECT gen_random_uuid(), clock_timestamp(), 'parked', 'mail', 'queue', 'NO_ROUTE', clock_timestamp()"
            " FROM generate_series(1, 3)"
        )
    assert (
        "parked     3 messages of queue mail: the broker has no such queue (NO_ROUTE)" in run(database, "status").stdout
    )
    assert run(database, "status", "--fail-on", "parked=3").exit_code == 6

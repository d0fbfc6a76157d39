"""Leadership against a real database: one process, its own lease thread, and what is done to its connections."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql

from outbox import Message, Outbox
from outbox.errors import ConfigurationError, Unreachable
from relay.database import connect
from relay.embedded import wait_until
from relay.events import DatabaseConnected, Event, LeadershipGained, LeadershipLost, PoolerFound
from relay.lead import Leadership
from relay.lease import Term
from relay.queries import queries_for
from relay.registry import Registration
from relay.settings import RelaySettings
from tests.support.proxy import Proxy

ROW = "SELECT epoch, holder, holds_lock, expires_at > clock_timestamp() FROM outbox_leader"
LEASE_SESSIONS = "FROM pg_stat_activity WHERE application_name = 'outbox lease' AND datname = current_database()"

TERMINATE_HOLDER = """
    SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
SQUAT = "SELECT pg_advisory_lock(hashint8extended(%s, 'outbox_leader'::regclass::oid::bigint))"
WAITS = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"


class Candidate:
    """A relay's leadership with a work thread that takes what it gets."""

    def __init__(self, url: str, ttl: float = 30.0, resign_seconds: float = 15.0) -> None:
        self.settings = RelaySettings(
            database_url=url, broker_url="redis://h/0", lease_ttl=ttl, resign_seconds=resign_seconds
        )
        queries = queries_for("public")
        self.registration = Registration(self.settings, queries, "test")
        self.events: list[Event] = []
        self.leadership = Leadership(self.settings, queries, self.registration, self.events.append)

    def lead(self, deadline: float = 10.0) -> Term:
        return wait_until(lambda: self.leadership.wait_for_term(0.05), deadline, "a term") or Term(0, self.holder, 0)

    @property
    def holder(self) -> UUID:
        return self.settings.holder

    def saw(self, kind: type) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture
def candidate(database: str) -> Iterator[Callable[..., Candidate]]:
    started: list[Candidate] = []

    def start(url: str = database, **options: float) -> Candidate:
        made = Candidate(url, **options)
        made.leadership.start()
        started.append(made)
        return made

    yield start
    for each in started:
        each.leadership.stop()


@pytest.fixture
def admin(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


def row(admin: psycopg.Connection[Any]) -> tuple[object, ...]:
    found: tuple[object, ...] = admin.execute(ROW).fetchall()[0]
    return found


def reconnected(leader: Candidate, before: int) -> bool:
    return len(leader.saw(DatabaseConnected)) > before


def test_the_row_says_holds_lock_and_the_lock_is_held(
    candidate: Callable[..., Candidate], admin: psycopg.Connection[Any]
) -> None:
    leader = candidate()
    term = leader.lead()
    assert row(admin) == (term.epoch, leader.holder, True, True)
    probe = {"epoch": term.epoch}
    assert admin.execute(queries_for("public").lock, probe).fetchone() == (False,)
    leader.leadership.stop()
    assert row(admin)[1:3] == (None, False)
    assert admin.execute(queries_for("public").lock, probe).fetchone() == (True,)


def test_a_released_lease_is_taken_at_once(candidate: Callable[..., Candidate]) -> None:
    leader = candidate()
    first = leader.lead()
    standby = candidate()
    assert standby.leadership.wait_for_term(0.3) is None
    leader.leadership.stop()
    assert standby.lead(deadline=5).epoch == first.epoch + 1


def test_a_dead_session_is_replaced_long_before_the_lease_runs_out(
    candidate: Callable[..., Candidate], admin: psycopg.Connection[Any], database: str
) -> None:
    """A holder whose session is gone and who does not come back: what a kill -9 leaves behind."""
    queries = queries_for("public")
    with connect(database, 30.0, "dead") as dead:
        dead.execute(queries.lock, {"epoch": 1})
        admin.execute(
            "UPDATE outbox_leader SET epoch = 1, holder = gen_random_uuid(), holds_lock = true,"
            " expires_at = clock_timestamp() + interval '30 s'"
        )
        standby = candidate()
        assert standby.leadership.wait_for_term(0.6) is None, "the lock is held: the lease stands"
    assert standby.lead(deadline=5).epoch == 2


def test_a_free_lock_means_nothing_unless_the_row_says_that_it_is_held(
    candidate: Callable[..., Candidate], admin: psycopg.Connection[Any]
) -> None:
    admin.execute(
        "UPDATE outbox_leader SET epoch = 1, holder = gen_random_uuid(), holds_lock = false,"
        " expires_at = clock_timestamp() + interval '30 s'"
    )
    assert candidate().leadership.wait_for_term(1.0) is None


def test_a_suspected_leader_that_renews_in_the_grace_keeps_its_lease(
    candidate: Callable[..., Candidate], admin: psycopg.Connection[Any]
) -> None:
    """The expiry moves every 50 ms although nobody has the lock: it lives, whatever the lock says."""
    admin.execute(
        "UPDATE outbox_leader SET epoch = 1, holder = gen_random_uuid(), holds_lock = true,"
        " expires_at = clock_timestamp() + interval '30 s'"
    )
    stop = threading.Event()

    def renew() -> None:
        while not stop.wait(0.05):
            admin.execute("UPDATE outbox_leader SET expires_at = clock_timestamp() + interval '30 s'")

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        assert candidate().leadership.wait_for_term(1.2) is None
    finally:
        stop.set()
        thread.join()


def test_a_terminated_lease_session_costs_no_leadership(
    candidate: Callable[..., Candidate], admin: psycopg.Connection[Any]
) -> None:
    leader = candidate()
    term = leader.lead()
    standby = candidate()
    standby.leadership.wait_for_term(0.2)
    for _ in range(3):
        before = len(leader.saw(DatabaseConnected))
        assert admin.execute(TERMINATE_HOLDER).fetchall() == [(True,)]
        wait_until(partial(reconnected, leader, before), 5, "the lease thread to reconnect")
        wait_until(lambda: row(admin)[2], 5, "the lock again")
    assert standby.leadership.wait_for_term(0.6) is None
    assert leader.leadership.holds(term)
    assert row(admin)[:2] == (term.epoch, leader.holder)


def test_while_the_lock_cannot_be_had_the_row_says_so(
    candidate: Callable[..., Candidate], admin: psycopg.Connection[Any]
) -> None:
    """The session is terminated while somebody squats on its lock: the leader stays, and no standby is misled."""
    leader = candidate(ttl=1.0)
    term = leader.lead()
    squatting = threading.Thread(target=admin.execute, args=[SQUAT, [term.epoch]])
    squatting.start()
    with psycopg.connect(leader.settings.database_url, autocommit=True) as other:
        wait_until(lambda: other.execute(WAITS).fetchone() is not None, 5, "the squatter to wait")
        other.execute(f"SELECT pg_terminate_backend(pid) {LEASE_SESSIONS}")
        squatting.join(5)
        wait_until(lambda: row(other)[2] is False, 5, "the truth in the row")
        standby = candidate(ttl=1.0)
        admin.execute("SELECT pg_advisory_unlock_all()")
        assert standby.leadership.wait_for_term(0.5) is None
        wait_until(lambda: row(other)[2], 5, "the lock to be taken again at a renewal")
    assert leader.leadership.holds(term)


def test_an_ended_term_is_followed_by_an_own_new_epoch(
    candidate: Callable[..., Candidate], admin: psycopg.Connection[Any]
) -> None:
    leader = candidate()
    first = leader.lead()
    standby = candidate()
    standby.leadership.wait_for_term(0.2)
    leader.leadership.end(first, "the work connection broke")
    assert leader.lead().epoch == first.epoch + 1
    assert row(admin)[1] == leader.holder


def test_no_term_is_taken_for_a_work_thread_that_does_not_wait(
    candidate: Callable[..., Candidate], admin: psycopg.Connection[Any]
) -> None:
    busy = candidate(ttl=1.0)
    first = busy.lead()
    busy.leadership.end(first, "its work thread hangs")
    standby = candidate(ttl=1.0)
    assert standby.lead(deadline=5).epoch == first.epoch + 1


def test_an_expiry_too_far_ahead_is_a_clock_that_jumped_back(
    candidate: Callable[..., Candidate], admin: psycopg.Connection[Any]
) -> None:
    admin.execute(
        "UPDATE outbox_leader SET epoch = 1, holder = gen_random_uuid(),"
        " expires_at = clock_timestamp() + interval '61 s'"
    )
    assert candidate(ttl=30.0).lead(deadline=5).epoch == 2


def test_a_leader_without_a_broker_resigns_only_for_a_relay_that_has_one(
    candidate: Callable[..., Candidate],
) -> None:
    leader = candidate(resign_seconds=1.0, ttl=1.0)
    term = leader.lead()
    leader.registration.broker_failed("refused")
    standby = candidate(resign_seconds=1.0, ttl=1.0)
    wait_until(lambda: leader.registration.broker_lost_for() > 2.0, 5, "its patience to end")
    assert leader.leadership.holds(term), "nobody can do better"
    standby.registration.broker_answered()

    def takes_over() -> Term | None:
        standby.registration.broker_answered()
        return standby.leadership.wait_for_term(0.1)

    wait_until(takes_over, 5, "the standby to take over")
    assert [event.why for event in leader.saw(LeadershipLost) if isinstance(event, LeadershipLost)] == [
        "the broker cannot be reached from here, and another relay reaches it"
    ]
    standby.leadership.stop()
    assert leader.lead(deadline=5).epoch > term.epoch, "alone, it is better than nobody"


def test_a_crash_of_the_lease_thread_is_raised_to_who_waits(database: str) -> None:
    crashing = Candidate(database)

    def crash(event: Event) -> None:
        if isinstance(event, LeadershipGained):
            raise ZeroDivisionError

    leadership = Leadership(crashing.settings, queries_for("public"), crashing.registration, crash)
    leadership.start()
    with pytest.raises(ZeroDivisionError):
        wait_until(lambda: leadership.wait_for_term(0.1), 5, "the crash")
    leadership.stop()


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_connections_are_read_committed_and_durable_whatever_the_role_says(
    database: str, admin: psycopg.Connection[Any], level: str
) -> None:
    name = admin.info.dbname
    change = sql.SQL("ALTER DATABASE {} SET {} = {}")
    for setting, value in (("default_transaction_isolation", level), ("synchronous_commit", "off")):
        admin.execute(change.format(sql.Identifier(name), sql.Identifier(setting), sql.Literal(value)))
    with connect(database, 3.0, "test") as connection:
        assert connection.execute("SHOW transaction_isolation").fetchone() == ("read committed",)
        assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)


def test_a_lease_and_a_window_commit_durably_in_a_session_that_says_otherwise(
    admin: psycopg.Connection[Any],
) -> None:
    """As behind a pooler, where another client may have left its setting."""
    admin.execute("""
        CREATE TABLE commits (window_no bigint, setting text);
        CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            INSERT INTO commits VALUES (NEW.window_no, current_setting('synchronous_commit'));
            RETURN NULL;
        END $$;
        CREATE TRIGGER note AFTER UPDATE OF epoch, window_no ON outbox_leader FOR EACH ROW EXECUTE FUNCTION note();
        SET synchronous_commit = off""")
    queries, holder = queries_for("public"), uuid4()
    lease = {"holder": holder, "ttl": timedelta(seconds=30), "seen": 0, "lock": False, "dead": None}
    assert admin.execute(queries.acquire, lease).fetchone() == (1,)
    fence = {"holder": holder, "epoch": 1, "page": 10}
    for statement, window in ((queries.open, {}), (queries.turn, {"window_no": 1})):
        with admin.transaction():
            Outbox().add(admin, Message("billing.charge"))
        assert admin.execute(statement, fence | window).fetchone() is not None
    assert admin.execute("SELECT * FROM commits ORDER BY 1").fetchall() == [(0, "on"), (1, "on"), (2, "on")]


def test_behind_a_pooler_there_is_a_lease_and_nothing_else(
    candidate: Callable[..., Candidate], pooled_database: str, admin: psycopg.Connection[Any]
) -> None:
    leader = candidate(url=pooled_database, ttl=1.0)
    term = leader.lead()
    assert not leader.leadership.session_features
    assert len(leader.saw(PoolerFound)) == 1
    assert row(admin) == (term.epoch, leader.holder, False, True)
    assert admin.execute("SELECT FROM pg_locks WHERE locktype = 'advisory'").fetchone() is None
    leader.leadership.stop()
    assert row(admin)[1] is None


def test_behind_a_pooler_a_role_of_another_isolation_is_refused_by_name(
    pooled_database: str, admin: psycopg.Connection[Any]
) -> None:
    admin.execute(
        sql.SQL("ALTER DATABASE {} SET default_transaction_isolation = 'serializable'").format(
            sql.Identifier(admin.info.dbname)
        )
    )
    with pytest.raises(ConfigurationError, match="ALTER ROLE"):
        connect(pooled_database, 3.0, "test")


def test_an_answer_that_never_comes_is_given_up(database: str, proxy_to: Callable[[int], Proxy]) -> None:
    with psycopg.connect(database) as direct:
        proxy = proxy_to(direct.info.port)
    with connect(proxy.url(database), 3.0, "test", deadline=0.5) as connection:
        proxy.swallow_replies()
        started = time.monotonic()
        with pytest.raises(psycopg.OperationalError, match="no answer for"):
            connection.execute("SELECT 1")
        assert time.monotonic() - started < 5
        assert connection.closed


def test_an_answer_that_nobody_wants_any_more_is_not_waited_for(database: str) -> None:
    wanted = threading.Event()
    wanted.set()
    with connect(database, 3.0, "test", wanted=wanted.is_set) as connection:
        threading.Timer(0.2, wanted.clear).start()
        with pytest.raises(psycopg.OperationalError, match="not wanted any more"):
            connection.execute("SELECT pg_sleep(30)")


@pytest.mark.parametrize("path", ["/no_such_database", "/postgres?user=no_such_role"])
def test_a_database_that_refuses_us_at_the_start_is_fatal(
    candidate: Callable[..., Candidate], database: str, path: str
) -> None:
    refused = candidate(url=database.rpartition("/")[0] + path)
    with pytest.raises(Unreachable, match="does not exist"):
        wait_until(lambda: refused.leadership.wait_for_term(0.1), 5, "the refusal")


def test_a_role_without_rights_is_told_at_the_start(
    candidate: Callable[..., Candidate], database: str, admin: psycopg.Connection[Any]
) -> None:
    with _role(admin) as role:
        refused = candidate(url=f"{database}?user={role}")
        with pytest.raises(ConfigurationError, match="permission denied"):
            wait_until(lambda: refused.leadership.wait_for_term(0.1), 5, "the refusal")


@contextlib.contextmanager
def _role(admin: psycopg.Connection[Any]) -> Iterator[str]:
    name = f"powerless_{admin.info.backend_pid}"
    admin.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(name)))
    try:
        yield name
    finally:
        admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))

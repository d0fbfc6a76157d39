"""Lines that are cut between a request and its answer: done or not done, nobody can tell.

Each cut is one of two: the server got the request and the answer is lost, or it never got it. What is ambiguous for
the application is settled by its dedup key, what is ambiguous for the relay by the database.
"""

from collections.abc import Callable

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from outbox import Message, Outbox
from relay.embedded import DeadlineExceeded, wait_until
from relay.queries import queries_for
from tests.support import ledger
from tests.support.processes import Programs
from tests.support.proxy import Proxy, Trap
from tests.support.scene import Scene, opened

ProxyTo = Callable[[int], Proxy]


def port_of(url: str) -> int:
    found = sa.make_url(url).port
    assert found is not None
    return found


class CarefulApplication:
    """Repeats a transaction whose end it does not know, with the same dedup key."""

    def __init__(self, url: str) -> None:
        self.engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://", 1))
        self._sessions = sessionmaker(self.engine)
        self.failures = 0

    def order(self, number: int) -> None:
        while not self._tried(number):
            self.failures += 1

    def _tried(self, number: int) -> bool:
        try:
            with self._sessions.begin() as session:
                added = Outbox().add(session, Message("a.task", kwargs={"order": number}), dedup_key=f"order:{number}")
                if not added.duplicate:
                    ledger.intend(session, added.id)
        except sa.exc.OperationalError:
            return False
        return True


def cut_commits(scene: Scene, proxy: Proxy, cuts: int) -> None:
    application = CarefulApplication(proxy.url(scene.database))
    for number in range(cuts):
        trap = proxy.cut_at(b"COMMIT", forwarded=number % 2 == 0)
        application.order(number)
        trap.wait()
    application.engine.dispose()
    assert application.failures == cuts
    scene.settle()
    assert scene.query("SELECT count(*) FROM outbox_message") == [(cuts,)], "each order once"
    scene.require_nothing_given_up()


def test_a_commit_without_an_answer_is_safe_to_repeat(
    programs: Programs, database: str, broker_url: str, proxy_to: ProxyTo
) -> None:
    with opened(programs, database, broker_url) as scene:
        scene.start_relay()
        cut_commits(scene, proxy_to(port_of(database)), 6)


@pytest.mark.chaos
@pytest.mark.timeout(300)
def test_many_commits_without_an_answer_are_safe_to_repeat(
    programs: Programs, database: str, broker_url: str, proxy_to: ProxyTo
) -> None:
    with opened(programs, database, broker_url) as scene:
        scene.start_relay()
        cut_commits(scene, proxy_to(port_of(database)), 100)


def beginning(statement: bytes) -> bytes:
    """What goes over the wire as it is written: everything before the first parameter."""
    return statement.split(b"%(")[0][:100]


STATEMENTS = {
    name: beginning(getattr(queries_for("public"), name)) for name in ("open", "turn", "advance", "close", "renew")
}
BATCH = 10


def spelled(proxy: Proxy, trap: Trap) -> bool:
    """A statement that the connection has prepared is named, not spelled: a new one spells it again."""
    proxy.cut()
    try:
        trap.wait(3)
    except DeadlineExceeded:
        return False  # that cut met a connection in the making
    return True


def cut_relay(scene: Scene, proxy: Proxy, pattern: bytes, cuts: int) -> None:
    scene.start_relay(database=proxy.url(scene.database))
    with scene.writer.writing(every=0.03):
        scene.arrivals.wait_for_more(10)
        for number in range(cuts):
            trap = proxy.cut_at(pattern, forwarded=number % 2 == 0)
            wait_until(lambda trap=trap: spelled(proxy, trap), 30, "the statement")  # type: ignore[misc]
            scene.arrivals.wait_for_more(10)
    verdict = scene.settle()
    assert verdict.repeats <= 2 * cuts * BATCH, "each cut repeats the batch in flight at most"
    scene.require_nothing_given_up()


@pytest.mark.parametrize("name", STATEMENTS)
def test_no_loss_when_the_answer_is_lost_to(
    name: str, programs: Programs, database: str, broker_url: str, proxy_to: ProxyTo
) -> None:
    with opened(programs, database, broker_url, {"OUTBOX_BATCH_SIZE": str(BATCH)}) as scene:
        cut_relay(scene, proxy_to(port_of(database)), STATEMENTS[name], 2)


@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", STATEMENTS)
def test_no_loss_when_many_answers_are_lost_to(
    name: str, programs: Programs, database: str, broker_url: str, proxy_to: ProxyTo
) -> None:
    with opened(programs, database, broker_url, {"OUTBOX_BATCH_SIZE": str(BATCH)}) as scene:
        cut_relay(scene, proxy_to(port_of(database)), STATEMENTS[name], 100)


def test_no_loss_when_the_answer_of_the_broker_is_lost(
    programs: Programs, database: str, broker_url: str, proxy_to: ProxyTo
) -> None:
    with opened(programs, database, broker_url, {"OUTBOX_BATCH_SIZE": str(BATCH)}) as scene:
        proxy = proxy_to(port_of(broker_url))
        scene.start_relay(broker_url=proxy.url(broker_url))
        with scene.writer.writing(every=0.03):
            for forwarded in (True, False, True, False):
                proxy.cut_at(b"LPUSH", forwarded=forwarded).wait()
                scene.arrivals.wait_for_more(10)
        scene.settle()
        scene.require_nothing_given_up()
        assert "leadership_lost" not in scene.relay.output()

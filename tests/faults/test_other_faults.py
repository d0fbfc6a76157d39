"""Workers, broker and database that die under load: everything committed still takes effect exactly once."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
import redis

from relay.embedded import Postgres, Process, Valkey, wait_until
from tests.support import ledger
from tests.support.processes import Programs, wait_for_line
from tests.support.writers import Writer

ENVIRONMENT = {"OUTBOX_LEASE_TTL": "1", "LEDGER_RECEIPT_TIMEOUT": "2", "LEDGER_VISIBILITY_TIMEOUT": "3"}


class Scene:
    """A relay, workers and a writer between one database and one broker."""

    def __init__(self, programs: Programs, database: str, broker_url: str) -> None:
        self.programs = programs
        self.database = database
        self.broker_url = broker_url
        ledger.create(database)
        self.writer = Writer(database)
        programs.environment |= {"OUTBOX_DATABASE_URL": database, "OUTBOX_BROKER_URL": broker_url, **ENVIRONMENT}
        programs.relay(database, broker_url, "--name", "relay-1", "-v")
        self._newest: Process | None = None

    def worker(self) -> Process:
        self._newest = self.programs.worker("tests.support.ledger_app", "--without-gossip", "--without-mingle")
        wait_for_line(self._newest, r"ready\.")
        return self._newest

    def supervise(self) -> None:
        """As systemd would: kombu 5.7.0 ends the worker when Redis dies while it holds unacknowledged messages."""
        if self._newest is not None and not self._newest.alive:
            self._newest = self.programs.worker("tests.support.ledger_app", "--without-gossip", "--without-mingle")

    def applied(self) -> int:
        return ledger.check(self.database).applied

    def nowhere(self) -> bool:
        """Neither in the queue nor among the messages that a worker has taken."""
        with redis.Redis.from_url(self.broker_url) as broker:
            return not broker.llen("celery") and not broker.hlen("unacked")

    def wait_for_effects(self, more: int = 30) -> None:
        target = self.applied() + more

        def reached() -> bool:
            self.supervise()
            return self.applied() >= target

        wait_until(reached, 30, f"{more} more effects")

    def settle(self) -> None:
        def settled() -> bool:
            self.supervise()
            return ledger.check(self.database).settled

        try:
            wait_until(settled, 60, "every message to reach its end")
        finally:
            ledger.assert_balanced(self.database)


@contextmanager
def opened(programs: Programs, database: str, broker_url: str) -> Iterator[Scene]:
    made = Scene(programs, database, broker_url)
    try:
        yield made
    finally:
        made.writer.close()


@pytest.fixture
def scene(programs: Programs, database: str, broker_url: str) -> Iterator[Scene]:
    with opened(programs, database, broker_url) as made:
        yield made


def kill_workers(scene: Scene, rounds: int, *, children: bool) -> None:
    worker = scene.worker()
    # Less than one worker can do between two kills: reconcile asks only the receipts so far, and a queue that is always
    # longer than the receipt timeout would fill with copies.
    with scene.writer.writing(pause=0.005, every=0.15):
        for _ in range(rounds):
            scene.wait_for_effects()
            worker.kill(children=children)
            worker = scene.worker()
    scene.settle()


@pytest.mark.parametrize("children", [True, False], ids=["with its children", "the main process only"])
def test_exactly_once_effects_when_workers_are_killed(scene: Scene, children: bool) -> None:
    kill_workers(scene, 2, children=children)


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_exactly_once_effects_when_many_workers_are_killed(scene: Scene) -> None:
    kill_workers(scene, 30, children=True)


def freeze_publish_kill(scene: Scene, rounds: int) -> None:
    """The worker's BRPOP takes the message out of Redis before it is recorded anywhere: Celery alone loses it."""
    relay = scene.programs.started[0]
    for _ in range(rounds):
        worker = scene.worker()
        worker.freeze()
        said = len(relay.output())
        scene.writer.write(1, rollbacks=0)
        wait_for_line(relay, "page_published", since=said)
        assert scene.nowhere(), "the frozen worker's BRPOP was served"
        worker.kill()
        assert ledger.check(scene.database).lost == 1
        healer = scene.worker()
        scene.settle()
        healer.kill()


def test_no_loss_when_the_broker_hands_a_message_to_a_dying_worker(scene: Scene) -> None:
    freeze_publish_kill(scene, 1)


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_no_loss_when_the_broker_hands_many_messages_to_dying_workers(scene: Scene) -> None:
    freeze_publish_kill(scene, 50)


def test_no_loss_when_the_broker_forgets_everything(
    programs: Programs, database: str, forgetful_valkey: Valkey
) -> None:
    with opened(programs, database, forgetful_valkey.url()) as scene:
        scene.worker()
        with scene.writer.writing(pause=0.005):
            for _ in range(2):
                scene.wait_for_effects()
                forgetful_valkey.kill()
                forgetful_valkey.start()
        scene.settle()


def test_an_outage_of_the_broker_is_not_a_failure(programs: Programs, database: str, own_valkey: Valkey) -> None:
    with opened(programs, database, own_valkey.url()) as scene:
        scene.worker()
        relay = programs.started[0]
        scene.writer.write(20)
        scene.wait_for_effects(1)
        own_valkey.kill()
        scene.writer.write(50)
        wait_for_line(relay, "broker_unavailable", deadline=20)
        with psycopg.connect(database) as connection:
            assert connection.execute("SELECT count(*) FROM inbox_dead_letter").fetchone() == (0,)
            assert connection.execute("SELECT expires_at > clock_timestamp() FROM outbox_leader").fetchone() == (True,)
        own_valkey.start()
        wait_for_line(relay, "broker_recovered", deadline=20)
        scene.settle()
        assert "leadership_lost" not in relay.output(), "a broker that is away costs no lease"


def crash_the_database(rounds: int, programs: Programs, own_cluster: Postgres, database: str, broker_url: str) -> None:
    with opened(programs, database, broker_url) as scene:
        scene.worker()
        with scene.writer.writing(pause=0.005):
            for _ in range(rounds):
                scene.wait_for_effects()
                own_cluster.crash()
                own_cluster.start()
        scene.settle()
        assert programs.started[0].alive, "the relay outlives its database"


def test_no_loss_and_no_phantom_when_the_database_crashes(
    programs: Programs, own_cluster: Postgres, own_database: str, broker_url: str
) -> None:
    crash_the_database(2, programs, own_cluster, own_database, broker_url)


@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_no_loss_and_no_phantom_when_the_database_crashes_often(
    programs: Programs, own_cluster: Postgres, own_database: str, broker_url: str
) -> None:
    crash_the_database(20, programs, own_cluster, own_database, broker_url)

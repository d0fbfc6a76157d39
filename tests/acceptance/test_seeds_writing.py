"""The writer's side of the source documents S1, S3 and S4, as stories with a real relay, broker and worker."""

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

import psycopg
import pytest
import redis
import sqlalchemy as sa
from sqlalchemy.orm import Session, sessionmaker

from outbox import CancelOutcome, DedupConflict, InvalidMessage, Message, Outbox, OutboxError, State, fingerprint
from relay.embedded import Process, wait_until
from tests.support import ledger
from tests.support.processes import Programs

APPLY = "ledger.apply"


@dataclass
class Shop:
    """A web application: its handlers, each with a transaction of its own."""

    database: str
    outbox: Outbox = field(default_factory=Outbox)

    def __post_init__(self) -> None:
        self.engine = sa.create_engine(self.database.replace("postgresql://", "postgresql+psycopg://", 1))
        self.sessions = sessionmaker(self.engine)

    def start_job(
        self, project: int, *, pause: float = 0.0, before_commit: Callable[[], None] = lambda: None, **options: Any
    ) -> tuple[int, dict[str, str]]:
        """POST /projects/{project}/job: 202 with the new job, or 409 with the one that is at it."""
        with self.sessions.begin() as session:
            message = Message(APPLY, kwargs={"pause": pause}, unique_key=f"project-{project}")
            added = self.outbox.add(session, message, **options)
            if added.existing is not None:
                return 409, {"job": str(added.existing.id), "state": added.existing.state.value}
            ledger.intend(session, added.id)
            before_commit()
            return 202, {"job": str(added.id)}

    def state(self, job: str | UUID) -> State:
        """GET /jobs/{job}"""
        with self.sessions.begin() as session:
            return self.outbox.state(session, job)

    def wait_for(self, state: State, job: str | UUID) -> None:
        wait_until(lambda: self.state(job) is state, 30, f"job {job} to be {state.value}")

    def rejected(self, project: int) -> dict[str, int]:
        with self.sessions.begin() as session:
            return {str(each.live_id): each.count for each in self.outbox.rejected(session, f"project-{project}")}


@pytest.fixture
def shop(database: str) -> Iterator[Shop]:
    ledger.create(database)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE echo (id uuid, told json)")
        connection.execute("CREATE TABLE registration (id int PRIMARY KEY)")
    made = Shop(database)
    yield made
    made.engine.dispose()


@pytest.fixture
def servers(programs: Programs, database: str, broker_url: str) -> Programs:
    """A relay; the worker is started by the test, when its moment has come."""
    programs.environment |= {"OUTBOX_DATABASE_URL": database, "OUTBOX_BROKER_URL": broker_url}
    programs.relay(database, broker_url, "--name", "relay-1")
    return programs


def worker(programs: Programs, name: str = "worker") -> Process:
    return programs.worker("tests.support.ledger_app", "--without-gossip", "--without-mingle", name=name)


# ---- S3: the active-job index


def double_click(shop: Shop, project: int, **options: Any) -> list[tuple[int, dict[str, str]]]:
    """Two requests at once: the first has its answer and not yet its commit when the second waits for it."""
    start = threading.Barrier(2)

    def someone_waits() -> bool:
        with psycopg.connect(shop.database) as connection:
            found = connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            ).fetchone()
        return found == (1,)

    def until_the_other_waits() -> None:
        wait_until(someone_waits, 10, "the other click to wait")

    def click() -> tuple[int, dict[str, str]]:
        start.wait(10)
        return shop.start_job(project, before_commit=until_the_other_waits, **options)

    with ThreadPoolExecutor(2) as pool:
        return sorted(future.result(30) for future in [pool.submit(click), pool.submit(click)])


def test_s3_a_double_click_starts_one_job(shop: Shop, servers: Programs, broker_url: str) -> None:
    (accepted, body), (refused, told) = double_click(shop, 7, pause=1.5)
    job = body["job"]
    assert (accepted, refused) == (202, 409)
    assert told["job"] == job
    assert told["state"] in ("queued", "published")

    # One id finds everything: the row, the broker's copy, the Celery task.
    shop.wait_for(State.PUBLISHED, job)
    assert shop.start_job(7) == (409, {"job": job, "state": "published"})
    with redis.Redis.from_url(broker_url) as broker:
        copies = [json.loads(copy) for copy in broker.lrange("celery", 0, -1)]
    assert [(copy["headers"]["id"], copy["properties"]["correlation_id"]) for copy in copies] == [(job, job)]

    running = worker(servers)
    shop.wait_for(State.RUNNING, job)
    assert shop.start_job(7) == (409, {"job": job, "state": "running"})
    shop.wait_for(State.APPLIED, job)
    wait_until(lambda: f"{APPLY}[{job}] succeeded" in running.output(), 10, "Celery to say so under the same id")

    # The index entry is stale now, and heals itself with the next click.
    accepted, body = shop.start_job(7)
    assert accepted == 202
    assert body["job"] != job
    shop.wait_for(State.APPLIED, body["job"])
    assert shop.rejected(7) == {job: 3}
    assert ledger.assert_balanced(shop.database).applied == 2


def test_s3_a_cancelled_job_is_released_and_never_runs(shop: Shop, servers: Programs) -> None:
    first = worker(servers)
    _, warm = shop.start_job(1)
    shop.wait_for(State.APPLIED, warm["job"])  # the consumer is known: from now on a published job can be cancelled
    first.kill()
    _, body = shop.start_job(7)
    shop.wait_for(State.PUBLISHED, body["job"])
    with shop.sessions.begin() as session:
        assert shop.outbox.cancel(session, body["job"]).outcome is CancelOutcome.CANCELLED
    accepted, following = shop.start_job(7)
    assert accepted == 202
    again = worker(servers, "again")
    shop.wait_for(State.APPLIED, following["job"])
    said = "duplicate absorbed: already cancelled"
    wait_until(lambda: said in again.output(), 20, "the copy of the cancelled job to be absorbed")
    assert shop.state(body["job"]) is State.CANCELLED
    assert ledger.assert_balanced(shop.database).applied == 2


@pytest.mark.parametrize("end", ["applied", "dead", "expired", "discarded", "cancelled"])
def test_s3_every_end_releases_the_key_in_its_own_commit(shop: Shop, end: str) -> None:
    """Also a double click on a stale entry: one of the two takes it over."""
    _, body = shop.start_job(7)
    with shop.sessions.begin() as session:
        session.execute(
            sa.text("INSERT INTO inbox_receipt (message_id, consumer, status) VALUES (:id, :task, :end)"),
            {"id": body["job"], "task": APPLY, "end": end},
        )
        assert shop.start_job(7) == (409, {"job": body["job"], "state": "queued"})  # not before the commit
    assert shop.state(body["job"]).value == end
    (accepted, fresh), (refused, told) = double_click(shop, 7)
    assert (accepted, refused) == (202, 409)
    assert told["job"] == fresh["job"] != body["job"]
    assert shop.rejected(7) == {body["job"]: 1, fresh["job"]: 1}


def test_s3_a_click_that_is_rolled_back_frees_the_way(shop: Shop) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        shop.start_job(7, before_commit=fail)
    assert shop.start_job(7)[0] == 202
    assert shop.rejected(7) == {}


# ---- S1: the deterministic fingerprint


def test_s1_the_fingerprint_of_the_work_is_its_key(shop: Shop, servers: Programs) -> None:
    def receive(payload: dict[str, Any], key: str, request_id: str) -> tuple[UUID, bool]:
        """A webhook; its request id is different each time, so it travels beside the work, not in it."""
        with shop.sessions.begin() as session:
            message = Message("ledger.echo", kwargs=payload, headers={"request_id": request_id}, dedup_key=key)
            added = shop.outbox.add(session, message)
            return added.id, added.duplicate

    order = {"order": {"id": 7, "currency": "EUR"}, "amount": 12.5}
    shuffled = {"amount": 12.5, "order": {"currency": "EUR", "id": 7}}
    whole, again = fingerprint("ledger.echo", order), fingerprint("ledger.echo", shuffled)
    chosen = fingerprint("ledger.echo", order | {"at": "12:00"}, fields=["order.id", "amount"])
    first, _ = receive(order, whole, "a")
    assert receive(shuffled, again, "b") == (first, True)
    second, _ = receive(order, chosen, "c")
    assert second != first
    later = fingerprint("ledger.echo", order | {"at": "12:01"}, fields=["order.id", "amount"])
    assert receive(order, later, "d") == (second, True)
    checksum = fingerprint("ledger.echo", hashlib.sha256(b"a large upload" * 1000).hexdigest())
    third, _ = receive({"path": "/uploads/1"}, checksum, "e")
    assert receive({"path": "/uploads/2"}, checksum, "f") == (third, True), "the checksum says what is the same"
    key = "upload:1"
    fourth, _ = receive({"path": "/uploads/1"}, key, "g")
    with pytest.raises(DedupConflict) as conflict:
        receive({"path": "/uploads/2"}, key, "h")
    assert conflict.value.existing == fourth

    worker(servers)
    for each in (first, second, third, fourth):
        shop.wait_for(State.APPLIED, each)
    with psycopg.connect(shop.database) as connection:
        told = connection.execute("SELECT id, told->'headers'->>'request_id' FROM echo").fetchall()
    assert sorted(told) == sorted([(first, "a"), (second, "c"), (third, "e"), (fourth, "g")])
    assert receive(order, whole, "i") == (first, True)  # applied long ago, and still known


# ---- S4: the bulk upload


@dataclass
class Upload:
    """A file of rows, registered chunk by chunk; each chunk is a transaction."""

    shop: Shop
    name: str
    chunk: int = 20

    @property
    def batch_id(self) -> UUID:
        return uuid5(NAMESPACE_URL, self.name)

    def run(self, rows: Sequence[dict[str, Any]]) -> tuple[int, int, dict[int, Exception]]:
        """How many were added, how many were known, and which chunks failed."""
        added, known, failed = 0, 0, dict[int, Exception]()
        for index in range(0, len(rows), self.chunk):
            try:
                with self.shop.sessions.begin() as session:
                    batch = self._register(session, rows[index : index + self.chunk])
            except (OutboxError, sa.exc.DBAPIError) as error:
                failed[index // self.chunk] = error
                continue
            added += sum(not each.duplicate for each in batch)
            known += sum(each.duplicate for each in batch)
        return added, known, failed

    def _register(self, session: Session, rows: Sequence[dict[str, Any]]) -> Any:
        insert = sa.text("INSERT INTO registration VALUES (:id) ON CONFLICT DO NOTHING")
        session.execute(insert, [{"id": row["id"]} for row in rows])
        messages = [Message("ledger.echo", kwargs=row, dedup_key=f"{self.name}:{row['id']}") for row in rows]
        return self.shop.outbox.add_many(session, messages, batch_id=self.batch_id, chunk_size=7)

    def progress(self) -> Any:
        with self.shop.sessions.begin() as session:
            return self.shop.outbox.batch_progress(session, self.batch_id)


def test_s4_a_bulk_upload_survives_a_bad_chunk_and_its_repetition(shop: Shop, servers: Programs) -> None:
    worker(servers)
    upload = Upload(shop, "upload-2026-11")
    rows: list[dict[str, Any]] = [{"id": number, "price": number / 4} for number in range(100)]
    rows[47]["price"] = float("nan")
    rows[95]["id"] = 10**12  # more than the column of the business table takes
    added, known, failed = upload.run(rows)
    assert (added, known, sorted(failed)) == (60, 0, [2, 4])
    assert isinstance(failed[2], InvalidMessage)
    assert str(failed[2]).startswith("message 7 of the batch: kwargs.price: nan is not JSON")
    assert isinstance(failed[4], sa.exc.DataError)
    assert registered(shop) == [number for number in range(80) if not 40 <= number < 60]

    rows[47]["price"], rows[95]["id"] = 11.75, 95
    assert upload.run(rows) == (40, 60, {})
    assert upload.run(rows) == (0, 100, {})
    wait_until(lambda: upload.progress().finished, 30, "the whole batch to end")
    assert upload.progress().states == {State.APPLIED: 100}
    assert upload.run(rows) == (0, 100, {})
    assert upload.progress().total == 100
    assert registered(shop) == list(range(100))
    with psycopg.connect(shop.database) as connection:
        handled = connection.execute("SELECT (told->'kwargs'->>'id')::int FROM echo ORDER BY 1").fetchall()
    assert [number for (number,) in handled] == list(range(100))


def registered(shop: Shop) -> list[int]:
    with psycopg.connect(shop.database) as connection:
        return [number for (number,) in connection.execute("SELECT id FROM registration ORDER BY id")]

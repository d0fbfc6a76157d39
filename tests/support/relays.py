"""Relays by name between one database and one broker from which nobody takes anything; who leads, and what it wrote."""

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import redis
from psycopg import sql

from relay.embedded import Process, wait_until
from tests.support.processes import Programs

LEADER = "SELECT r.name FROM outbox_leader p JOIN outbox_relay r USING (holder) WHERE p.expires_at > clock_timestamp()"
TABLES = """
    SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r'
    AND c.relname ~ '^(outbox|inbox)_' AND c.relname <> 'outbox_relay' ORDER BY 1
"""
# Every change of the lease, written by the database itself: who held which epoch.
AUDIT = """
    CREATE TABLE lease_audit (id bigserial, epoch bigint, holder uuid);
    CREATE FUNCTION audit_lease() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO lease_audit (epoch, holder) SELECT NEW.epoch, NEW.holder WHERE NEW.holder IS NOT NULL
            AND (NEW.epoch, NEW.holder) IS DISTINCT FROM (OLD.epoch, OLD.holder);
        RETURN NEW;
    END $$;
    CREATE TRIGGER audit_lease BEFORE UPDATE ON outbox_leader FOR EACH ROW EXECUTE FUNCTION audit_lease();
"""


class Scene:
    """Started by name, killed by name."""

    def __init__(self, programs: Programs, database: str, broker_url: str) -> None:
        self.programs, self.database, self.broker_url = programs, database, broker_url
        self.admin = psycopg.connect(database, autocommit=True)
        self.broker = redis.Redis.from_url(broker_url)
        self.relays: dict[str, Process] = {}

    def start(self, name: str, **env: str) -> Process:
        urls = (env.pop("database", self.database), env.pop("broker", self.broker_url))
        settings = {f"OUTBOX_{key.upper()}": value for key, value in env.items()}
        self.relays[name] = self.programs.relay(*urls, "--name", name, name=name, env=settings)
        return self.relays[name]

    def leader(self) -> str | None:
        found = self.admin.execute(LEADER).fetchone()
        return found[0] if found else None

    def wait_for_leader(self, *, other_than: str | None = None, deadline: float = 15.0) -> str:
        return wait_until(lambda: (name := self.leader()) != other_than and name, deadline, "a leader") or ""

    def wait_for_standbys(self, count: int) -> None:
        there = "SELECT count(*) FROM outbox_relay WHERE seen_at > clock_timestamp() - interval '3 s'"
        wait_until(lambda: self.admin.execute(there).fetchall()[0][0] >= count, 15, f"{count} relays")

    def audit(self) -> None:
        self.admin.execute(AUDIT)

    def assert_one_holder_an_epoch(self) -> int:
        """Gives how many terms there were."""
        found = self.admin.execute("SELECT epoch, holder FROM lease_audit ORDER BY id").fetchall()
        epochs = [epoch for epoch, _ in found]
        assert epochs == sorted(set(epochs)), "an epoch has one holder, and each is higher than the last"
        return len(epochs)

    def epochs_at_broker(self) -> list[int]:
        """Of every copy, in the order of arrival."""
        copies = reversed(self.broker.lrange("celery", 0, -1))
        return [int(json.loads(each)["headers"]["outbox"]["epoch"]) for each in copies]

    def epoch(self) -> int:
        return int(self.admin.execute("SELECT epoch FROM outbox_leader").fetchall()[0][0])

    def newest_epoch_at_broker(self) -> int:
        newest = self.broker.lindex("celery", 0)
        return int(json.loads(newest)["headers"]["outbox"]["epoch"]) if newest else 0

    def rows(self) -> dict[str, list[Any]]:
        """Which version of every row there is: a row that anybody wrote has another xmin."""
        names = [name for (name,) in self.admin.execute(TABLES)]
        query = sql.SQL("SELECT ctid::text, xmin::text, xmax::text FROM {} ORDER BY 1")
        return {name: self.admin.execute(query.format(sql.Identifier(name))).fetchall() for name in names}

    def lost(self) -> set[str]:
        written = {str(key) for (key,) in self.admin.execute("SELECT message_id FROM ledger_intent")}
        return written - {json.loads(each)["headers"]["id"] for each in self.broker.lrange("celery", 0, -1)}

    def wait_until_nothing_is_lost(self) -> None:
        wait_until(lambda: not self.lost(), 30, "every committed message at the broker")


@pytest.fixture
def scene(programs: Programs, database: str, broker_url: str) -> Iterator[Scene]:
    made = Scene(programs, database, broker_url)
    yield made
    made.admin.close()
    made.broker.close()

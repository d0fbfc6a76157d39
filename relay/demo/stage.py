"""The stage: servers, relays, workers and the shop as processes of their own."""

import os
import re
import signal
import sys
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import redis

from outbox.errors import ConfigurationError
from relay import migrate
from relay.database import Database, connect
from relay.embedded import Postgres, Process, Valkey, find_postgres, find_valkey
from relay.embedded.account import make_folder
from relay.embedded.errors import DeadlineExceeded
from relay.embedded.guardian import Guardian

_LEADER = "SELECT r.name FROM outbox_leader p JOIN outbox_relay r USING (holder) WHERE p.expires_at > clock_timestamp()"


class Stage:
    """Everything the demo starts, and ends again whatever happens."""

    def __init__(self, *, external: bool) -> None:
        self._external = external
        self._exit = ExitStack()
        self._processes: dict[str, Process] = {}
        self._started = 0
        self.servers = ""

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            self._exit = undo
            self._folder = make_folder(None)
            self._guardian = Guardian()
            undo.callback(self._guardian.close)
            self._guardian.remove(self._folder)
            urls = self._external_servers() if self._external else self._own_servers(undo)
            # A killed worker leaves its temporary files; in our own folder they go with the rest.
            self._environment = _clean_environment(os.environ) | urls | {"TMPDIR": str(self._folder)}
            migrate.upgrade(urls["OUTBOX_DATABASE_URL"])
            self.database: Database = undo.enter_context(connect(urls["OUTBOX_DATABASE_URL"], 5.0, "demo"))
            undo.callback(self._end_processes)
            self._exit = undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._exit.close()

    def relay(self, name: str) -> None:
        self._start(name, "-m", "relay", "relay", "--name", name)

    def worker(self, name: str) -> None:
        quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat")
        options = ("--concurrency", "2", "--loglevel", "INFO", "--hostname", f"{name}@demo")
        self._start(name, "-m", "celery", "-A", "consumers.demo.worker", "worker", *options, *quiet)

    def shop(self, orders: int, rate: float) -> None:
        self._start("shop", "-m", "consumers.demo", str(orders), str(rate))

    def worker_ready(self, name: str) -> bool:
        return " ready." in self._alive(name).output()

    def shop_finished(self) -> bool:
        return not self._alive("shop").alive

    def leader(self) -> str | None:
        row = self.database.execute(_LEADER).fetchone()
        return None if row is None else str(row[0])

    def kill(self, name: str) -> int:
        """kill -9, the process and its children, in one go. Returns the pid that died."""
        process = self._processes[name]
        pid = process.pid
        process.kill()
        return pid

    def double_waiting(self, most: int) -> int:
        """Push copies of messages that wait in the queue. Returns how many there were."""
        with redis.Redis.from_url(self._environment["OUTBOX_BROKER_URL"]) as broker:
            waiting = broker.lrange("celery", 0, most - 1)
            if waiting:
                broker.lpush("celery", *waiting)
        return len(waiting)

    def duplicates_absorbed(self) -> int:
        """Counted in the workers' logs: each copy that found a receipt says so."""
        return sum(len(re.findall("absorbed", process.output())) for process in self._processes.values())

    def _alive(self, name: str) -> Process:
        process = self._processes[name]
        if not process.alive and process.code != 0:
            raise process.died("during the demo")
        return process

    def _start(self, name: str, *arguments: str) -> None:
        self._started += 1
        self._processes[name] = Process.start(
            [sys.executable, "-u", *arguments],
            name=name,
            log=self._folder / f"{self._started}-{name}.log",
            env=self._environment,
            cwd=self._folder,
            guardian=self._guardian,
        )

    def _own_servers(self, undo: ExitStack) -> dict[str, str]:
        postgres, valkey = find_postgres(), find_valkey()
        database = undo.enter_context(Postgres(postgres))
        broker = undo.enter_context(Valkey(valkey))
        self.servers = f"PostgreSQL {postgres.version} ({postgres.origin}), Valkey {valkey.version} ({valkey.origin})"
        return {"OUTBOX_DATABASE_URL": database.url(), "OUTBOX_BROKER_URL": broker.url()}

    def _external_servers(self) -> dict[str, str]:
        urls = {name: os.environ.get(name, "") for name in ("OUTBOX_DATABASE_URL", "OUTBOX_BROKER_URL")}
        missing = [name for name, url in urls.items() if not url]
        if missing:
            raise ConfigurationError(f"--external needs {' and '.join(missing)}; leave --external out for own servers")
        self.servers = "the servers of OUTBOX_DATABASE_URL and OUTBOX_BROKER_URL"
        return urls

    def _end_processes(self) -> None:
        for process in self._processes.values():
            if process.alive:
                process.send(signal.SIGTERM)
        for process in self._processes.values():
            # The books are closed: a worker that takes its time over a warm shutdown is killed, and that is no failure.
            with suppress(DeadlineExceeded):
                process.terminate(deadline=10.0)


def _clean_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Without settings of ours that would change the show; with the folder this very package lies in."""
    kept = {name: value for name, value in environ.items() if not name.startswith("OUTBOX_")}
    return kept | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), kept.get("PYTHONPATH", "")])}

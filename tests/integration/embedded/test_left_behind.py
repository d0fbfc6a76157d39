"""Nothing stays behind when the program that started the servers is gone, however it went."""

import json
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from relay.embedded import Process, wait_until
from relay.embedded.guardian import living, shared_segments
from tests.support.processes import Programs, wait_for_line

# Also a forked copy, as Celery's pool makes them: it holds every pipe of its parent open.
OWNER = """
import json, multiprocessing, os, sys, threading
from relay.embedded import Postgres, Valkey
from relay.embedded.guardian import family

postgres = Postgres(settings={"fsync": False}).start()
valkey = Valkey().start()
if "frozen" in sys.argv:
    postgres.freeze()
    valkey.freeze()
owned = family(os.getpid())
if "forked" in sys.argv:
    multiprocessing.get_context("fork").Process(target=threading.Event().wait, args=(3,), daemon=True).start()
folders = [str(postgres.folder), str(valkey.folder)]
print("owns", json.dumps([owned, folders]), flush=True)
if "leave" in sys.argv:
    sys.exit("left without a word")
threading.Event().wait()
"""


@dataclass(frozen=True)
class Owner:
    process: Process
    servers: list[int]
    folders: list[Path]

    def wait_clean(self) -> None:
        wait_until(lambda: not living(self.servers), 10, f"the end of {self.servers}")
        wait_until(lambda: not shared_segments(self.servers), 10, f"the shared memory of {self.servers} to be freed")
        wait_until(lambda: not any(each.exists() for each in self.folders), 10, f"the removal of {self.folders}")


def start(programs: Programs, state: str) -> Owner:
    process = programs.python("-c", OWNER, state, name=state)
    owns = wait_for_line(process, r"owns (\[.*\])\n", deadline=30)
    pids, folders = json.loads(owns.group(1))
    assert len(pids) > 5
    return Owner(process, [pid for pid in pids if pid != process.pid], [Path(each) for each in folders])


@pytest.mark.parametrize(("state", "children"), [("frozen", True), ("forked", False)])
def test_a_killed_owner_leaves_neither_processes_nor_folders(programs: Programs, state: str, children: bool) -> None:
    owner = start(programs, state)
    owner.process.kill(children=children)
    assert owner.process.code == -signal.SIGKILL
    owner.wait_clean()


def test_an_owner_that_forgets_to_close_leaves_nothing_either(programs: Programs) -> None:
    owner = start(programs, "leave")
    assert owner.process.wait(10) == 1
    owner.wait_clean()

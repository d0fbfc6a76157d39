"""Processes: started with their children, ended with their children."""

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from relay.embedded import DeadlineExceeded, Process, ProcessDied, free_port, wait_until
from relay.embedded import guardian as guardian_module
from relay.embedded.guardian import family, living
from relay.embedded.process import port_taken
from tests.support.processes import Programs, wait_for_line
from tests.support.servers import missing

PARENT = """
import os, signal, subprocess, sys, threading
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait()"])
print("ready", flush=True)
threading.Event().wait()
"""


@pytest.fixture
def parent(programs: Programs) -> Process:
    process = programs.python("-c", PARENT, name="parent")
    wait_for_line(process, "ready")
    wait_until(process.children, 5, "the child")
    return process


def test_a_kill_takes_the_children_along(parent: Process) -> None:
    (child,) = parent.children()
    parent.kill()
    assert parent.code == -signal.SIGKILL
    assert living([child]) == []


def test_killing_only_the_parent_leaves_an_orphan_until_the_end(parent: Process) -> None:
    (child,) = parent.children()
    parent.kill(children=False)
    assert not parent.alive
    assert living([child]) == [child]
    parent.kill()
    assert living([child]) == []


def test_terminating_returns_the_exit_code(parent: Process) -> None:
    assert parent.terminate(5) == -signal.SIGTERM
    assert parent.children() == []


def test_a_frozen_process_can_be_terminated(parent: Process) -> None:
    parent.freeze()
    states = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in family(parent.pid)]
    assert states == ["T", "T"]
    assert parent.terminate(5) == -signal.SIGTERM


def test_who_does_not_obey_is_killed_and_reported(programs: Programs) -> None:
    stubborn = programs.python("-c", PARENT, "stubborn", name="stubborn")
    wait_for_line(stubborn, "ready")
    with pytest.raises(DeadlineExceeded, match=r"(?s)stubborn did not end within 0.05 s of SIGTERM.*stubborn\| ready"):
        stubborn.terminate(0.05)
    assert not stubborn.alive


def test_an_early_death_is_reported_with_the_log(programs: Programs) -> None:
    process = programs.python("-c", "import sys; print('no configuration'); sys.exit(3)", name="early")
    with pytest.raises(ProcessDied, match=r"(?s)early ended with code 3 before: a log line.*no configuration"):
        wait_for_line(process, "never said")


def test_a_program_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ProcessDied, match="ghost did not start: No such file or directory"):
        Process.start([tmp_path / "ghost"], name="ghost", log=tmp_path / "log")


def test_a_process_alone_needs_nobody_to_clean_up(tmp_path: Path) -> None:
    before = set(family(os.getpid()))
    process = Process.start([sys.executable, "-c", "print('done')"], name="alone", log=tmp_path / "log")
    assert process.wait(10) == 0
    assert process.output() == "done\n"
    assert set(family(os.getpid())) == before


def test_waiting_says_what_it_waited_for() -> None:
    with pytest.raises(DeadlineExceeded, match=r"waited 0.01 s for the moon, in vain\."):
        wait_until(lambda: None, 0.01, "the moon")


def test_waiting_returns_what_was_seen() -> None:
    answers = iter([None, "", "seen"])
    assert wait_until(lambda: next(answers), 5, "an answer") == "seen"


def test_a_free_port_lies_below_those_of_outgoing_connections() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    port = free_port()
    assert port < lowest
    assert not port_taken(port)


def test_the_family_is_the_same_by_way_of_ps(parent: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("ps") is None:
        missing("ps", "install the package procps; only systems without /proc need it")
    expected = family(parent.pid)
    monkeypatch.setattr(guardian_module, "_processes", processes_by_ps)
    assert family(parent.pid) == expected


def processes_by_ps() -> Iterator[object]:
    yield from guardian_module._processes_from_ps()

"""The command line as a process: no password in any output (A14), and a relay that outlives its terminal (F52, B28)."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner

from outbox import Outbox
from relay.cli import commands
from relay.embedded import wait_until
from tests.support.processes import ROOT, Programs, wait_for_exit, wait_for_line
from tests.support.servers import missing

MARK = "hunter2"
CODED = "%68unter2%2F"  # hunter2/ percent-encoded
URLS = [
    (f"postgresql://app:{MARK}@127.0.0.1:1/x", f"redis://:{MARK}@127.0.0.1:1/0;redis://:{MARK}2@127.0.0.1:2/0"),
    (f"postgresql://app:{CODED}@127.0.0.1:1/x", f"redis://u:{CODED}@127.0.0.1:1/0"),
    (f"postgresql://127.0.0.1:1/x?password={MARK}&sslpassword={MARK}", f"redis://127.0.0.1:1/0?password={MARK}"),
    (f"postgresql://app:{MARK}/@127.0.0.1:1/x", f"redis://:{MARK}/@127.0.0.1:1/0"),
    (f"postgresql://app:{MARK}@@h:1/x", f"amqp://u:{MARK}@[::1"),
]


@pytest.mark.parametrize("urls", URLS)
def test_a14_no_password_in_any_output(urls: tuple[str, str], tmp_path: Path) -> None:
    file = tmp_path / "outbox.toml"
    file.write_text(f'database_url = "{urls[0]}"\nbroker_url = "{urls[1]}"\n')
    env = {"OUTBOX_CONFIG": str(file), "OUTBOX_LEASE_TTL": "0.5"}
    said = ""
    for arguments in ("config show --origin", "config show --json", "status", "migrate", "pause mail --reason x"):
        result = CliRunner().invoke(commands, arguments.split(), env=env)
        assert result.exception is None or isinstance(result.exception, SystemExit)
        said += result.output
    # A process of its own: it configures signals and logs.
    run = subprocess.run(
        [sys.executable, "-m", "relay", "relay", "--once", "-v", "--http", ""],
        env={**os.environ, **env, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    said += run.stdout + run.stderr
    assert "Traceback" not in run.stderr, run.stderr
    assert MARK not in said
    assert CODED not in said


def published(database: str) -> bool:
    with psycopg.connect(database) as connection:
        added = Outbox().add(connection, "shop.charge")
        connection.commit()
        wait_until(lambda: Outbox().state(connection, added.id) == "published", 10, "the publication of a message")
    return True


STREAMS = {"closed": "2>&- >&- <&-", "disk full": "2>/dev/full >/dev/full", "reader gone": "2>&1 | head -1"}


@pytest.mark.parametrize("streams", STREAMS.values(), ids=STREAMS)
def test_f52_b28_a_relay_needs_no_terminal(database: str, broker_url: str, tmp_path: Path, streams: str) -> None:
    """Nor a language, nor a time zone; SIGHUP does not stop it, SIGTERM does with exit code 0."""
    env = {"PATH": os.environ["PATH"], "LANG": "C", "PYTHONPATH": str(ROOT)}
    env |= {"OUTBOX_DATABASE_URL": database, "OUTBOX_BROKER_URL": broker_url, "OUTBOX_HTTP": ""}
    code, pid = tmp_path / "code", tmp_path / "pid"
    script = f"{{ {sys.executable} -m relay relay -v & echo $! >{pid}; wait $!; echo $? >{code}; }} {streams}"
    shell = subprocess.Popen(["/bin/bash", "-c", script], env=env, cwd=ROOT, start_new_session=True)
    try:
        wait_until(lambda: pid.exists() and pid.read_text().strip(), 10, "the start of the relay")
        relay = int(pid.read_text())
        assert published(database)
        os.kill(relay, signal.SIGHUP)
        assert published(database)
        os.kill(relay, signal.SIGTERM)
        wait_until(lambda: code.exists() and code.read_text().strip(), 10, "the end of the relay")
        assert code.read_text().strip() == "0"
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.wait(10)


def test_b28_sigint_twice_ends_at_once(database: str, broker_url: str, programs: Programs) -> None:
    relay = programs.relay(database, broker_url, env={"OUTBOX_HTTP": ""})
    wait_for_line(relay, "leadership_gained")
    relay.freeze()
    for _ in range(2):  # both are pending when it goes on; the second is not swallowed
        relay.send(signal.SIGINT)
    relay.thaw()
    assert wait_for_exit(relay) in (0, 130)


def test_b28_process_1_of_a_container(database: str, broker_url: str, programs: Programs) -> None:
    tool = shutil.which("unshare")
    allowed = (
        tool and subprocess.run([tool, "--pid", "--fork", "true"], check=False, capture_output=True).returncode == 0
    )
    if not tool or not allowed:
        missing("a process namespace", "run as root with util-linux to see a relay as process 1")
    start = "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"
    arguments = ("--pid", "--fork", "--kill-child", sys.executable, "-m", "relay", "relay", "-v")
    env = {"OUTBOX_DATABASE_URL": database, "OUTBOX_BROKER_URL": broker_url, "OUTBOX_HTTP": ""}
    shell = programs.python("-c", start, tool, *arguments, name="unshare", env=env)
    wait_for_line(shell, "leadership_gained")
    assert published(database)
    [relay] = shell.children()
    os.kill(relay, signal.SIGTERM)
    assert wait_for_exit(shell) == 0
    assert "leadership_released" in shell.output()

"""One process for several outboxes: each is led on its own, and one that cannot be served stops nobody else."""

import json
import signal
import urllib.error
import urllib.request
from pathlib import Path

import psycopg

from relay import migrate
from relay.embedded import wait_until
from tests.support.processes import Programs, wait_for_exit, wait_for_line

HTTP = {"OUTBOX_HTTP": "127.0.0.1:0"}


def settings_file(folder: Path, database: str, broker_url: str) -> str:
    file = folder / "outbox.toml"
    file.touch(mode=0o600)
    file.write_text(
        f'broker_url = "{broker_url}"\nhttp = "127.0.0.1:0"\nlog_format = "json"\n'
        f'[outboxes.shop]\ndatabase_url = "{database}"\n'
        f'[outboxes.billing]\ndatabase_url = "{database}"\nschema = "billing"\n'
    )
    return str(file)


def ready(address: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}/readyz", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_one_outbox_cannot_be_served_until_its_tables_exist(
    database: str, broker_url: str, programs: Programs, tmp_path: Path
) -> None:
    config = settings_file(tmp_path, database, broker_url)
    relay = programs.outbox("relay", "--config", config, name="host", env=HTTP)
    address = wait_for_line(relay, r'"action": "endpoint_opened", "fields": {"address": "([^"]+)"')[1]
    wait_for_line(relay, r'"outbox": "shop", "action": "leadership_gained"')
    wait_for_line(relay, r'"outbox": "billing", "action": "outbox_failed", .*tables are missing')
    status, said = ready(address)
    assert (status, "outbox billing" in said) == (503, True)
    migrate.upgrade(database, "billing")
    wait_for_line(relay, r'"outbox": "billing", "action": "leadership_gained"', 30)
    wait_until(lambda: ready(address)[0] == 200, 10, "readiness of both outboxes")
    relay.send(signal.SIGTERM)
    assert wait_for_exit(relay) == 0
    assert all(json.loads(line)["action"] for line in relay.output().splitlines())
    with psycopg.connect(database) as connection:
        for schema in ("public", "billing"):
            row = connection.execute(f"SELECT holder FROM {schema}.outbox_leader".encode()).fetchone()  # noqa: S608
            assert row == (None,), "the lease was not released"


def test_an_outbox_that_is_down_at_the_end_is_not_a_success(
    database: str, broker_url: str, programs: Programs, tmp_path: Path
) -> None:
    relay = programs.outbox("relay", "--config", settings_file(tmp_path, database, broker_url), name="host", env=HTTP)
    wait_for_line(relay, r'"outbox": "shop", "action": "leadership_gained"')
    wait_for_line(relay, r'"action": "outbox_failed"')
    relay.send(signal.SIGTERM)
    assert wait_for_exit(relay) == 1
    assert "outbox: not served when the process stopped: billing; the log says why" in relay.output()


def test_one_outbox_of_the_file(database: str, broker_url: str, programs: Programs, tmp_path: Path) -> None:
    config = settings_file(tmp_path, database, broker_url)
    relay = programs.outbox("relay", "--config", config, "--outbox", "billing", name="one")
    assert wait_for_exit(relay) == 4
    assert "outbox: the outbox tables are missing in this database" in relay.output()
    once = programs.outbox("relay", "--config", config, "--outbox", "shop", "--once", name="once")
    assert wait_for_exit(once) == 0

"""The command line serves it all: two relays on one host, one address taken, and the answers over HTTP."""

import re
import urllib.request

from relay.embedded import wait_until
from tests.support.processes import Programs, wait_for_exit, wait_for_line
from tests.support.promtool import Promtool


def get(address: str, path: str) -> bytes:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=5) as answer:
        body: bytes = answer.read()
        return body


def test_a_relay_answers_and_another_cannot_have_its_address(
    programs: Programs, database: str, broker_url: str, promtool: Promtool
) -> None:
    relay = programs.relay(database, broker_url, env={"OUTBOX_HTTP": "127.0.0.1:0"})
    address = wait_for_line(relay, r"endpoint_opened .*?address=(\S+)")[1]
    wait_for_line(relay, "leadership_gained")
    assert get(address, "/livez") == b"ok\n"
    assert wait_until(lambda: get(address, "/readyz"), 10, "the relay to be ready") == b"ok\n"
    scrape = get(address, "/metrics")
    assert re.search(rb'^outbox_relay_is_leader\{outbox="[^"]+"\} 1\.0$', scrape, re.MULTILINE)
    assert promtool.run("check", "metrics", text=scrape) == (0, "")
    second = programs.relay(database, broker_url, name="second", env={"OUTBOX_HTTP": address})
    assert wait_for_exit(second) == 2
    assert "leadership" not in second.output()
    assert re.search(rf"cannot serve /metrics and /livez at {re.escape(address)}.*in use", second.output())

"""`outbox demo` as a newcomer runs it: it balances, it says so, and it leaves nothing behind."""

import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from relay.embedded import wait_until
from tests.support.processes import Programs, wait_for_exit


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder for temporary files that the demo alone uses; as root its servers run under another account."""
    folder = Path(tempfile.mkdtemp(prefix="demo-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.timeout(120)
def test_the_demo_balances_and_leaves_nothing_behind(programs: Programs, temporary: Path) -> None:
    demo = programs.outbox("demo", "--orders", "400", "--rate", "150", name="demo", env={"TMPDIR": str(temporary)})
    wait_until(lambda: list(temporary.iterdir()), 10, "the demo to use its folder")
    assert wait_for_exit(demo, deadline=90) == 0
    told = demo.output()
    assert "ledger: balanced" in told
    assert len(re.findall(r"kill -9 \d+", told)) == 2
    assert re.search(r"leads after \d+\.\d s", told)
    assert "visibility_timeout" in told
    assert "orders written              360" in told
    assert "\x1b" not in told, "plain lines where there is no terminal"
    wait_until(lambda: not list(temporary.iterdir()), 10, "everything temporary to be removed")


def test_the_demo_refuses_external_servers_that_are_not_named(programs: Programs) -> None:
    demo = programs.outbox("demo", "--external", name="demo")
    assert wait_for_exit(demo) == 2
    assert "--external needs OUTBOX_DATABASE_URL and OUTBOX_BROKER_URL" in demo.output()
    assert "Traceback" not in demo.output()

"""The README's code and commands, taken from the file and run."""

import re
import shlex
import sys
from pathlib import Path
from types import ModuleType

import psycopg
import pytest

from relay.cli import commands
from relay.embedded import wait_until
from tests.support.processes import ROOT, Programs, wait_for_exit

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)


EXCERPT, SHOP = blocks("python")
TARGETS, COMMANDS = ([line.split("#")[0].strip() for line in block.splitlines()] for block in blocks("sh"))


@pytest.fixture
def shop(
    tmp_path: Path, database: str, broker_url: str, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> Programs:
    """The README's shop.py in a folder of its own, with the README's variables."""
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    variables = {
        "OUTBOX_DATABASE_URL": database.replace("postgresql://", "postgresql+psycopg://", 1),
        "OUTBOX_BROKER_URL": broker_url,
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    programs.environment |= variables | {"PYTHONPATH": f"{ROOT}:{tmp_path}"}
    return programs


def test_the_first_screen_shows_problem_code_and_the_two_commands() -> None:
    first_screen = TEXT.splitlines()[:30]
    assert "```python" in first_screen
    assert len(EXCERPT.splitlines()) <= 14
    assert TARGETS == ["make demo", "make test"]
    assert all(any(line.startswith(target) for line in first_screen) for target in TARGETS)


def test_the_shop_runs_as_the_readme_says(shop: Programs, database: str) -> None:
    ran = [shlex.split(line) for line in COMMANDS if line.startswith(("outbox", "celery"))]
    assert [words[1] for words in ran] == ["migrate", "relay", "-A", "status"]
    (placing,) = [shlex.split(line) for line in COMMANDS if line.startswith("python ")]
    assert wait_for_exit(shop.outbox("migrate", name="migrate")) == 0
    shop.outbox("relay", name="relay")
    shop.python("-m", *ran[2], "--concurrency", "1", name="worker")
    for _ in range(3):
        assert wait_for_exit(shop.python(*placing[1:], name="web")) == 0
    with psycopg.connect(database, autocommit=True) as connection:
        charged = "SELECT array_agg(order_id ORDER BY order_id) FROM charges"
        wait_until(lambda: connection.execute(charged).fetchone() == ([1, 2, 3],), 20, "three charges")
    status = shop.outbox("status", name="status")
    assert wait_for_exit(status) == 0
    assert "3 applied" in status.output()


def test_the_excerpt_is_the_shop_in_short(shop: Programs, tmp_path: Path) -> None:
    """The excerpt runs with the names that shop.py defines; only its consumer needs an application of its own."""
    from celery import Celery

    module = ModuleType("shop")
    exec(compile(SHOP, "shop.py", "exec"), module.__dict__)  # noqa: S102
    names = {**module.__dict__, "app": Celery("excerpt", broker="memory://")}
    exec(compile(EXCERPT, "README.md", "exec"), names)  # noqa: S102
    module.Base.metadata.create_all(module.engine)
    names["place"](module.Order())
    with module.engine.connect() as connection:
        tasks = connection.exec_driver_sql("SELECT task FROM outbox_message").scalars().all()
    module.engine.dispose()
    assert tasks == ["billing.charge"]
    assert "billing.charge" in names["app"].tasks


def test_every_command_the_readme_names_exists() -> None:
    named = set(re.findall(r"`?outbox ([a-z]+)", "\n".join(COMMANDS)))
    assert named
    assert named <= set(commands.commands)


def test_every_test_the_readme_names_exists() -> None:
    tests = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    for name in re.findall(r"`(test_[a-z_]+)`", TEXT):
        assert f"def {name}(" in tests, name
    for folder in re.findall(r"`(tests/[a-z_/]+)`", TEXT):
        assert list((ROOT / folder).rglob("test_*.py")), folder
    assert sys.version_info >= (3, 11)

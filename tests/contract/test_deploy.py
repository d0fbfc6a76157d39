"""The files of deploy/, without Docker: what each must say, and that the names in them exist."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from relay.cli import commands
from relay.settings import OTHER_VARIABLES, VARIABLES
from tests.contract.source_tree import ROOT
from tests.support.servers import missing

DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
COMPOSE = (DEPLOY / "compose.yaml").read_text()
UNIT = DEPLOY / "systemd" / "outbox-relay.service"


def instructions() -> list[tuple[str, str]]:
    joined = re.sub(r"\\\n\s*", " ", DOCKERFILE)
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in joined.splitlines()) if word.isupper()]


def service(name: str) -> str:
    """The block of one service, with what it takes over from x-relay."""
    found = re.search(rf"^  {name}:\n((?:    .*\n|\n)+)", COMPOSE, re.M)
    assert found, name
    return found[1] + (COMPOSE.split("\nservices:")[0] if "*relay" in found[1] else "")


def test_every_image_is_pinned() -> None:
    images = [rest.split()[0] for word, rest in instructions() if word == "FROM"]
    images += re.findall(r"^    image: (.+)$", COMPOSE, re.M)
    assert len(images) == 4
    assert all(re.fullmatch(r"[a-z/]+:\d+\.\d+(\.\d+)?-[a-z-]+", image) for image in images)


def test_the_image_runs_without_root_and_without_a_shell() -> None:
    found = instructions()
    last = max(number for number, (word, _) in enumerate(found) if word == "FROM")
    final = dict(found[last:])
    user, group = final["USER"].split(":")
    assert min(int(user), int(group)) > 1000  # a number: runAsNonRoot cannot judge a name
    assert "RUN" not in final
    for word in ("ENTRYPOINT", "CMD"):
        assert isinstance(json.loads(final[word]), list)
    check = json.loads(final["HEALTHCHECK"].partition(" CMD ")[2])
    assert check[:2] == ["python", "-c"]
    compile(check[2], "HEALTHCHECK", "exec")
    assert "/livez" in check[2]
    assert json.loads(final["ENTRYPOINT"]) == ["outbox"]
    assert json.loads(final["CMD"])[0] in commands.commands


def test_what_is_copied_exists() -> None:
    for word, rest in instructions():
        if word == "COPY" and not rest.startswith("--from"):
            assert [name for name in rest.split()[:-1] if not (ROOT / name).exists()] == []
    needed = {"outbox", "relay", "consumers", "migrations", "pyproject.toml", "README.md", "LICENSE"}
    assert needed <= set(re.findall(r"[\w.]+", " ".join(rest for word, rest in instructions() if word == "COPY")))


@pytest.mark.parametrize("text", [DOCKERFILE, COMPOSE], ids=["Dockerfile", "compose.yaml"])
def test_settings_are_known(text: str) -> None:
    assert set(re.findall(r"\bOUTBOX_[A-Z_]{2,}\b", text)) <= {*VARIABLES, *OTHER_VARIABLES}


@pytest.mark.parametrize("name", ["migrate", "relay-1", "relay-2", "worker"])
def test_our_services_have_no_more_rights_than_they_need(name: str) -> None:
    block = service(name)
    for line in ("read_only: true", "cap_drop:\n    - ALL", "no-new-privileges:true", "tmpfs:\n    - /tmp"):
        assert line in block, line
    assert "depends_on" in block


def test_servers_say_when_they_are_ready() -> None:
    for name in ("postgres", "valkey"):
        assert "healthcheck:\n      test: [" in service(name)
    assert service("relay-1").count("command:") == 1
    for name in ("migrate", "relay-1", "relay-2"):
        [command] = re.findall(r"command: (\[.+\])", service(name))
        assert json.loads(command)[0] in commands.commands


def test_compose_is_laid_out_as_yaml_wants_it() -> None:
    assert "\t" not in COMPOSE
    for line in COMPOSE.splitlines():
        assert (len(line) - len(line.lstrip())) % 2 == 0, line
        assert re.fullmatch(r"\s*(#.*|- .+|[\w<-]+:( .+)?|)", line), line
    anchors, used = re.findall(r"&(\w+)", COMPOSE), set(re.findall(r": \*(\w+)", COMPOSE))
    assert used <= set(anchors)


def test_the_unit_is_accepted_by_systemd(tmp_path: Path) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        missing("systemd-analyze", "install systemd to have the unit checked")
    program, environment = tmp_path / "outbox", tmp_path / "env"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    environment.touch()
    unit = tmp_path / UNIT.name
    text = UNIT.read_text().replace("/usr/local/bin/outbox", str(program))
    unit.write_text(text.replace("/etc/outbox-relay.env", str(environment)))
    run = subprocess.run(
        [tool, "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False, timeout=60
    )
    complaints = [line for line in run.stderr.splitlines() if UNIT.name in line]
    assert (run.returncode, complaints) == (0, []), run.stderr


def test_the_unit_is_watched_and_hardened() -> None:
    lines = set(UNIT.read_text().splitlines())
    wanted = "Type=notify WatchdogSec=60 Restart=always DynamicUser=yes NoNewPrivileges=yes ProtectSystem=strict"
    assert set(wanted.split()) <= lines

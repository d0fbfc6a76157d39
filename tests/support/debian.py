"""Servers from the system's own package sources, without root and without installing anything.

The packages a program needs beyond what is installed are downloaded into a cache and unpacked there. apt works on
a private state, so neither its lock nor its lists are touched.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_TIMEOUT = 300


class Unavailable(RuntimeError):
    """The packages cannot be had here; the message says why."""


@dataclass(frozen=True)
class Apt:
    """apt with its state below one folder; the package lists are the system's or our own."""

    state: Path
    own_lists: bool

    def update(self) -> None:
        """Fetch the lists. Sources that cannot be reached are no reason to stop: others may suffice."""
        self._run("update", check=False)

    def wanted(self, packages: Sequence[str]) -> list[str]:
        """What would have to be installed, as `name=version`."""
        said = self._run("--simulate", "--no-install-recommends", "install", *packages)
        lines = [line.split() for line in said.splitlines() if line.startswith("Inst ")]
        # "Inst name (version source ...)", or "Inst name [old version] (version ...)" for an upgrade
        return [f"{line[1]}={next(word for word in line if word.startswith('('))[1:]}" for line in lines]

    def download(self, wanted: Sequence[str], folder: Path) -> None:
        """Fetch the packages, verified by apt, into the folder."""
        self._run("download", *wanted, cwd=folder)

    def _run(self, *arguments: str, cwd: Path | None = None, check: bool = True) -> str:
        for part in ("lists/partial", "cache/archives/partial", "log"):
            (self.state / part).mkdir(parents=True, exist_ok=True)
        options = {
            "Dir::State": self.state,
            "Dir::State::status": "/var/lib/dpkg/status",
            "Dir::State::lists": self.state / "lists" if self.own_lists else "/var/lib/apt/lists",
            "Dir::Cache": self.state / "cache",
            "Dir::Log": self.state / "log",
            "Debug::NoLocking": "1",
            "APT::Sandbox::User": "",  # it may not enter our folder, and we are not privileged anyway
        }
        command = ["apt-get", "-q", *(f"-o{name}={value}" for name, value in options.items()), *arguments]
        said = subprocess.run(
            command, cwd=cwd, env={**os.environ, "LC_ALL": "C"}, capture_output=True, text=True, timeout=_TIMEOUT,
            check=False,
        )  # fmt: skip
        if check and said.returncode != 0:
            raise Unavailable(f"apt-get {arguments[0]} failed: {' '.join(said.stderr.split())[:300]}")
        return said.stdout


def unpack(*packages: str) -> Path:
    """The folder below which these packages, and what they need beyond the system's, are unpacked."""
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise Unavailable(f"there is no {tool} on this system")
    with _locked(_cache()) as cache:
        try:
            return _unpacked(packages, cache, Apt(cache / "apt", own_lists=False))
        except (Unavailable, subprocess.TimeoutExpired):
            # No lists, or lists that name versions which are gone: fetch our own.
            apt = Apt(cache / "apt", own_lists=True)
            apt.update()
            return _unpacked(packages, cache, apt)


def _unpacked(packages: Sequence[str], cache: Path, apt: Apt) -> Path:
    wanted = apt.wanted(packages)
    if not wanted:
        raise Unavailable(f"{' '.join(packages)} is installed, but its programs were not found")
    digest = hashlib.sha256("\n".join(sorted(wanted)).encode()).hexdigest()[:12]
    target = cache / f"{packages[0]}-{digest}"
    if not target.exists():
        _fetch(apt, wanted, target)
    return target


def _fetch(apt: Apt, wanted: Sequence[str], target: Path) -> None:
    """Made under another name and renamed, so that what has the right name is complete."""
    archives, partial = target.with_suffix(".debs"), target.with_suffix(".partial")
    for folder in (archives, partial):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    apt.download(wanted, archives)
    for archive in sorted(archives.glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", archive, partial], check=True, timeout=_TIMEOUT)  # noqa: S607
    shutil.rmtree(archives)
    partial.rename(target)


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "celery-outbox-relay" / "debian"


@contextmanager
def _locked(folder: Path) -> Iterator[Path]:
    """One run at a time; the kernel frees the lock of a run that was killed."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield folder


def library_folders(root: Path) -> tuple[Path, ...]:
    """Where unpacked packages have their shared libraries."""
    return tuple(path for path in sorted(root.glob("usr/lib/*-linux-*")) + sorted(root.glob("lib/*-linux-*")))

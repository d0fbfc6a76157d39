"""Under which account a server runs, and in which folder.

PostgreSQL refuses to run as root. As root we therefore drop to an account that already exists; as anybody else
we stay who we are. No user is added, and no permission changes outside the folder made here.
"""

import os
import pwd
import stat
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from relay.embedded.errors import EmbeddedError

# Not "postgres": on a database host that account owns the real data.
_CANDIDATES = ("nobody", "daemon")


@dataclass(frozen=True)
class Account:
    """A user and group to drop to."""

    name: str
    uid: int
    gid: int

    def may_enter(self, folder: Path) -> bool:
        """Whether this account can reach into `folder`, judged by the permission bits of every step."""
        return all(self._may_pass(step.stat()) for step in (folder, *folder.parents))

    def _may_pass(self, status: os.stat_result) -> bool:
        if status.st_uid == self.uid:
            return bool(status.st_mode & stat.S_IXUSR)
        if status.st_gid == self.gid:
            return bool(status.st_mode & stat.S_IXGRP)
        return bool(status.st_mode & stat.S_IXOTH)


def account_to_drop_to() -> Account | None:
    """The account for servers when we are root; None when we are an ordinary user."""
    if os.geteuid() != 0:
        return None
    for name in _CANDIDATES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            return Account(name, entry.pw_uid, entry.pw_gid)
    raise EmbeddedError(
        f"PostgreSQL does not run as root and this system has none of the accounts {', '.join(_CANDIDATES)}: "
        "run as an ordinary user instead."
    )


def make_folder(account: Account | None) -> Path:
    """A fresh private folder that belongs to the account the server will run under."""
    folder = Path(tempfile.mkdtemp(prefix="outbox-", dir=_parent_for(account, _temporary_parents())))
    hand_over(folder, account)
    return folder


def hand_over(path: Path, account: Account | None) -> None:
    """Give a path of ours to the account; only ever called on what we made ourselves."""
    if account is not None:
        os.chown(path, account.uid, account.gid, follow_symlinks=False)


def _temporary_parents() -> list[Path]:
    return [Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]  # noqa: S108  (mkdtemp follows)


def _parent_for(account: Account | None, parents: Iterable[Path]) -> Path:
    candidates = list(parents)
    if account is None:
        return candidates[0]
    for parent in candidates:
        if parent.is_dir() and account.may_enter(parent.resolve()):
            return parent
    raise EmbeddedError(
        f"the account '{account.name}', under which servers run when we are root, may not enter "
        f"{candidates[0]}: set TMPDIR to a folder that all may enter."
    )

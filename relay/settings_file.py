"""The settings file: TOML, top-level keys for every outbox, a table `[outboxes.NAME]` for what one of them has apart.

    broker_url = "redis://broker:6379/0"
    [outboxes.shop]
    database_url = "postgresql://relay@db/shop"
    [outboxes.billing]
    database_url = "postgresql://relay@db/billing"
    schema = "outbox"

Whatever is wrong with it is one line that names the file and the key, never a value: a value may be a password.
"""

import difflib
import os
import re
import stat
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outbox.errors import ConfigurationError
from relay.settings import VARIABLES

_TABLE = "outboxes"
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,63}", re.ASCII)
_LARGEST = 1_000_000
_OF_THE_PROCESS = ("http", "log_format", "name")
_CREDENTIALS = re.compile(r"://[^/\s]*:[^/\s]+@|password=")


@dataclass(frozen=True, slots=True)
class SettingsFile:
    path: str
    defaults: dict[str, Any]
    outboxes: dict[str, dict[str, Any]]
    warnings: tuple[str, ...]


def read_settings_file(path: str) -> SettingsFile:
    text, mode = _content(path)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        # Of the parser's message only the place: the rest may quote the line.
        place = re.search(r"line \d+, column \d+|end of document", str(error))
        raise ConfigurationError(
            f"the settings file {path} is not valid TOML ({place[0] if place else 'unreadable'});"
            ' a line reads key = "text" or key = 5'
        ) from None
    tables = document.pop(_TABLE, {})
    _check_keys(path, document, "")
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise ConfigurationError(f"outboxes in {path} must be tables: [outboxes.NAME] and its keys below")
    for name, table in tables.items():
        _check_table(path, name, table)
    warnings = []
    if not document and not tables:
        warnings.append(f"the settings file {path} sets nothing")
    if mode & stat.S_IROTH and _CREDENTIALS.search(text):
        warnings.append(f"the settings file {path} holds a password and everybody may read it; chmod 640 it")
    return SettingsFile(path, document, tables, tuple(warnings))


def _content(path: str) -> tuple[str, int]:
    try:
        with Path(path).open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(_LARGEST + 1)
    except IsADirectoryError:
        raise ConfigurationError(f"the settings file {path} is a directory; name the file in it") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "not a file name"
        raise ConfigurationError(f"the settings file {path!a} cannot be read: {why}") from None
    if len(content) > _LARGEST:
        raise ConfigurationError(f"the settings file {path} is larger than 1 MB; it is not one of ours")
    try:
        return content.decode("utf-8-sig"), mode
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"the settings file {path} is not UTF-8 (byte {error.start}); save it as UTF-8"
        ) from None


def _check_table(path: str, name: str, table: dict[str, Any]) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"outbox name {name[:63]!a} in {path} must be letters, digits, and _ . - (at most 63): it stands in logs"
        )
    _check_keys(path, table, f" of [outboxes.{name}]")
    for key in _OF_THE_PROCESS:
        if key in table:
            raise ConfigurationError(
                f'key "{key}" of [outboxes.{name}] in {path} belongs above the tables: it is one for the whole process'
            )


def _check_keys(path: str, keys: dict[str, Any], where: str) -> None:
    known = sorted(VARIABLES.values())
    for key in keys:
        if key not in known:
            meant = key.lower().removeprefix("outbox_").replace("-", "_")
            close = difflib.get_close_matches(meant, known, 1, cutoff=0.5)
            hint = f', did you mean "{close[0]}"?' if close else f"; known are {', '.join(known)}"
            raise ConfigurationError(f'unknown key "{ascii(key[:63])[1:-1]}"{where} in {path}{hint}')

"""What is in force, and where it comes from: command line over environment over file over default.

A variable of the environment that would override what two outboxes have apart (say, their schemas) is refused: it
would make one outbox of both. With `--outbox NAME` only that one counts.
"""

import os
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

from outbox.errors import ConfigurationError
from relay.database import libpq_url, shown_url
from relay.settings import VARIABLES, RelaySettings, converted_setting, read_environment, variable_of
from relay.settings_file import SettingsFile, read_settings_file

ONLY_OUTBOX = "default"
_SECRET = ("database_url", "broker_url")
_EXAMPLES = {"database_url": "postgresql://user@host/name", "broker_url": "redis://host:6379/0"}


@dataclass(frozen=True, slots=True)
class Value:
    value: Any
    origin: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where one outbox lies: all that commands without a broker need."""

    outbox: str
    database_url: str
    schema: str


class Configuration:
    """The settings of every outbox that this process is to serve."""

    def __init__(
        self,
        environ: Mapping[str, str] | None = None,
        flags: Mapping[str, Any] | None = None,
        *,
        path: str | None = None,
        outbox: str | None = None,
    ) -> None:
        environ = os.environ if environ is None else environ
        self._flags = {name: value for name, value in (flags or {}).items() if value is not None}
        self._variables = read_environment(environ)
        path = path or environ.get("OUTBOX_CONFIG") or None
        self._file = read_settings_file(path) if path else None
        self.warnings = self._file.warnings if self._file else ()
        self.outboxes = self._chosen(outbox, self._file)

    @staticmethod
    def _chosen(outbox: str | None, file: SettingsFile | None) -> tuple[str, ...]:
        names = tuple(file.outboxes) if file else ()
        if outbox is None:
            return names or (ONLY_OUTBOX,)
        if outbox not in names and not (outbox == ONLY_OUTBOX and not names):
            known = f"there are {', '.join(names)}" if names else "no settings file names any"
            raise ConfigurationError(f"there is no outbox {outbox[:63]!a}; {known}")
        return (outbox,)

    def values(self, outbox: str) -> dict[str, Value]:
        """Everything in force for this outbox, defaults included."""
        found = {
            field.name: Value(_default(field.default, field.name), "default")
            for field in fields(RelaySettings)
            if field.name in VARIABLES.values()
        }
        if self._file:
            table = self._file.outboxes.get(outbox, {})
            self._refuse_merging(outbox, table)
            found |= {name: Value(value, f"file {self._file.path}") for name, value in self._file.defaults.items()}
            found |= {
                name: Value(value, f"file {self._file.path} [outboxes.{outbox}]") for name, value in table.items()
            }
        found |= {name: Value(value, f"environment {variable_of(name)}") for name, value in self._variables.items()}
        found |= {name: Value(value, "command line") for name, value in self._flags.items()}
        return {
            name: each if each.value is None else Value(converted_setting(name, each.value), each.origin)
            for name, each in found.items()
        }

    def _refuse_merging(self, outbox: str, table: Mapping[str, Any]) -> None:
        if len(self.outboxes) < 2:
            return
        for name in table:
            if name in self._variables or name in self._flags:
                by = "the command line" if name in self._flags else variable_of(name)
                raise ConfigurationError(
                    f"{by} would override {name} of [outboxes.{outbox}] for every outbox; take it away, or choose one"
                    " with --outbox"
                )

    def settings(self, outbox: str) -> RelaySettings:
        """What the relay of this outbox needs; refused if anything is missing or wrong."""
        given = {name: each.value for name, each in self.values(outbox).items() if each.value is not None}
        for name in _SECRET:
            # An application brings its own broker.
            if not given.get(name) and not (name == "broker_url" and given.get("app")):
                example = f"{variable_of(name)}={_EXAMPLES[name]}"
                raise ConfigurationError(f"{self._missing(outbox, name)}; the relay needs it, for example {example}")
        try:
            return RelaySettings(**given)
        except ConfigurationError as error:
            raise ConfigurationError(f"outbox {outbox}: {error}" if len(self.outboxes) > 1 else str(error)) from None

    def all_settings(self) -> dict[str, RelaySettings]:
        found = {outbox: self.settings(outbox) for outbox in self.outboxes}
        places: dict[tuple[str, str], str] = {}
        for outbox, settings in found.items():
            other = places.setdefault((libpq_url(settings.database_url), settings.schema), outbox)
            if other != outbox:
                raise ConfigurationError(
                    f"outboxes {other} and {outbox} are the same: one database, one schema; remove one of them"
                )
        return found

    def place(self, outbox: str) -> Place:
        values = self.values(outbox)
        url = values["database_url"].value
        if not url:
            raise ConfigurationError(
                f"{self._missing(outbox, 'database_url')}; for example OUTBOX_DATABASE_URL={_EXAMPLES['database_url']}"
            )
        libpq_url(url)
        return Place(outbox, url, values["schema"].value)

    def places(self) -> tuple[Place, ...]:
        return tuple(self.place(outbox) for outbox in self.outboxes)

    def shown(self, outbox: str) -> dict[str, Value]:
        """As `values`, fit for a screen: of a URL only where it leads to."""
        return {
            name: Value(shown_url(each.value) if name in _SECRET and each.value else each.value, each.origin)
            for name, each in self.values(outbox).items()
        }

    def _missing(self, outbox: str, name: str) -> str:
        said = f"{variable_of(name)} is not set"
        return said if outbox == ONLY_OUTBOX else f"outbox {outbox}: {name} is not set, nor {variable_of(name)}"


def _default(value: Any, name: str) -> Any:
    # A name is made anew by each process from host and process id; required settings have none.
    return None if value is MISSING or name == "name" else value

"""Options that several commands share, and how a command finds its outbox. No option takes a URL: what stands on a
command line is in everybody's process list."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click
import psycopg

from outbox.errors import ConfigurationError, SchemaMismatch, Unreachable
from outbox.statements import DEFAULT_SCHEMA
from relay.configuration import Configuration, Place
from relay.database import Database, connect, first_line

_Command = TypeVar("_Command", bound=Callable[..., Any])
_CONNECT_SECONDS = 5.0

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")


def located(command: _Command) -> _Command:
    """--config, --outbox, --schema."""
    options = (
        click.option("--config", metavar="FILE", help="Settings file (TOML); otherwise OUTBOX_CONFIG, if set."),
        click.option("--outbox", metavar="NAME", help="Only this [outboxes.NAME] of the settings file."),
        click.option(
            "--schema",
            metavar="NAME",
            help="PostgreSQL schema of the tables; otherwise OUTBOX_SCHEMA.",
            show_default=DEFAULT_SCHEMA,
            default=None,
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def configuration(config: str | None, outbox: str | None, **flags: Any) -> Configuration:
    """What is in force; warnings about the file go to stderr."""
    found = Configuration(flags=flags, path=config, outbox=outbox)
    for warning in found.warnings:
        click.echo(f"outbox: warning: {warning}", err=True)
    return found


def one_place(config: str | None, outbox: str | None, schema: str | None) -> Place:
    """For commands that change something: never several outboxes at once by mistake."""
    found = configuration(config, outbox, schema=schema)
    if len(found.outboxes) > 1:
        raise ConfigurationError(f"name one outbox with --outbox: there are {', '.join(found.outboxes)}")
    return found.place(found.outboxes[0])


@contextmanager
def connected(place: Place, label: str) -> Iterator[Database]:
    """A connection for a command; what the server refuses becomes one line."""
    try:
        with connect(place.database_url, _CONNECT_SECONDS, label) as connection:
            yield connection
    except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedFunction, psycopg.errors.InvalidSchemaName):
        raise SchemaMismatch('the outbox tables are missing in this database; run "outbox migrate"') from None
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.ReadOnlySqlTransaction) as error:
        raise SchemaMismatch(f"the database does not allow it: {first_line(error)}") from None
    except psycopg.OperationalError as error:
        raise Unreachable(f"the database did not answer: {first_line(error)}") from None

"""The command line `outbox`, also `python -m relay` and `celery -A app outbox`.

Data goes to stdout, everything else to stderr. Exit codes: 0 ok, 1 failed, 2 usage or configuration, 3 not found,
4 refused, 5 dependency unreachable, 6 finished with findings.
"""

import json
import os
import sys
from typing import Any

import click

from outbox.errors import ConfigurationError, OutboxError, SchemaMismatch, Unreachable
from outbox.migrations import REVISION
from outbox.statements import DEFAULT_SCHEMA
from relay.settings import RelaySettings, read_environment

EXIT_FAILED, EXIT_USAGE, EXIT_REFUSED, EXIT_UNREACHABLE, EXIT_FINDINGS = 1, 2, 4, 5, 6


class Commands(click.Group):
    """Turns our errors into one line and an exit code; a traceback would tell an operator nothing."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except OutboxError as error:
            click.echo(f"outbox: {error}", err=True)
            ctx.exit(exit_code(error))


def exit_code(error: OutboxError) -> int:
    match error:
        case ConfigurationError():
            return EXIT_USAGE
        case SchemaMismatch():
            return EXIT_REFUSED
        case Unreachable():
            return EXIT_UNREACHABLE
        case _:
            return EXIT_FAILED


schema_option = click.option(
    "--schema",
    envvar="OUTBOX_SCHEMA",
    default=DEFAULT_SCHEMA,
    show_default=True,
    help="PostgreSQL schema of the tables.",
)


@click.group(name="outbox", cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="celery-outbox-relay")
def commands() -> None:
    """Transactional outbox for Celery. Set OUTBOX_DATABASE_URL, and OUTBOX_BROKER_URL for the relay."""


@commands.command()
@schema_option
@click.option("--status", "show_status", is_flag=True, help="Only say which revision is there; exit 6 if pending.")
@click.option("--sql", "show_sql", is_flag=True, help="Only print the SQL of a full migration.")
@click.pass_context
def migrate(context: click.Context, schema: str, show_status: bool, show_sql: bool) -> None:
    """Create or upgrade the tables. Safe to run any number of times, also at once."""
    from relay import migrate as runner  # Alembic is slow to import and no other command needs it

    if show_sql:
        click.echo(runner.script(schema))
        return
    database_url = _database_url()
    if show_status:
        state = runner.status(database_url, schema)
        found = f"revision {state.current}" if state.current else "no outbox tables"
        click.echo(f"schema {schema}: {found}, newest {state.needed}")
        if state.pending:
            context.exit(EXIT_FINDINGS)
        return
    before = runner.upgrade(database_url, schema)
    done = {None: "tables created, revision", REVISION: "nothing to do, already"}.get(before, "upgraded to")
    click.echo(f"schema {schema}: {done} {REVISION}")


@commands.command()
@schema_option
@click.option("--name", envvar="OUTBOX_RELAY_NAME", help="A label for logs and status; default: the host's name.")
@click.option("-v", "--verbose", is_flag=True, help="Log every window and every step too.")
def relay(schema: str, name: str | None, verbose: bool) -> None:
    """Publish committed messages until SIGTERM. Run two or more: one leads, the others stand by."""
    from relay.daemon import Relay
    from relay.logs import configure_console, log_event

    settings = RelaySettings.from_env(overrides={"schema": schema, **({"name": name} if name else {})})
    configure_console(settings.name, verbose)
    daemon = Relay(settings, observer=log_event)
    daemon.stop_on_signals()
    daemon.run()


@commands.command()
@schema_option
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def status(schema: str, as_json: bool) -> None:
    """Leader, relays, backlog, age, receipts."""
    from relay.database import connect, identify
    from relay.queries import queries_for
    from relay.queries.status import status_queries_for
    from relay.status import collect, render

    with connect(_database_url(), 5.0, "status") as connection:
        identify(connection, queries_for(schema))
        state = collect(connection, status_queries_for(schema))
    click.echo(json.dumps(state.as_json()) if as_json else render(state))


@commands.command()
@click.option("--orders", type=click.IntRange(10, 100_000), default=3000, show_default=True)
@click.option("--rate", type=click.FloatRange(1, 10_000), default=250.0, show_default=True, help="Orders a second.")
@click.option("--external", is_flag=True, help="Use the servers of the OUTBOX_ variables; makes shop_ tables there.")
@click.pass_context
def demo(context: click.Context, orders: int, rate: float, external: bool) -> None:
    """The real thing on this machine, with kill -9 on stage; exit 1 if the books do not balance."""
    from relay.demo.play import run
    from relay.embedded import EmbeddedError

    try:
        balanced = run(sys.stdout, orders=orders, rate=rate, external=external)
    except EmbeddedError as error:
        raise OutboxError(str(error)) from None
    except KeyboardInterrupt:
        raise OutboxError("stopped; every server and process of the demo has been ended") from None
    if not balanced:
        context.exit(EXIT_FAILED)


@commands.command()
def version() -> None:
    """The installed version."""
    from relay.daemon import installed_version

    click.echo(f"celery-outbox-relay {installed_version()}, Python {sys.version.split()[0]}")


def _database_url() -> str:
    url = read_environment(os.environ).get("database_url")
    if not url:
        raise ConfigurationError(
            "OUTBOX_DATABASE_URL is not set; for example OUTBOX_DATABASE_URL=postgresql://user@host/name"
        )
    return url


def main() -> None:
    commands(prog_name="outbox")

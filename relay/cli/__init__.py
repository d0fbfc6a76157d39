"""The command line `outbox`, also `python -m relay` and `celery -A app outbox`; one module a command.

Data goes to stdout, everything else to stderr. Exit codes: relay/cli/exits.py.
"""

import sys
from typing import Any

import click

from outbox.errors import OutboxError
from relay.cli.config import config
from relay.cli.exits import EXIT_FAILED, exit_code
from relay.cli.migrate import migrate
from relay.cli.pause import pause, resume
from relay.cli.prune import prune
from relay.cli.relay import relay
from relay.cli.status import status
from relay.signals import occupy_standard_files

__all__ = ["commands", "exit_code", "main"]


class Commands(click.Group):
    """Turns our errors into one line and an exit code; a traceback would tell an operator nothing."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except OutboxError as error:
            click.echo(f"outbox: {error}", err=True)
            ctx.exit(exit_code(error))


@click.group(name="outbox", cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="celery-outbox-relay")
def commands() -> None:
    """Transactional outbox for Celery. Set OUTBOX_DATABASE_URL, and OUTBOX_BROKER_URL for the relay."""


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


for command in (migrate, relay, status, pause, resume, prune, config):
    commands.add_command(command)


def main() -> None:
    occupy_standard_files()
    commands(prog_name="outbox")

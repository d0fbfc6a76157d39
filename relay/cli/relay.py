"""`outbox relay`."""

import os
import sys
from pathlib import Path

import click

from outbox.errors import ConfigurationError
from relay.cli.options import configuration, located


@click.command()
@located
@click.option("--name", help="A label for logs and status; otherwise OUTBOX_RELAY_NAME, or host and process id.")
@click.option("--app", metavar="MODULE:ATTRIBUTE", help="The Celery application: its routes, queues and options.")
@click.option("--workdir", metavar="FOLDER", help="Go there first; the application is imported from it.")
@click.option("--http", metavar="HOST:PORT", help="Where /metrics, /livez and /readyz are served; empty: nowhere.")
@click.option("--once", is_flag=True, help="Publish what is committed and due, then hand over and exit.")
@click.option("--adopt", is_flag=True, help="Go on in a database that was restored or moved from another cluster.")
@click.option("--i-know", is_flag=True, help="Also with a broker that only kombu speaks to.")
@click.option("--log-format", type=click.Choice(["console", "json"]), help="One line or one JSON object an event.")
@click.option("-v", "--verbose", is_flag=True, help="Log every window and every step too.")
def relay(
    config: str | None,
    outbox: str | None,
    workdir: str | None,
    once: bool,
    adopt: bool,
    i_know: bool,
    verbose: bool,
    **flags: str | None,
) -> None:
    """Publish committed messages until SIGTERM. Run two or more: one leads, the others stand by."""
    from relay.daemon import installed_version
    from relay.host import Host
    from relay.logs import EventLog, configure_logs
    from relay.monitor import Monitor
    from relay.signals import hold_signals

    _enter(workdir)
    chosen = {**flags, "adopt": "auto" if adopt else None, "i_know": i_know or None}
    settings = configuration(config, outbox, **chosen).all_settings()
    first = next(iter(settings.values()))
    if any(each.app for each in settings.values()):
        sys.path.insert(0, str(Path.cwd()))  # as `celery -A` does
    hold_signals()
    configure_logs(first.name, form=first.log_format, verbose=verbose, several=len(settings) > 1)
    monitor = Monitor(first.http, installed_version(), observer=EventLog(next(iter(settings))))
    host = Host(settings, monitor=monitor)
    host.stop_on_signals()
    with monitor:
        host.run(once=once)


def _enter(workdir: str | None) -> None:
    if workdir is None:
        return
    try:
        os.chdir(workdir)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "not a folder's name"
        raise ConfigurationError(f"--workdir {workdir!a} cannot be entered: {why}") from None

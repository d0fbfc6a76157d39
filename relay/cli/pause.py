"""`outbox pause` and `outbox resume`."""

import click

from outbox.errors import ConfigurationError
from relay.cli.exits import EXIT_NOT_FOUND
from relay.cli.options import connected, located, one_place
from relay.duration import parse_duration
from relay.pause import Pause, Pauses, checked_queue, checked_reason, operator
from relay.queries.pause import EVERYTHING, pause_queries_for


@click.command()
@click.argument("queue", required=False)
@click.option("--all", "everything", is_flag=True, help="Every queue: the log is not read at all.")
@click.option("--reason", required=True, help="Told to everybody who looks at the status.")
@click.option("--for", "length", metavar="30m", help="Resume by itself after this time.")
@located
def pause(
    queue: str | None,
    everything: bool,
    reason: str,
    length: str | None,
    config: str | None,
    outbox: str | None,
    schema: str | None,
) -> None:
    """Stop publishing a queue, or everything. Messages are still written, and wait; nothing is lost."""
    paused = _queue(queue, everything)
    until = parse_duration(length, "--for") if length is not None else None
    checked_reason(reason)
    place = one_place(config, outbox, schema)
    with connected(place, "pause") as connection:
        done = Pauses(connection, pause_queries_for(place.schema)).pause(paused, reason, until, operator())
    click.echo(f"{done.shown_queue} is paused {_until(done)}: {done.why}")


@click.command()
@click.argument("queue", required=False)
@click.option("--all", "everything", is_flag=True, help="End the pause of everything; paused queues stay paused.")
@located
@click.pass_context
def resume(
    context: click.Context,
    queue: str | None,
    everything: bool,
    config: str | None,
    outbox: str | None,
    schema: str | None,
) -> None:
    """Publish again what was paused; exit 3 if it was not."""
    paused = _queue(queue, everything)
    place = one_place(config, outbox, schema)
    with connected(place, "resume") as connection:
        pauses = Pauses(connection, pause_queries_for(place.schema))
        ended = pauses.resume(paused, operator())
        others = [each.shown_queue for each in pauses.in_force()]
    still = f"; still paused: {', '.join(others)}" if others else ""
    if ended is None:
        what = "everything" if everything else f"queue {paused}"
        click.echo(f"outbox: {what} was not paused{still}", err=True)
        context.exit(EXIT_NOT_FOUND)
    click.echo(f"{ended.shown_queue} is resumed; it was paused by {ended.by}: {ended.why}{still}")


def _queue(queue: str | None, everything: bool) -> str:
    if everything == (queue is not None):
        raise ConfigurationError("name one queue, or give --all")
    if queue == EVERYTHING:
        raise ConfigurationError("for every queue write --all; a shell would make file names of *")
    return checked_queue(queue or EVERYTHING)


def _until(done: Pause) -> str:
    return f"until {done.until:%Y-%m-%d %H:%M:%S %Z}" if done.until else "until it is resumed"

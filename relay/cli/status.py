"""`outbox status`."""

import json
import sys
import threading
from collections.abc import Sequence

import click

from outbox.errors import Unreachable
from relay.cli.exits import EXIT_FINDINGS, EXIT_INTERRUPTED
from relay.cli.options import configuration, connected, json_option, located
from relay.configuration import Place
from relay.queries.pause import pause_queries_for
from relay.queries.status import status_queries_for
from relay.status import Limits, Status, collect
from relay.status_words import render

_CLEAR = "\x1b[H\x1b[2J"


@click.command()
@located
@json_option
@click.option(
    "--watch",
    is_flag=False,
    flag_value=2.0,
    type=click.FloatRange(0.2, 3600),
    metavar="[SECONDS]",
    help="Again and again, every 2 s unless told; with --json one document a line.",
)
@click.option("--fail-on", metavar="LIMITS", help="Exit 6 if reached: age=60s,backlog=1000,parked=1,leader.")
@click.pass_context
def status(
    context: click.Context,
    config: str | None,
    outbox: str | None,
    schema: str | None,
    as_json: bool,
    watch: float | None,
    fail_on: str | None,
) -> None:
    """Leader, relays, backlog, age, rates, what is parked or paused and why."""
    limits = Limits.parse(fail_on) if fail_on is not None else Limits()
    places = configuration(config, outbox, schema=schema).places()
    if watch is not None:
        _watch(context, places, as_json, watch)
        return
    found = [_look(place) for place in places]
    click.echo(_said(places, found, as_json))
    findings = [
        f"{place.outbox}: {finding}" if len(places) > 1 else finding
        for place, state in zip(places, found, strict=True)
        for finding in limits.findings(state)
    ]
    for finding in findings:
        click.echo(f"outbox: {finding}", err=True)
    if findings:
        context.exit(EXIT_FINDINGS)


def _look(place: Place) -> Status:
    with connected(place, "status") as connection:
        return collect(connection, status_queries_for(place.schema), pause_queries_for(place.schema))


def _said(places: Sequence[Place], found: Sequence[Status], as_json: bool) -> str:
    if len(found) == 1:
        return json.dumps(found[0].as_json(), default=str) if as_json else render(found[0])
    named = {place.outbox: state for place, state in zip(places, found, strict=True)}
    if as_json:
        document = {"format": 1, "outboxes": {name: state.as_json() for name, state in named.items()}}
        return json.dumps(document, default=str)
    return "\n\n".join(f"[{name}]\n{render(state)}" for name, state in named.items())


def _watch(context: click.Context, places: Sequence[Place], as_json: bool, every: float) -> None:
    """A database that is away is told and asked again: whoever watches wants to see it come back."""
    redraw = not as_json and sys.stdout.isatty()
    try:
        while True:
            try:
                said = _said(places, [_look(place) for place in places], as_json)
            except Unreachable as error:
                click.echo(f"outbox: {error}", err=True)
            else:
                click.echo((_CLEAR if redraw else "") + said + ("" if as_json or redraw else "\n"))
                sys.stdout.flush()
            threading.Event().wait(every)
    except KeyboardInterrupt:
        context.exit(EXIT_INTERRUPTED)

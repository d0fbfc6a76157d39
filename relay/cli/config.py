"""`outbox config show`."""

import json

import click

from relay.cli.options import configuration, json_option, located
from relay.configuration import Value


@click.group()
def config() -> None:
    """The settings in force."""


@config.command()
@located
@click.option("--origin", is_flag=True, help="Say where each comes from: command line, environment, file, default.")
@json_option
def show(config: str | None, outbox: str | None, schema: str | None, origin: bool, as_json: bool) -> None:
    """Every setting of every outbox, without passwords; exit 2 if the relay would refuse them."""
    found = configuration(config, outbox, schema=schema)
    shown = {name: found.shown(name) for name in found.outboxes}
    if as_json:
        click.echo(json.dumps({"format": 1, "outboxes": {name: _document(shown[name], origin) for name in shown}}))
    else:
        click.echo("\n\n".join(_lines(name, values, origin) for name, values in shown.items()))
    # After the print: what is wrong is easier to see in what is there.
    for settings in found.all_settings().values():
        for notice in settings.notices():
            click.echo(f"outbox: warning: {notice}", err=True)


def _document(values: dict[str, Value], origin: bool) -> dict[str, object]:
    if not origin:
        return {name: each.value for name, each in values.items()}
    return {name: {"value": each.value, "origin": each.origin} for name, each in values.items()}


def _lines(outbox: str, values: dict[str, Value], origin: bool) -> str:
    lines = [f"[{outbox}]"]
    for name, each in values.items():
        text = "(not set)" if each.value is None else str(each.value)
        lines.append(f"{name:<18}{text:<30}  {each.origin}".rstrip() if origin else f"{name:<18}{text}")
    return "\n".join(lines)

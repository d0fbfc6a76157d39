"""`outbox prune`."""

import json

import click
import psycopg

from outbox.errors import OutboxError
from relay.cli.options import configuration, connected, json_option, located, one_place
from relay.database import identify
from relay.duration import parse_duration, shown_duration
from relay.pause import operator
from relay.prune import Prune, audited, checked_age, kept_for, limit_waits, prune_once
from relay.queries import queries_for
from relay.queries.prune import prune_queries_for


@click.command()
@located
@click.option(
    "--older-than", metavar="8d", help="Keep this long; otherwise the retention, and never below the horizon."
)
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@json_option
def prune(
    config: str | None, outbox: str | None, schema: str | None, older_than: str | None, dry_run: bool, as_json: bool
) -> None:
    """Forget finished messages now; a leading relay does so by itself."""
    place = one_place(config, outbox, schema)
    settings = configuration(config, outbox, schema=schema).numbers(place.outbox)
    keep = (
        kept_for(settings.retention_days, settings.horizon_days)
        if older_than is None
        else checked_age(parse_duration(older_than, "--older-than"), settings.horizon_days)
    )

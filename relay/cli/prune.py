"""`outbox prune`."""

import json

import click
import psycopg

from outbox.errors import OutboxError
from relay.cli.options import configuration, connected, json_option, located, one_place
from relay.database import identify
from relay.duration import parse_duration
from relay.events import ignore
from relay.pause import operator
from relay.prune import Prune, audited, checked_age, kept_for, prune_once
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
    values = configuration(config, outbox, schema=schema).values(place.outbox)
    retention, horizon = values["retention_days"].value, values["horizon_days"].value
    if older_than is None:
        keep = kept_for(retention, horizon)
    else:
        keep = checked_age(parse_duration(older_than, "--older-than"), horizon)
    with connected(place, "prune") as connection:
        identify(connection, queries_for(place.schema))
        work = Prune(connection, prune_queries_for(place.schema, fenced=False), None, ignore, place.schema, keep)
        try:
            gone = prune_once(work, dry_run=dry_run)
        except psycopg.errors.LockNotAvailable:
            raise OutboxError("a table is locked by another transaction; end it and run this again") from None
        if not dry_run:
            audited(work, operator())
    days = keep.total_seconds() / 86400
    if as_json:
        click.echo(json.dumps({"format": 1, "dry_run": dry_run, "kept_days": days, "rows": gone}))
        return
    rows = ", ".join(f"{count:,} of {table}" for table, count in sorted(gone.items()))
    click.echo(f"{'would go' if dry_run else 'gone'}: {rows or 'nothing'} (kept for {days:.4g} days)")

"""`outbox migrate`."""

import click

from outbox.migrations import REVISION
from outbox.statements import DEFAULT_SCHEMA
from relay.cli.exits import EXIT_FINDINGS
from relay.cli.options import configuration, located
from relay.configuration import Place


@click.command()
@located
@click.option("--status", "show_status", is_flag=True, help="Only say which revision is there; exit 6 if pending.")
@click.option("--sql", "show_sql", is_flag=True, help="Only print the SQL of a full migration.")
@click.pass_context
def migrate(
    context: click.Context,
    config: str | None,
    outbox: str | None,
    schema: str | None,
    show_status: bool,
    show_sql: bool,
) -> None:
    """Create or upgrade the tables. Safe to run any number of times, also at once."""
    from relay import migrate as runner  # Alembic is slow to import and no other command needs it

    found = configuration(config, outbox, schema=schema)
    if show_sql:
        for name in found.outboxes:
            click.echo(runner.script(found.values(name)["schema"].value or DEFAULT_SCHEMA))
        return
    pending = False
    for place in found.places():
        if show_status:
            pending |= _shown(place)
        else:
            before = runner.upgrade(place.database_url, place.schema)
            done = {None: "tables created, revision", REVISION: "nothing to do, already"}.get(before, "upgraded to")
            click.echo(f"schema {place.schema}: {done} {REVISION}")
            for role in runner.creators(place.database_url, place.schema):
                click.echo(
                    f"outbox: warning: role {role} may create objects in schema {place.schema} and so run code as the"
                    f" owner of the tables; REVOKE CREATE ON SCHEMA {place.schema} FROM {role}",
                    err=True,
                )
    if pending:
        context.exit(EXIT_FINDINGS)


def _shown(place: Place) -> bool:
    from relay import migrate as runner

    state = runner.status(place.database_url, place.schema)
    found = f"revision {state.current}" if state.current else "no outbox tables"
    click.echo(f"schema {place.schema}: {found}, newest {state.needed}")
    return state.pending

"""Where the migrations lie and how their SQL is read; Alembic itself is imported by no module here."""

from pathlib import Path

REVISION = "outbox_0001"
"""The revision this version of the library is written for; `outbox_revision()` in the database must equal it."""

TABLES = frozenset(
    "inbox_claim inbox_consumer inbox_dead_letter inbox_receipt inbox_retry outbox_alembic_version"
    " outbox_audit outbox_due outbox_key outbox_leader outbox_message outbox_pause outbox_rejected outbox_relay"
    " outbox_window".split()
)

# The functions and triggers of the migrations must not depend on the search_path of whoever calls them later:
# pin it to the target schema (pg_temp last, so that a temporary table shadows nothing), then give it back.
_PIN = (
    "SELECT set_config('outbox.search_path', current_setting('search_path'), true)",
    "SELECT set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true)",
)
_RESTORE = ("SELECT set_config('search_path', current_setting('outbox.search_path'), true)",)


def folder() -> Path:
    """The folder with `env.py`, `versions/` and `sql/`: inside the wheel, or beside the package in a checkout."""
    here = Path(__file__).resolve().parent
    shipped = here / "_migrations"
    return shipped if shipped.is_dir() else here.parent / "migrations"


def version_locations() -> str:
    """Our versions folder, for `version_locations` of your own Alembic, beside your own."""
    return str(folder() / "versions")


def include_object(_object: object, name: str | None, kind: str, _reflected: bool, _compare_to: object) -> bool:
    """For the `env.py` of your own Alembic: `context.configure(..., include_object=include_object)`.

    Without it `alembic revision --autogenerate` finds our tables in the database and not in your metadata, and
    writes a migration that drops them.
    """
    return not (kind == "table" and name in TABLES)


def statements(*names: str) -> tuple[str, ...]:
    """The statements of these SQL files, wrapped so that they run with search_path pinned to the current schema."""
    texts = [(folder() / "sql" / name).read_text(encoding="utf-8") for name in names]
    parts = (part.strip().removesuffix(";") for text in texts for part in text.split(";\n\n"))
    return (*_PIN, *(part for part in parts if part), *_RESTORE)

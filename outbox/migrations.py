"""Where the migrations lie and how their SQL is read; Alembic itself is imported by no module here."""

from pathlib import Path

REVISION = "outbox_0001"
"""The revision this version of the library is written for; `outbox_revision()` in the database must equal it."""

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


def statements(name: str) -> tuple[str, ...]:
    """The statements of one SQL file, wrapped so that they run with search_path pinned to the current schema."""
    text = (folder() / "sql" / name).read_text(encoding="utf-8")
    parts = (part.strip().removesuffix(";") for part in text.split(";\n\n"))
    return (*_PIN, *(part for part in parts if part), *_RESTORE)

import re
from pathlib import Path

import pytest
import sqlalchemy as sa

from outbox import migrations

FILES = sorted(path.name for path in (migrations.folder() / "sql").glob("*.sql"))


@pytest.fixture
def sql_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "sql").mkdir()
    monkeypatch.setattr(migrations, "folder", lambda: tmp_path)
    return tmp_path / "sql" / "0001.sql"


def inner(name: str) -> tuple[str, ...]:
    """Without the statements that pin search_path and give it back."""
    found = migrations.statements(name)
    assert "set_config('outbox.search_path', current_setting('search_path'), true)" in found[0]
    assert "set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true)" in found[1]
    assert "set_config('search_path', current_setting('outbox.search_path'), true)" in found[-1]
    return found[2:-1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ()),
        ("\n\n", ()),
        ("SELECT 1;\n", ("SELECT 1",)),
        ("SELECT 1", ("SELECT 1",)),
        ("SELECT 1;\n\nSELECT 2;\n", ("SELECT 1", "SELECT 2")),
        ("SELECT 1;\n\n\n\nSELECT 2;\n\n", ("SELECT 1", "SELECT 2")),
        ("-- why\nSELECT 1;\n\n-- and\nSELECT 2;\n", ("-- why\nSELECT 1", "-- and\nSELECT 2")),
        (
            "DO $$ BEGIN\n    PERFORM 1;\n    PERFORM 2;\nEND $$;\n",
            ("DO $$ BEGIN\n    PERFORM 1;\n    PERFORM 2;\nEND $$",),
        ),
        ("SELECT 'a;b';\n\nSELECT 'é';\n", ("SELECT 'a;b'", "SELECT 'é'")),
    ],
)
def test_a_statement_ends_at_a_semicolon_before_an_empty_line(
    sql_file: Path, text: str, expected: tuple[str, ...]
) -> None:
    sql_file.write_text(text, encoding="utf-8")
    assert inner("0001.sql") == expected


def test_every_migration_has_a_way_back() -> None:
    """A migration may have several files; they share its number and go in one step."""
    up, down = ([name for name in FILES if name.endswith(f".{way}.sql")] for way in ("up", "down"))
    assert sorted(up + down) == FILES
    assert {name[:4] for name in up} == {name[:4] for name in down}
    assert len(down) == len({name[:4] for name in down})
    versions = "".join(path.read_text(encoding="utf-8") for path in (migrations.folder() / "versions").glob("*.py"))
    assert [name for name in FILES if f'"{name}"' not in versions] == []


@pytest.mark.parametrize("name", FILES)
def test_the_files_are_split_into_whole_statements(name: str) -> None:
    for statement in inner(name):
        code = "\n".join(line for line in statement.splitlines() if not line.startswith("--")).strip()
        assert re.match(r"(CREATE|COMMENT ON|ALTER|DROP|INSERT INTO|SELECT|DO|GRANT|REVOKE)\s", code), statement
        assert statement.count("$$") % 2 == 0, statement
        assert statement.count("(") == statement.count(")"), statement


@pytest.mark.parametrize("name", FILES)
def test_no_colon_is_taken_for_a_parameter(name: str) -> None:
    """Alembic wraps each statement in text(), where `:word` is a parameter."""
    for statement in migrations.statements(name):
        assert not sa.text(statement).compile().params, statement


def test_the_newest_revision_is_the_one_this_library_needs() -> None:
    versions = [path.read_text(encoding="utf-8") for path in (migrations.folder() / "versions").glob("*.py")]
    revisions = {match[1] for text in versions if (match := re.search(r'^revision = "(\w+)"', text, re.MULTILINE))}
    assert max(revisions) == migrations.REVISION
    newest = (migrations.folder() / "sql").glob("*.up.sql")
    assert any(f"'{migrations.REVISION}'" in path.read_text(encoding="utf-8") for path in newest)


def test_the_folder_holds_what_alembic_looks_for() -> None:
    assert (migrations.folder() / "env.py").is_file()


def test_the_shipped_folder_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrations, "__file__", str(tmp_path / "outbox" / "migrations.py"))
    (tmp_path / "outbox").mkdir()
    assert migrations.folder() == tmp_path / "migrations"
    (tmp_path / "outbox" / "_migrations").mkdir()
    assert migrations.folder() == tmp_path / "outbox" / "_migrations"

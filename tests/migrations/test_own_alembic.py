"""Users with Alembic of their own run our branch there, beside theirs."""

import warnings
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from click.testing import CliRunner

from outbox.migrations import TABLES, folder, include_object
from relay import migrate
from relay.cli import commands
from tests.migrations.catalog import object_names, whole_catalog

ENVIRONMENT = """
from alembic import context
with context.config.attributes["engine"].connect() as connection:
    context.configure(connection=connection)
    with context.begin_transaction():
        context.run_migrations()
"""
ORDERS = """
import sqlalchemy as sa
from alembic import op
revision, down_revision, branch_labels, depends_on = "shop_1", None, ("shop",), None
def upgrade():
    op.create_table("orders", sa.Column("id", sa.BigInteger, primary_key=True))
def downgrade():
    op.drop_table("orders")
"""
# It comes after ours in the same transaction, and needs the second schema of the search_path.
SETTINGS = """
from alembic import op
revision, down_revision, branch_labels, depends_on = "shop_2", "shop_1", None, ("outbox_0001",)
def upgrade():
    op.execute("INSERT INTO settings VALUES ('currency')")
def downgrade():
    pass
"""


@pytest.fixture
def own_alembic(empty_database: str, tmp_path: Path) -> Config:
    """A shop's own migrations folder, with our versions added to its `version_locations`."""
    (tmp_path / "versions").mkdir()
    (tmp_path / "env.py").write_text(ENVIRONMENT)
    (tmp_path / "versions" / "shop_1.py").write_text(ORDERS)
    url = sa.make_url(empty_database).set(drivername="postgresql+psycopg")
    config = Config(attributes={"engine": sa.create_engine(url, poolclass=sa.NullPool)})
    config.set_main_option("script_location", str(tmp_path))
    config.set_main_option("path_separator", "newline")
    config.set_main_option("version_locations", f"{tmp_path / 'versions'}\n{folder() / 'versions'}")
    return config


def test_our_branch_runs_beside_theirs(empty_database: str, own_alembic: Config) -> None:
    command.upgrade(own_alembic, "heads")
    migrate.upgrade(empty_database, "ours")
    theirs, ours = whole_catalog(empty_database, "public"), whole_catalog(empty_database, "ours")
    strangers = {"orders", "alembic_version"}
    for what, rows in ours.items():
        assert [row for row in theirs[what] if not set_off(row[0], strangers)] == rows, what
    with psycopg.connect(empty_database) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version ORDER BY 1").fetchall() == [
            ("outbox_0001",),
            ("shop_1",),
        ]


def set_off(name: str, strangers: set[str]) -> bool:
    return any(name.lstrip("_").startswith(stranger) for stranger in strangers)


def test_the_search_path_is_given_back_to_the_next_migration(
    empty_database: str, own_alembic: Config, tmp_path: Path
) -> None:
    (tmp_path / "versions" / "shop_2.py").write_text(SETTINGS)
    with psycopg.connect(empty_database) as connection:
        connection.execute("CREATE SCHEMA shop")
        connection.execute("CREATE TABLE public.settings (name text)")
        connection.execute(f"ALTER DATABASE {connection.info.dbname} SET search_path TO shop, public".encode())
    command.upgrade(own_alembic, "heads")
    assert {"outbox_message", "orders", "inbox_receipt"} <= object_names(empty_database, "shop")
    assert "outbox_message" not in object_names(empty_database, "public")
    with psycopg.connect(empty_database) as connection:
        assert connection.execute("SELECT name FROM public.settings").fetchall() == [("currency",)]


def test_outbox_migrate_leaves_tables_of_another_runner_alone(empty_database: str, own_alembic: Config) -> None:
    command.upgrade(own_alembic, "heads")
    before = whole_catalog(empty_database, "public")

    def run(*options: str) -> tuple[int, str]:
        result = CliRunner().invoke(commands, ["migrate", *options], env={"OUTBOX_DATABASE_URL": empty_database})
        return result.exit_code, result.output

    assert run() == (
        4,
        "outbox: these tables were made by your own Alembic; upgrade them there: alembic upgrade outbox@head\n",
    )
    assert run("--status") == (0, "schema public: revision outbox_0001, newest outbox_0001\n")
    assert whole_catalog(empty_database, "public") == before


def test_their_downgrade_removes_ours_only(empty_database: str, own_alembic: Config) -> None:
    command.upgrade(own_alembic, "heads")
    command.downgrade(own_alembic, "outbox@base")
    left = object_names(empty_database, "public")
    assert "orders" in left
    assert not any(name.lstrip("_").startswith(("outbox", "inbox")) for name in left)
    command.upgrade(own_alembic, "heads")
    assert not migrate.status(empty_database).pending


def test_autogenerate_with_our_filter_leaves_our_tables_alone(empty_database: str) -> None:
    """Without it Alembic writes a migration that drops every one of them."""
    migrate.upgrade(empty_database)
    engine = sa.create_engine(empty_database.replace("postgresql://", "postgresql+psycopg://", 1))
    theirs = sa.MetaData()
    sa.Table("orders", theirs, sa.Column("id", sa.BigInteger, primary_key=True))
    with engine.connect() as connection, warnings.catch_warnings():
        warnings.simplefilter("ignore", sa.exc.SAWarning)  # Alembic reflects types that SQLAlchemy does not know
        unfiltered = compare_metadata(MigrationContext.configure(connection), theirs)
        options = {"include_object": include_object}
        filtered = compare_metadata(MigrationContext.configure(connection, opts=options), theirs)
    engine.dispose()
    dropped = {change[1].name for change in unfiltered if change[0] == "remove_table"}
    assert dropped == TABLES
    assert [change[0] for change in filtered] == ["add_table"]

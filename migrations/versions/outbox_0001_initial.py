"""The tables of the outbox and the inbox.

Revision ID: outbox_0001
"""

from alembic import op

from outbox import migrations

revision = "outbox_0001"
down_revision = None
branch_labels = ("outbox",)
depends_on = None


def upgrade() -> None:
    for statement in migrations.statements("0001_initial.up.sql", "0001_functions.up.sql"):
        op.execute(statement)


def downgrade() -> None:
    for statement in migrations.statements("0001_initial.down.sql"):
        op.execute(statement)

"""Alembic's environment for `outbox migrate`; relay/migrate.py passes the connection and the schema.

Users who run Alembic themselves never load this file: they add the versions folder to their own.
"""

from alembic import context

attributes = context.config.attributes
options = {
    "version_table": "outbox_alembic_version",
    "version_table_schema": attributes["schema"],
    "dialect_name": "postgresql",
    "dialect_opts": {"paramstyle": "named"},  # with another style every percent sign would be printed twice
}

if context.is_offline_mode():
    context.configure(output_buffer=attributes["buffer"], literal_binds=True, **options)
    with context.begin_transaction():
        for preamble in attributes["preamble"]:
            context.execute(preamble.replace(":", "\\:"))  # a colon in a name is not a parameter
        context.run_migrations()
else:
    # The transaction is begun and committed outside, so that the migration lock covers all of it.
    context.configure(connection=attributes["connection"], **options)
    context.run_migrations()

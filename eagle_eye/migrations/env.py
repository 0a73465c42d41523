"""Run by alembic, on the connection and in the transaction of the process that opens the ledger."""

from alembic import context

from eagle_eye.ledger.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,  # SQLite alters a table by copying it
)
context.run_migrations()

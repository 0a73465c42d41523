"""Whose a job is. Jobs of before have none until they are declared again."""

from alembic import op
from sqlalchemy import Column, Double, String, Text

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "job_owners", Column("job", String(400), nullable=False, primary_key=True), Column("changed", Double, nullable=False), Column("body", Text, nullable=False)
    )
    op.create_index("ix_job_owners_changed", "job_owners", ["changed"])

"""What changed on nodes and between a job's runs."""

from alembic import op
from sqlalchemy import Column, Double, String, Text

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "changes", Column("id", String(64), nullable=False, primary_key=True), Column("entity", String(400), nullable=False), Column("job", String(400), nullable=False),
        Column("time", Double, nullable=False), Column("body", Text, nullable=False),
    )  # fmt: skip
    op.create_index("ix_changes_entity_time", "changes", ["entity", "time"])
    op.create_index("ix_changes_job_time", "changes", ["job", "time"])
    op.create_index("ix_changes_time", "changes", ["time"])

"""The newest checkpoint of each job that is safe."""

from alembic import op
from sqlalchemy import Column, Double, String, Text

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "safe_checkpoints", Column("job", String(400), nullable=False, primary_key=True), Column("node", String(255), nullable=False, primary_key=True),
        Column("time", Double, nullable=False), Column("body", Text, nullable=False),
    )  # fmt: skip

"""What planning for running jobs needs: what their transitions cost, and the answers that stand ready."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Make the new tables."""
    op.create_table(
        "transition_costs",
        sa.Column("job", sa.String(400), nullable=False),
        sa.Column("name", sa.String(40), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("job", "name", name="pk_transition_costs"),
    )
    op.create_table(
        "standing_plans",
        sa.Column("id", sa.String(200), nullable=False),
        sa.Column("made", sa.Double(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_standing_plans"),
    )

"""What a cluster of servers adds to the first tables: one function per subject."""

from collections.abc import Callable

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def _what_people_say() -> None:
    """Silences, maintenance windows, breakers and notes."""
    op.create_table(
        "brakes",
        sa.Column("id", sa.String(200), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.Column("until", sa.Double(), nullable=True),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_brakes"),
    )
    op.create_index("ix_brakes_kind_until", "brakes", ["kind", "until"])
    op.create_table(
        "notes",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("incident", sa.String(200), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_notes"),
    )
    op.create_index("ix_notes_incident", "notes", ["incident"])


SUBJECTS: tuple[Callable[[], None], ...] = (_what_people_say,)


def upgrade() -> None:
    """Make the new tables, subject by subject."""
    for make in SUBJECTS:
        make()

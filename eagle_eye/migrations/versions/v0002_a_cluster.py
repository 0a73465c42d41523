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


def _alerts() -> None:
    """What was said about each incident, so that it is said once."""
    op.create_table(
        "alerts",
        sa.Column("id", sa.String(200), nullable=False),
        sa.Column("storm", sa.String(200), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("opened", sa.Double(), nullable=False),
        sa.Column("changed", sa.Double(), nullable=False),
        sa.Column("over", sa.Double(), nullable=True),
        sa.Column("news", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_alerts"),
    )
    op.create_index("ix_alerts_over_opened", "alerts", ["over", "opened"])


def _invitations() -> None:
    """Links under which one plan is decided once."""
    op.create_table(
        "invitations",
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("plan", sa.String(200), nullable=False),
        sa.Column("incident", sa.String(200), nullable=False),
        sa.Column("job", sa.String(400), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("made", sa.Double(), nullable=False),
        sa.Column("expires", sa.Double(), nullable=False),
        sa.Column("used", sa.Double(), nullable=True),
        sa.Column("person", sa.String(200), nullable=True),
        sa.Column("approved", sa.Boolean(), nullable=True),
        sa.PrimaryKeyConstraint("hash", name="pk_invitations"),
    )
    op.create_index("ix_invitations_expires", "invitations", ["expires"])


def _throughputs() -> None:
    """What jobs reached on how many workers."""
    op.create_table(
        "throughputs",
        sa.Column("job", sa.String(400), nullable=False),
        sa.Column("workers", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("tokens_per_s", sa.Double(), nullable=True),
        sa.Column("steps_per_s", sa.Double(), nullable=True),
        sa.Column("time", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("job", "workers", name="pk_throughputs"),
    )


SUBJECTS: tuple[Callable[[], None], ...] = (_what_people_say, _alerts, _invitations, _throughputs)


def upgrade() -> None:
    """Make the new tables, subject by subject."""
    for make in SUBJECTS:
        make()

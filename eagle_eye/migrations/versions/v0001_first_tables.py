"""The first tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

TABLES = (
    "leases",
    "epochs",
    "jobs",
    "cordons",
    "incidents",
    "incident_revisions",
    "incident_states",
    "findings",
    "notices",
    "plans",
    "progress",
    "outcomes",
    "approvals",
    "verdicts",
    "outbox",
)


def upgrade() -> None:
    """Make them all."""
    _who_leads()
    _what_was_seen()
    _what_was_done()
    _what_was_said()


def downgrade() -> None:
    """Drop them all, with their rows."""
    for table in TABLES:
        op.drop_table(table)


def _who_leads() -> None:
    op.create_table(
        "leases",
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("term", sa.BigInteger(), nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("pid", sa.BigInteger(), nullable=False),
        sa.Column("boot", sa.String(64), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_leases"),
    )
    op.create_table(
        "epochs",
        sa.Column("job", sa.String(400), nullable=False),
        sa.Column("epoch", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job", "epoch", name="pk_epochs"),
    )
    op.create_table(
        "jobs",
        sa.Column("job", sa.String(400), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job", name="pk_jobs"),
    )
    op.create_table(
        "cordons",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("node", sa.String(255), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.Column("released", sa.Double(), nullable=True),
        sa.Column("person", sa.String(200), nullable=True),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_cordons"),
    )
    op.create_index("ix_cordons_node_released", "cordons", ["node", "released"])


def _what_was_seen() -> None:
    op.create_table(
        "incidents",
        sa.Column("id", sa.String(200), nullable=False),
        sa.Column("job", sa.String(400), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("opened", sa.Double(), nullable=False),
        sa.Column("changed", sa.Double(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_incidents"),
    )
    op.create_index("ix_incidents_job_opened", "incidents", ["job", "opened"])
    op.create_index("ix_incidents_opened", "incidents", ["opened"])
    op.create_index("ix_incidents_state_opened", "incidents", ["state", "opened"])
    op.create_table(
        "incident_revisions",
        sa.Column("incident", sa.String(200), nullable=False),
        sa.Column("revision", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("incident", "revision", name="pk_incident_revisions"),
    )
    op.create_table(
        "incident_states",
        sa.Column("incident", sa.String(200), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("incident", "number", name="pk_incident_states"),
    )
    op.create_table(
        "findings",
        sa.Column("id", sa.String(200), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("job", sa.String(400), nullable=False),
        sa.Column("kind", sa.String(100), nullable=False),
        sa.Column("active", sa.Boolean(), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_findings"),
    )
    op.create_index("ix_findings_active_job_time", "findings", ["active", "job", "time"])
    op.create_index("ix_findings_time", "findings", ["time"])
    op.create_table(
        "notices",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_notices"),
    )
    op.create_index("ix_notices_time", "notices", ["time"])


def _what_was_done() -> None:
    op.create_table(
        "plans",
        sa.Column("id", sa.String(200), nullable=False),
        sa.Column("incident", sa.String(200), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("made", sa.Double(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_plans"),
    )
    op.create_index("ix_plans_incident", "plans", ["incident"])
    op.create_index("ix_plans_made", "plans", ["made"])
    op.create_table(
        "progress",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("plan", sa.String(200), nullable=False),
        sa.Column("step", sa.String(200), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_progress"),
    )
    op.create_index("ix_progress_plan_number", "progress", ["plan", "number"])
    op.create_table(
        "outcomes",
        sa.Column("plan", sa.String(200), nullable=False),
        sa.Column("incident", sa.String(200), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("plan", name="pk_outcomes"),
    )
    op.create_index("ix_outcomes_incident", "outcomes", ["incident"])
    op.create_index("ix_outcomes_time", "outcomes", ["time"])


def _what_was_said() -> None:
    op.create_table(
        "approvals",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("expires", sa.Double(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_approvals"),
    )
    op.create_index("ix_approvals_digest_time", "approvals", ["digest", "time"])
    op.create_index("ix_approvals_expires", "approvals", ["expires"])
    op.create_table(
        "verdicts",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("plan", sa.String(200), nullable=False),
        sa.Column("incident", sa.String(200), nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_verdicts"),
    )
    op.create_index("ix_verdicts_incident", "verdicts", ["incident"])
    op.create_index("ix_verdicts_plan", "verdicts", ["plan"])
    op.create_table(
        "outbox",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("made", sa.Double(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_try", sa.Double(), nullable=False),
        sa.Column("done", sa.Double(), nullable=True),
        sa.Column("error", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_outbox"),
    )
    op.create_index("ix_outbox_done_next_try", "outbox", ["done", "next_try"])

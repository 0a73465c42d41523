"""Tables and a column under the names of the glossary; what they hold stays."""

from alembic import op

revision = "0004"
down_revision = "0003"

TABLES = {"brakes": "suppressions", "invitations": "approval_links", "standing_plans": "precomputed_plans"}
INDEXES = {"brakes": ["kind", "until"], "invitations": ["expires"]}


def upgrade() -> None:
    """Rename them."""
    for old, columns in INDEXES.items():
        op.drop_index(f"ix_{old}_{'_'.join(columns)}", table_name=old)
    for old, new in TABLES.items():
        op.rename_table(old, new)
    for old, columns in INDEXES.items():
        op.create_index(f"ix_{TABLES[old]}_{'_'.join(columns)}", TABLES[old], columns)
    op.execute("ALTER TABLE leases RENAME COLUMN boot TO incarnation")

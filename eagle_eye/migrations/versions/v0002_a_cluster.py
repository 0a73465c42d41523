"""What a cluster of servers adds to the first tables: one function per subject."""

from collections.abc import Callable

revision = "0002"
down_revision = "0001"

SUBJECTS: tuple[Callable[[], None], ...] = ()


def upgrade() -> None:
    """Make the new tables, subject by subject."""
    for make in SUBJECTS:
        make()

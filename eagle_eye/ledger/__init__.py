"""The ledger: what was found, decided, approved and done, and who leads. One SQLite file beside the stream, or PostgreSQL.

Every write is one transaction. Nouns are kept whole as JSON beside the columns that are searched. SQLite in WAL
mode with `synchronous=NORMAL`: what was written survives the death of any process; after a power cut the last
writes may be gone, never half there.

`Ledger` is loaded when it is first used: SQLAlchemy takes longer to import than a command that lists incidents may take.
"""

from typing import TYPE_CHECKING

from .records import (
    AlertRecord,
    ApprovalLink,
    Cordon,
    IncidentRecord,
    JobOwner,
    JobRecord,
    Lease,
    LeaseHolder,
    Notification,
    PastCordon,
    StateChange,
    Throughput,
    TimelineEntry,
    TransitionCost,
    VerdictRecord,
)

if TYPE_CHECKING:
    from .ledger import Ledger as Ledger

__all__ = [
    "AlertRecord",
    "ApprovalLink",
    "Cordon",
    "IncidentRecord",
    "JobOwner",
    "JobRecord",
    "Lease",
    "LeaseHolder",
    "Ledger",
    "Notification",
    "PastCordon",
    "StateChange",
    "Throughput",
    "TimelineEntry",
    "TransitionCost",
    "VerdictRecord",
]


def __getattr__(name: str) -> object:
    if name == "Ledger":
        from .ledger import Ledger

        return Ledger
    raise AttributeError(f"module 'eagle_eye.ledger' has no attribute {name!r}")

"""The ledger: what was found, decided, approved and done, and who leads. One SQLite file beside the stream, or PostgreSQL.

Every write is one transaction. Nouns are kept whole as JSON beside the columns that are searched. SQLite in WAL
mode with `synchronous=NORMAL`: what was written survives the death of any process; after a power cut the last
writes may be gone, never half there.
"""

from .alert_outbox import AlertTable, Outbox
from .cordon_table import CordonTable
from .epoch_table import EpochTable
from .finding_table import FindingTable
from .incident_table import IncidentTable
from .lease_table import LeaseTable
from .metric_queries import MetricQueries
from .plan_table import ApprovalLinkTable, PlanTable
from .planning_tables import PlanningTable
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
    StateChange,
    Throughput,
    TimelineEntry,
    TransitionCost,
    VerdictRecord,
)
from .retention import Retention
from .timeline import Timeline

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
    "StateChange",
    "Throughput",
    "TimelineEntry",
    "TransitionCost",
    "VerdictRecord",
]


class Ledger(Timeline, LeaseTable, IncidentTable, FindingTable, PlanTable, EpochTable, CordonTable, Outbox, AlertTable, Retention, MetricQueries, ApprovalLinkTable, PlanningTable):
    """The whole ledger; `Ledger.open(path)`. Thread-safe; many processes may read while one writes.

    Every method may raise LedgerError; one that writes also Stale, once `fence_writes` was called and another leader
    has taken over.
    """

"""`Ledger`: all tables together."""

from .alert_outbox import AlertTable, Outbox
from .change_table import ChangeTable
from .cordon_table import CordonTable
from .epoch_table import EpochTable
from .finding_table import FindingTable
from .incident_table import IncidentTable
from .lease_table import LeaseTable
from .metric_queries import MetricQueries
from .plan_table import ApprovalLinkTable, PlanTable
from .planning_tables import PlanningTable
from .retention import Retention
from .safety_table import SafetyTable
from .timeline import Timeline


class Ledger(Timeline, LeaseTable, IncidentTable, FindingTable, PlanTable, EpochTable, CordonTable, Outbox, AlertTable, Retention, MetricQueries, ApprovalLinkTable, PlanningTable, ChangeTable, SafetyTable):
    """The whole ledger; `Ledger.open(path)`. Thread-safe; many processes may read while one writes.

    Every method may raise LedgerError; one that writes also Stale, once `fence_writes` was called and another leader
    has taken over.
    """

"""The ledger: what was found, decided, approved and done, and who leads. One SQLite file beside the stream, or PostgreSQL.

Every write is one transaction. Nouns are kept whole as JSON beside the columns that are searched. SQLite in WAL
mode with `synchronous=NORMAL`: what was written survives the death of any process; after a power cut the last
writes may be gone, never half there.
"""

from .alerts import Alerts
from .approval_links import Invitations
from .cordons import Cordons
from .epochs import Epochs
from .findings import Findings
from .incidents import Incidents
from .leases import Leases
from .live_planning import LivePlanning
from .metric_queries import Figures
from .outbox import Outbox
from .plans import Plans
from .records import (
    AlertRecord,
    Cordon,
    Holder,
    IncidentRecord,
    Invitation,
    JobFacts,
    KeptVerdict,
    Lease,
    Letter,
    Moment,
    StateChange,
    Throughput,
    TransitionCost,
)
from .retention import Retention
from .throughputs import Throughputs
from .timeline import Timeline

__all__ = [
    "AlertRecord",
    "Cordon",
    "Holder",
    "IncidentRecord",
    "Invitation",
    "JobFacts",
    "KeptVerdict",
    "Lease",
    "Ledger",
    "Letter",
    "Moment",
    "StateChange",
    "Throughput",
    "TransitionCost",
]


class Ledger(Timeline, Leases, Incidents, Findings, Plans, Epochs, Cordons, Outbox, Alerts, Retention, Figures, Invitations, Throughputs, LivePlanning):
    """The whole ledger; `Ledger.open(path)`. Thread-safe; many processes may read while one writes.

    Every method may raise LedgerError; one that writes also Stale, once `write_as` was called and another leader
    has taken over.
    """

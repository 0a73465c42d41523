"""What the ledger returns beside the nouns of eagle_eye/types/. Times are seconds since 1970."""

import msgspec

from eagle_eye.types import Demand, Incident, IncidentState, Layout, Verdict

SHOWN_NODES = 4


class LedgerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A plain frozen value."""


class LeaseHolder(LedgerRecord, frozen=True, kw_only=True):
    """A process that may hold a lease."""

    host: str
    pid: int
    incarnation: str
    """Random id of this life of the process."""


class Lease(LedgerRecord, frozen=True, kw_only=True):
    """Who holds what, and until when."""

    name: str
    term: int
    """Rises each time that the holder changes."""
    holder: LeaseHolder
    since: float
    until: float

    def __str__(self) -> str:
        return f"process {self.holder.pid} on {self.holder.host} (term {self.term})"


class IncidentRecord(LedgerRecord, frozen=True, kw_only=True):
    """The last revision of an incident and where it stands."""

    incident: Incident
    state: IncidentState
    opened: float
    changed: float
    """When it came into this state."""


class StateChange(LedgerRecord, frozen=True, kw_only=True):
    """One step in the life of an incident."""

    state: IncidentState
    time: float


class VerdictRecord(LedgerRecord, frozen=True, kw_only=True):
    """The verdict of a guard on a plan."""

    plan: str
    incident: str
    verdict: Verdict
    time: float


class JobRecord(LedgerRecord, frozen=True, kw_only=True):
    """What a job's coordinator has reported to the leader."""

    layout: Layout
    address: str
    """host:port of the coordinator's control channel."""
    heal: str
    budget_left: int
    nodes_min: int = 1
    """The fewest nodes on which it runs."""
    demand: Demand | None = None
    """None: it is not elastic, and nobody changes its size."""
    coordinator: str = ""
    """Node of the launcher that reported it; '' in records of older versions. After an election it is not the layout's until an epoch is begun."""

    @property
    def coordinated_by(self) -> str:
        """Node of the launcher that is commanded."""
        return self.coordinator or self.layout.coordinator


class JobOwner(LedgerRecord, frozen=True, kw_only=True):
    """Whose a job is: who declared it first. It stays so when the job is over: its name is not free for others."""

    nodes: tuple[str, ...] = ()
    """Named by its layouts so far: each of them may have to report the next one."""
    tenant: str = ""
    """It was declared under a certificate that is limited to this tenant."""
    local: bool = False
    """It was declared over loopback, by `user`."""
    user: int | None = None
    """User id; None: of a user who could not be told."""

    def __str__(self) -> str:
        if self.local:
            from eagle_eye.access.caller import user_name  # what reads incidents does without it

            return user_name(self.user)
        shown = ", ".join(self.nodes[:SHOWN_NODES]) + (", …" if len(self.nodes) > SHOWN_NODES else "")
        return f"the tenant {self.tenant} on {shown}" if self.tenant else shown


class Cordon(LedgerRecord, frozen=True, kw_only=True):
    """A node that must not take part until an operator, or the plan that undoes it, releases it."""

    node: str
    job: str
    plan: str
    reason: str
    since: float


class PastCordon(LedgerRecord, frozen=True, kw_only=True):
    """A cordon that is over."""

    cordon: Cordon
    released: float
    person: str
    """Who released the node; '' where the plan that undid it did."""


class Notification(LedgerRecord, frozen=True, kw_only=True):
    """A webhook call that is to be made."""

    id: int
    name: str
    """Of the webhook in the configuration; its address is not kept here."""
    body: str
    made: float
    attempts: int
    next_try: float


class AlertRecord(LedgerRecord, frozen=True, kw_only=True):
    """What was notified about one incident, or about a storm of them."""

    id: str
    """Of the incident, or of the storm."""
    storm: str = ""
    """The storm in whose notifications it is counted; then it has none of its own."""
    number: int = 0
    """Notifications so far."""
    opened: float = 0.0
    changed: float = 0.0
    """When the last notification was written."""
    over: float | None = None
    """When it was resolved."""
    news: str = ""
    """What somebody has to hear next."""
    body: str = ""
    """The text that was sent last."""


class TimelineEntry(LedgerRecord, frozen=True, kw_only=True):
    """One line of an incident's story."""

    time: float
    what: str
    """fault, finding, incident, state, plan, verdict, approval, step, outcome, note or breaker."""
    text: str


class ApprovalLink(LedgerRecord, frozen=True, kw_only=True):
    """A link under which one plan may be decided, once."""

    plan: str
    incident: str
    job: str
    digest: str
    """Of the plan; another one is not decided under this link."""
    made: float
    expires: float
    used: float | None = None
    person: str = ""
    """Who used it."""
    approved: bool = False
    """The text that was sent then."""


class Throughput(LedgerRecord, frozen=True, kw_only=True):
    """What a job reached on so many workers while nothing was wrong."""

    job: str
    """tenant/name: every run of it counts."""
    workers: int
    tokens_per_s: float | None = None
    """Of all workers together; None if the script does not log tokens."""
    steps_per_s: float | None = None
    time: float
    """When it was seen last."""


class TransitionCost(LedgerRecord, frozen=True, kw_only=True):
    """What a transition of a job took, part by part."""

    job: str
    """tenant/name: every run of it counts."""
    name: str
    """`regroup_s`: from the notice of a death to the new group with its state; `start_s`: until a worker more has joined."""
    seconds: float
    """The median of those that were seen."""
    time: float
    """When it was seen last."""

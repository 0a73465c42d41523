"""Claims, findings and incidents: what detectors and diagnosis conclude."""

from enum import StrEnum

from .entity import Entity, Name, Noun, Number, Real, Time


class Evidence(Noun, frozen=True, kw_only=True):
    """One line of evidence of a finding."""

    text: str
    event: str = ""
    """Id of an event, if the line comes from one."""
    metric: str = ""
    value: Real | None = None
    threshold: Real | None = None
    status: str = ""
    """Name of the error status (eagle_eye/error_statuses.py); '' if it has none."""


class Claim(Noun, frozen=True, kw_only=True):
    """What a detector yields: a finding without id, revision and digest, which the runner adds."""

    entity: Entity
    kind: str
    """e.g. worker.exited, node.lost, worker.stalled, loss.not_finite: docs/findings.md."""
    score: Real
    """0 to 1: how sure the detector is."""
    since: Time
    evidence: tuple[Evidence, ...]
    active: bool = True
    """False withdraws the finding."""


class Finding(Noun, frozen=True, kw_only=True):
    """A detector's claim, numbered. While it is open, a claim of the same detector, entity and kind is its next revision."""

    id: Name
    revision: Number
    detector: str
    digest: str
    """Of the detector's name and configuration."""
    job: Name
    entity: Entity
    kind: Name
    score: Real
    since: Time
    time: Time
    """Time of the mark that closed the frame."""
    evidence: tuple[Evidence, ...]
    active: bool


class Severity(StrEnum):
    """The weakest repair that can help (Unicron, table 1): sev1 isolate, sev2 restart, sev3 retry in place, info none."""

    SEV1 = "sev1"
    SEV2 = "sev2"
    SEV3 = "sev3"
    INFO = "info"


class Culprit(Noun, frozen=True, kw_only=True):
    """An entity that most likely caused an incident."""

    entity: Entity
    confidence: Real
    """0 to 1: how often such an accusation was right in drills, as far as its findings are sure (detectors/diagnosis/confidence.py)."""
    score: Real = 1.0
    """0 to 1: how sure the findings are. What evicts asks for both."""

    @property
    def proof(self) -> float:
        """What an eviction may rest on: no calibration makes one easier."""
        return min(self.confidence, self.score)


class Rival(Noun, frozen=True, kw_only=True):
    """A rival explanation of an incident, and what would distinguish it."""

    cause: str
    entity: Entity | None = None
    apart: str = ""


class IncidentState(StrEnum):
    """State of an incident, as operators see it."""

    OPEN = "open"
    CONTAINED = "contained"
    HEALING = "healing"
    HEALED = "healed"
    FAILED = "failed"
    CLOSED = "closed"


class Incident(Noun, frozen=True, kw_only=True):
    """One fault and its consequences: cause, culprits, evidence; revised as findings come and go."""

    id: Name
    revision: Number
    job: Name
    cause: Name
    """Name of a cause in detectors/diagnosis/causes.py: worker killed, node lost, python hang, ... or unknown."""
    culprits: tuple[Culprit, ...]
    """Empty when unknown: then no node is evicted."""
    severity: Severity
    findings: tuple[str, ...]
    """Ids of its findings; in a storm of the first thousand."""
    evidence: tuple[Evidence, ...]
    rivals: tuple[Rival, ...] = ()
    since: Time
    """Start of the fault according to the evidence."""
    time: Time
    bill_gpu_hours: Real = 0.0
    active: bool = True
    """False once every finding in it was withdrawn or its epoch is over."""
    victims: tuple[Name, ...] = ()
    """Jobs that the same fault hits, this one among them, where a part that they share shows it; () = this one alone. Each has an incident of its own, for each is repaired by itself."""
    part_of: str = ""
    """Id of the incident that turned out to explain this one, which is closed then."""
    more: dict[str, Number] = {}
    """Kind → findings of a storm that are counted but not in `parts`."""
    parts: tuple[Finding, ...] = ()
    """Newest revisions of its findings, the causes first, at most 256: diagnosis keeps no state of its own."""


class Notice(Noun, frozen=True, kw_only=True):
    """A notice to the operator about Eagle Eye itself; never a finding, causes no action."""

    name: str
    """stream.away, stream.recovered, leader.elected, clock.jumped, ..."""
    time: Time
    message: str


class IncidentNote(Noun, frozen=True, kw_only=True):
    """A note of an operator on an incident."""

    incident: str
    person: str
    time: Time
    text: str

"""What is made of it: claims, findings and incidents."""

from enum import StrEnum

from .entity import Entity, Noun


class Evidence(Noun, frozen=True, kw_only=True):
    """One line of a finding's proof."""

    text: str
    event: str = ""
    """Id of an event, if the line comes from one."""
    metric: str = ""
    value: float | None = None
    threshold: float | None = None
    status: str = ""
    """What the table of statuses calls it (detectors/features/error_statuses.py), if it is in the table."""


class Claim(Noun, frozen=True, kw_only=True):
    """What a detector yields: a finding before the runner gave it an id, a revision and a digest."""

    entity: Entity
    kind: str
    """e.g. worker.exited, node.lost, worker.stalled, loss.not_finite: docs/findings.md."""
    score: float
    """0 to 1: how sure the detector is."""
    since: float
    evidence: tuple[Evidence, ...]
    active: bool = True
    """False withdraws the finding: it is over."""


class Finding(Noun, frozen=True, kw_only=True):
    """A detector's claim. The same detector, entity and kind while open is a revision of the same finding."""

    id: str
    revision: int
    detector: str
    digest: str
    """Of the detector's name and configuration."""
    job: str
    entity: Entity
    kind: str
    score: float
    since: float
    time: float
    """Time of the mark that closed the frame."""
    evidence: tuple[Evidence, ...]
    active: bool


class Severity(StrEnum):
    """The weakest repair that can help (Unicron, table 1): isolate, restart, reattempt in place, or none."""

    SEV1 = "sev1"
    SEV2 = "sev2"
    SEV3 = "sev3"
    INFO = "info"


class Culprit(Noun, frozen=True, kw_only=True):
    """Who did it, as far as we know."""

    entity: Entity
    confidence: float


class Rival(Noun, frozen=True, kw_only=True):
    """Another explanation, and what would tell it apart."""

    cause: str
    entity: Entity | None = None
    apart: str = ""


class IncidentState(StrEnum):
    """The life of an incident."""

    OPEN = "open"
    CONTAINED = "contained"
    HEALING = "healing"
    HEALED = "healed"
    FAILED = "failed"
    CLOSED = "closed"


class Incident(Noun, frozen=True, kw_only=True):
    """What the operator is told; revised as evidence comes."""

    id: str
    revision: int
    job: str
    cause: str
    """A word of diagnosis/causes: worker killed, node lost, python hang, ... or unknown."""
    culprits: tuple[Culprit, ...]
    """Empty when unknown: evicts nobody."""
    severity: Severity
    findings: tuple[str, ...]
    """Ids of those in it; in a storm of the first thousand."""
    evidence: tuple[Evidence, ...]
    rivals: tuple[Rival, ...] = ()
    since: float
    """When the fault began, as far as the evidence tells."""
    time: float
    bill_gpu_hours: float = 0.0
    active: bool = True
    """False once every finding in it was withdrawn or its epoch is over."""
    more: dict[str, int] = {}
    """Kind → how many findings of a storm are counted beyond the parts."""
    parts: tuple[Finding, ...] = ()
    """The newest revision of its findings, so that diagnosis keeps nothing of its own; at most 256, movers first."""


class Notice(Noun, frozen=True, kw_only=True):
    """Something that the operator should know about Eagle Eye itself; never a finding, evicts nobody."""

    name: str
    """stream.away, stream.recovered, leader.elected, clock.skewed, ..."""
    time: float
    message: str

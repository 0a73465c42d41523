"""The nouns: what flows through Eagle Eye. Frozen, keyword-only, each with a schema version.

Batches become frames, frames become findings, findings an incident, an incident a plan, a plan an
outcome. Times are seconds since 1970 (UTC) unless a name says otherwise. Arrays are never changed
after they were made. `Frame` lives in frames.py: it holds arrays and a window, and is never sent.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from .digests import digest_of as digest_of  # noqa: PLC0414 -- part of the vocabulary

SCHEMA = 1
"""The version of every noun below; a reader understands this one and the one before."""

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Integers = NDArray[np.int64]


class Noun(msgspec.Struct, frozen=True, kw_only=True, tag_field="noun", tag=str.lower, omit_defaults=False):
    """A value with a schema version; `noun` names its kind in JSON."""

    schema: int = SCHEMA


class Kind(StrEnum):
    """The kinds of things that a fault can be in, from the narrowest to the widest."""

    GPU = "gpu"
    WORKER = "worker"
    LINK = "link"
    NODE = "node"
    SWITCH = "switch"
    JOB = "job"


class Entity(Noun, frozen=True, kw_only=True):
    """A physical, lasting thing. A rank is no identity: it changes at every restart."""

    kind: Kind
    name: str
    """node: `--node`; gpu: its UUID; worker: run/node/slot; job: tenant/name/run."""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class Place(Noun, frozen=True, kw_only=True):
    """One worker's place in a layout."""

    worker: str
    node: str
    rank: int
    local_rank: int
    gpu: str = ""
    """UUID of its GPU; empty on a machine without."""
    dp: int = 0
    pp: int = 0
    tp: int = 0


class Layout(Noun, frozen=True, kw_only=True):
    """Which worker is which rank in an epoch of a job: a record in the stream at each transition."""

    job: str
    epoch: int
    time: float
    coordinator: str
    """Node whose launcher coordinates this epoch."""
    launchers: dict[str, str]
    """Node → host:port of its launcher's control channel, in the order of succession."""
    places: tuple[Place, ...]
    excluded: tuple[str, ...] = ()
    """Nodes that must not take part until they are released."""
    reason: str = ""
    """Why this epoch was begun: start, death, command, node lost, node returned, node released."""
    plan: str = ""
    resume_step: int = -1
    """Roll back to the newest whole checkpoint at or before this step; -1: the newest of all."""
    skipped: tuple[int, ...] = ()
    """Steps whose batch is drawn and thrown away."""
    restarts: int = 0
    """How many restarts the job has spent of its own budget."""

    @property
    def workers(self) -> tuple[str, ...]:
        return tuple(place.worker for place in self.places)

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(place.node for place in self.places))

    def node_of(self, worker: str) -> str:
        """Node of a worker, '' if the layout does not know it."""
        return next((place.node for place in self.places if place.worker == worker), "")

    def rank_of(self, worker: str) -> int:
        """Rank of a worker, -1 if the layout does not know it."""
        return next((place.rank for place in self.places if place.worker == worker), -1)


class Reading(Noun, frozen=True, kw_only=True, eq=False):
    """What a collector returns: one source's block of numbers. Rates, never raw counters."""

    source: str
    kind: Kind
    entities: tuple[str, ...]
    names: tuple[str, ...]
    """Metric names with their unit, e.g. `power_watts`."""
    matrix: Floats
    """entities × names; NaN where there is no reading."""
    time: float


class StepReading(Noun, frozen=True, kw_only=True, eq=False):
    """What the training collector returns beside its readings: the steps that its workers have completed."""

    source: str
    workers: tuple[str, ...]
    names: tuple[str, ...]
    numbers: Integers
    """rows: step numbers, ascending."""
    epochs: Integers
    """rows: the job's epoch in which the step was done."""
    ends: Doubles
    """rows × workers: time at which the worker completed the step; NaN if it has not."""
    values: Doubles
    """rows × workers × names."""


class SchemaRecord(Noun, frozen=True, kw_only=True):
    """Names of the columns of a block; written to the stream before the first batch that uses it."""

    id: str
    """Digest of source, kind and names."""
    source: str
    kind: Kind
    names: tuple[str, ...]
    steps: bool = False


class Block(Noun, frozen=True, kw_only=True, eq=False):
    """One source's part of a batch."""

    schema_id: str
    reading: Reading | StepReading


class Batch(Noun, frozen=True, kw_only=True, eq=False):
    """One record a second per node and job. Identity: (node, boot, job, number)."""

    node: str
    boot: str
    """Random id of the agent's process: numbers start again with it."""
    job: str
    number: int
    time: float
    blocks: tuple[Block, ...]


class Event(Noun, frozen=True, kw_only=True):
    """Something that happened once, sent at once by who saw it. Identity: (node, boot, number)."""

    name: str
    """exit, exception, stall, session.opened, session.lost, peer.lost, epoch.begun, epoch.failed, xid, gpu.lost, ... : docs/wire.md."""
    job: str
    entity: Entity
    time: float
    node: str
    """Of the writer."""
    boot: str
    number: int
    message: str = ""
    attributes: dict[str, str] = {}

    @property
    def id(self) -> str:
        return f"{self.node}/{self.boot}/{self.number}"


class Baseline(Noun, frozen=True, kw_only=True):
    """What a learner fitted (`data`: msgpack, never pickle): immutable, stored by digest, read by detectors as `frame.baselines[name]`."""

    name: str
    """Name of the detector that reads it."""
    job: str
    digest: str
    fitted: float
    data: bytes


class ConfigChange(Noun, frozen=True, kw_only=True):
    """A configuration takes effect everywhere at the tick after this record."""

    digest: str
    text: str


class Mark(Noun, frozen=True, kw_only=True):
    """Written by the partition's owner: a tick each second, a cut as soon as an event was read.

    Marks of a lower generation than the highest seen are skipped.
    """

    mark: Literal["tick", "cut"]
    generation: int
    number: int
    time: float


Record = Batch | Event | Layout | SchemaRecord | Baseline | ConfigChange | Mark
"""Everything that is written to the topic of observations."""


class Step(Noun, frozen=True, kw_only=True, eq=False):
    """One step of a job, when all workers have reported it or three ticks after the first did."""

    number: int
    epoch: int
    workers: tuple[str, ...]
    end: float
    """Time at which the last worker completed it."""
    values: dict[str, Floats]
    """Name → one number per worker, NaN = not reported: step_s, forward_s, loss, tokens, ..."""


class Topology(Noun, frozen=True, kw_only=True):
    """Which node hangs at which switch, which GPU in which node."""

    nodes: dict[str, str] = {}
    """Node → switch ('' = unknown)."""
    gpus: dict[str, str] = {}
    """GPU UUID → node."""
    workers: dict[str, str] = {}
    """Worker → node, of the newest layouts."""


class Evidence(Noun, frozen=True, kw_only=True):
    """One line of a finding's proof."""

    text: str
    event: str = ""
    """Id of an event, if the line comes from one."""
    metric: str = ""
    value: float | None = None
    threshold: float | None = None
    status: str = ""
    """What the table of statuses calls it (detectors/statuses.py), if it is in the table."""


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
    evidence: tuple[Evidence, ...]
    rivals: tuple[Rival, ...] = ()
    since: float
    """When the fault began, as far as the evidence tells."""
    time: float
    bill_gpu_hours: float = 0.0
    active: bool = True
    """False once every finding in it was withdrawn or its epoch is over."""
    parts: tuple[Finding, ...] = ()
    """The newest revision of its findings, so that diagnosis keeps nothing of its own; at most 256, movers first."""


class Mode(StrEnum):
    """How far Eagle Eye may go beyond what the job allowed itself."""

    OBSERVE = "observe"
    RECOMMEND = "recommend"
    AUTO = "auto"


class Target(Noun, frozen=True, kw_only=True):
    """What a plan wants of one job."""

    job: str
    epoch: int
    """The plan is stale once the job's epoch is higher."""
    basis: str
    """Digest of the layout that the plan was made for."""
    exclude: tuple[str, ...] = ()
    resume_step: int = -1
    skip: tuple[int, ...] = ()
    workers: tuple[str, ...] = ()


class Alternative(Noun, frozen=True, kw_only=True):
    """An action that lost, and why."""

    action: str
    why: str


class Plan(Noun, frozen=True, kw_only=True):
    """One action against one incident."""

    id: str
    incident: str
    action: str
    targets: tuple[Target, ...]
    made: float
    expires: float
    severity: Severity
    own: bool = False
    """True: the job allowed it itself with `--heal`; no mode and no guard is asked."""
    reason: str = ""
    cost: float = 0.0
    """WAF·seconds (here: GPU-seconds) that the action itself is expected to cost."""
    benefit: float = 0.0
    alternatives: tuple[Alternative, ...] = ()

    @property
    def digest(self) -> str:
        """What an approval is given for: action and targets, whatever the id and the time."""
        return digest_of(self.action, self.targets)


class Transition(Noun, frozen=True, kw_only=True):
    """A plan worked out for an elastic job: who recomputes what, who sends which layer to whom."""

    job: str
    epoch: int
    target: Layout
    recompute: dict[str, tuple[int, ...]]
    """Worker → micro-batches."""
    sends: tuple[tuple[str, str, int], ...]
    """(giver, taker, layer), in this order."""


class Allow(Noun, frozen=True, kw_only=True):
    """A guard lets the plan pass."""

    guard: str
    reason: str = ""


class Hold(Noun, frozen=True, kw_only=True):
    """A guard wants something first: a person's approval, or `seconds` of time (0 = until something changes)."""

    guard: str
    reason: str
    seconds: float = 0.0


class Refuse(Noun, frozen=True, kw_only=True):
    """A guard says no."""

    guard: str
    reason: str


Verdict = Allow | Hold | Refuse


class Progress(Noun, frozen=True, kw_only=True):
    """One step of an action, before (`intended`) and after (`done`)."""

    step: str
    state: Literal["intended", "done", "failed"]
    time: float
    detail: str = ""


class Outcome(Noun, frozen=True, kw_only=True):
    """What became of a plan."""

    plan: str
    incident: str
    action: str
    state: Literal["intended", "done", "failed", "stale"]
    time: float
    progress: tuple[Progress, ...] = ()
    detection_s: float | None = None
    """C_detection: from the fault's beginning to the incident."""
    transition_s: float | None = None
    """C_transition: from the incident to the first step committed afterwards."""
    sub_healthy_s: float | None = None
    """C_sub-healthy: GPU-seconds lost so far by running on less than the full layout."""
    predicted: dict[str, float] = {}
    actual: dict[str, float] = {}
    detail: str = ""


class Approval(Noun, frozen=True, kw_only=True):
    """A named person's word on one plan digest."""

    digest: str
    person: str
    approved: bool
    time: float
    expires: float


class Notice(Noun, frozen=True, kw_only=True):
    """Something that the operator should know about Eagle Eye itself; never a finding, evicts nobody."""

    name: str
    """stream.away, stream.back, leader.began, clock.skewed, ..."""
    time: float
    message: str


class Situation(Noun, frozen=True, kw_only=True):
    """What a guard sees beside the plan: `running` plans have begun and not ended, `nodes` is the known cluster's size."""

    mode: Mode
    incident: Incident
    open: tuple[Incident, ...]
    outcomes: tuple[Outcome, ...]
    """The recent ones, newest first."""
    running: tuple[Plan, ...]
    plans: Mapping[str, Plan]
    """Of the recent outcomes, by id."""
    approvals: tuple[Approval, ...]
    nodes: int
    now: float

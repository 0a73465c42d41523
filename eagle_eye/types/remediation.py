"""Remediation: plans, also precomputed ones, guards' verdicts, approvals, progress and outcomes, jobs' demand, and the situation that guards see."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Literal

import msgspec

from .entity import Noun, Time, digest_of
from .findings import Incident, Severity
from .observations import Layout, Telemetry, Topology
from .suppression import Breaker, Silence, Window

WorkerCount = Annotated[int, msgspec.Meta(ge=0, le=1 << 20)]
Weight = Annotated[float, msgspec.Meta(gt=0.0, le=1e9)]


class Demand(Noun, frozen=True, kw_only=True):
    """Workers that an elastic job asks for and has; its coordinator reports it with each layout."""

    declared: dict[str, WorkerCount]
    """Node → workers with which it was started there; it never gets more in total."""
    workers_per_node: dict[str, WorkerCount]
    """Node → workers that it is allowed there now: `declared` less those that cannot be replaced, or the resized number."""
    weight: Weight = 1.0
    """Weight of its progress in the cluster's objective (WAF)."""
    workers_min: WorkerCount = 1
    """Fewest workers with which it can run."""

    @property
    def most(self) -> int:
        """Workers that it asked for."""
        return sum(self.declared.values())

    @property
    def now(self) -> int:
        """Workers that it is to have now."""
        return sum(self.workers_per_node.values())


class Mode(StrEnum):
    """What Eagle Eye may do beyond a job's own self-healing: only observe, recommend plans, or act."""

    OBSERVE = "observe"
    RECOMMEND = "recommend"
    AUTO = "auto"


class Target(Noun, frozen=True, kw_only=True):
    """What a plan requests of one job."""

    job: str
    epoch: int
    """The job's epoch when the plan was made; the plan is stale once it is higher."""
    basis: str
    """Digest of the layout for which the plan was made."""
    exclude: tuple[str, ...] = ()
    resume_step: int = -1
    skip: tuple[int, ...] = ()
    swap: tuple[str, ...] = ()
    """Two nodes that exchange their ranks; the first one has the lower ones before."""
    workers: tuple[str, ...] = ()
    workers_per_node: dict[str, int] = {}
    """Node → workers that the job is to have there; nodes that are not named stay as they are. Of a resize."""
    workers_per_node_before: dict[str, int] = {}
    """The same nodes as they were."""
    speeds: dict[str, float] = {}
    """Worker → its speed, 1 being healthy: micro-batches are shared out by it. Of a rebalance."""


class Alternative(Noun, frozen=True, kw_only=True):
    """An action that was considered and not chosen."""

    action: str
    why: str
    cost: float | None = None
    """Its expected cost in WAF·seconds; None: impossible or unknown."""
    benefit: float | None = None
    """Its expected benefit in WAF·seconds against doing nothing."""


class Plan(Noun, frozen=True, kw_only=True):
    """One action against one incident, with its targets, cost and benefit."""

    id: str
    incident: str
    action: str
    targets: tuple[Target, ...]
    made: float
    expires: float
    severity: Severity
    own: bool = False
    """True: self-healing of a job with `--heal`; mode and guards do not apply."""
    undoes: str = ""
    """Id of the plan that this one rolls back; '' if none."""
    reason: str = ""
    cost: float = 0.0
    """WAF·seconds (here: GPU-seconds) that the action itself is expected to cost."""
    benefit: float = 0.0
    alternatives: tuple[Alternative, ...] = ()

    @property
    def digest(self) -> str:
        """What an approval refers to: action and targets, independent of id and time."""
        return digest_of(self.action, self.targets)

    def target_of(self, job: str) -> Target:
        """Target for this job; the first target if the plan does not name the job."""
        return next((target for target in self.targets if target.job == job), self.targets[0])


WorkerPhase = Literal["starting", "computing", "reducing", "committing", "applying", "idle"]
"""Phase of an elastic worker within its step."""


class WorkerStateReport(Noun, frozen=True, kw_only=True):
    """Report of an elastic worker when an epoch starts: its state, and its partial results of the current step."""

    worker: str
    node: str
    step: int
    """The next step to compute from its state."""
    done: tuple[int, ...] = ()
    """Micro-batches of this step that it has finished or is computing."""
    segments: tuple[int, ...] = ()
    """Segments of this step's gradient that it has reduced."""
    phase: WorkerPhase = "idle"
    """`committing` and `applying`: all segments are reduced. `idle`: at a boundary, nothing of the step is begun."""
    fresh: bool = False
    """Its state is only the initial one: worth nothing if anybody holds more."""
    layers: tuple[int, ...] | None = None
    """Layers whose state of this step it holds; None: all, or none if it is fresh (a state that arrived in part)."""


class Transition(Noun, frozen=True, kw_only=True):
    """A transition of an elastic job to a new layout: which rank computes which micro-batches and sends which layers.

    Ranks are those of `target`. A worker does it in this order: finish, moves, then `current` of its step.
    """

    job: str
    epoch: int
    target: Layout
    step: int
    """The step in flight. With source "checkpoint" it is the step that was loaded, if any was."""
    current: tuple[tuple[int, ...], ...]
    """By rank: micro-batches that it contributes to this step; what it has done beyond these it must drop (`dropped`).
    All micro-batches of a step, each once; with `finish` those alone that the living have done, nobody computes them."""
    shares: tuple[tuple[int, ...], ...]
    """By rank: micro-batches of the later steps."""
    finish: tuple[int, ...] = ()
    """By segment: the rank that sends it to those that lack it. A worker that is at `step` applies and is at step + 1, which is
    the first one to compute; `moves` carry the state of step + 1. Empty: the step has to be computed."""
    moves: tuple[tuple[int, int, int], ...] = ()
    """(rank of the sender, rank of the receiver, layer), in this order."""
    bytes: int = 0
    """That the moves carry."""
    source: Literal["", "checkpoint"] = ""
    """"checkpoint": nobody holds state, it is the newest one's or the initial one; rank 0 reads it if `moves` are there
    that bring it to the others, else everybody does."""
    lost_micro_batches: tuple[int, ...] = ()
    """Of this step: those whose gradients were lost with a worker, or could still be done by it."""
    recompute: dict[str, tuple[int, ...]] = {}
    """Worker → the lost micro-batches that it takes over."""
    dropped: dict[str, tuple[int, ...]] = {}
    """Worker → micro-batches that it has done and another one contributes."""


class Allow(Noun, frozen=True, kw_only=True):
    """A guard allows the plan."""

    guard: str
    reason: str = ""


class Hold(Noun, frozen=True, kw_only=True):
    """A guard holds the plan: until an approval, or for `seconds` (0 = until something changes)."""

    guard: str
    reason: str
    seconds: float = 0.0


class Refuse(Noun, frozen=True, kw_only=True):
    """A guard refuses the plan."""

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
    """The result of a plan, with measured and predicted costs."""

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
    """An operator's approval or refusal of one plan digest."""

    digest: str
    person: str
    approved: bool
    time: Time
    expires: Time
    incident: str = ""
    """Incident for which it was given; the same plan against a later fault needs a new approval."""


class Situation(Noun, frozen=True, kw_only=True):
    """What a guard sees beside the plan. `running`: plans that were started and have not ended; `nodes`: size of the cluster."""

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
    settled: float = 0.0
    """Time at which the debounce of the incident ends or ended."""
    silences: tuple[Silence, ...] = ()
    """Active silences."""
    windows: tuple[Window, ...] = ()
    """Open maintenance windows."""
    breakers: tuple[Breaker, ...] = ()
    """Open breakers."""
    topology: Topology = Topology()
    layouts: Mapping[str, Layout] = {}
    """Job → its newest valid one."""
    nodes_min: Mapping[str, int] = {}
    """Job → fewest nodes with which it can run."""
    demands: Mapping[str, Demand] = {}
    """Elastic job → its demand."""
    telemetry: Mapping[str, Telemetry] = {}
    """Node that takes part in a job → its telemetry."""


class PrecomputedPlan(Noun, frozen=True, kw_only=True):
    """The plan for one possible next event, computed and checked by the guards before it happens."""

    id: str
    event: Literal["worker lost", "node lost", "worker returned"]
    of: str = ""
    """Job that loses a worker; '' when a node is lost or a worker returned."""
    node: str
    """Node of the event."""
    mode: Mode
    """Mode in which it was made; it is valid in that mode alone."""
    epochs: dict[str, int]
    """Job → epoch for which it was made; invalid once one of them has a newer epoch."""
    made: float
    expires: float
    workers: dict[str, int]
    """Job → workers after the event."""
    workers_per_node: dict[str, dict[str, int]] = {}
    """Job → node → workers, for jobs that are resized, jobs that shrink first; {}: none is."""
    waf_before: float = 0.0
    """Weighted work per second before the event (worker-seconds a second)."""
    waf: float = 0.0
    """The same after the event, with the plan carried out."""
    allowed: bool = False
    """Mode and guards allowed it when it was made."""
    why: str = ""
    """Their reasons, and what the plan is based on."""

    def fits(self, epochs: Mapping[str, int], mode: Mode, now: float) -> bool:
        """Whether it is still valid: same mode, not expired, no newer epoch."""
        return self.mode is mode and now < self.expires and all(epochs.get(job) == epoch for job, epoch in self.epochs.items())

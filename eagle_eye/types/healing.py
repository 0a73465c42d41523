"""What is done about it: plans, verdicts, progress and outcomes; and what a guard sees beside a plan."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

from eagle_eye.digests import digest_of

from .brakes import Breaker, Silence, Telemetry, Window
from .demand import Demand
from .entity import Noun
from .judgements import Incident, Severity
from .observations import Layout, Topology


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
    seats: dict[str, int] = {}
    """Node → workers that the job is to have there; nodes that are not named stay as they are. Of a resize."""
    seats_before: dict[str, int] = {}
    """The same nodes as they were."""
    speeds: dict[str, float] = {}
    """Worker → its speed, 1 being healthy: micro-batches are shared out by it. Of a rebalance."""


class Alternative(Noun, frozen=True, kw_only=True):
    """An action that lost, and why."""

    action: str
    why: str
    cost: float | None = None
    """WAF·seconds that it would have cost; None: it was not possible, or nobody could tell."""
    benefit: float | None = None
    """WAF·seconds that it would have saved against doing nothing."""


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
    undoes: str = ""
    """Id of the plan that this one takes back; '' if none."""
    reason: str = ""
    cost: float = 0.0
    """WAF·seconds (here: GPU-seconds) that the action itself is expected to cost."""
    benefit: float = 0.0
    alternatives: tuple[Alternative, ...] = ()

    @property
    def digest(self) -> str:
        """What an approval is given for: action and targets, whatever the id and the time."""
        return digest_of(self.action, self.targets)

    def target_of(self, job: str) -> Target:
        """What it wants of this job; of its first one if it does not name this."""
        return next((target for target in self.targets if target.job == job), self.targets[0])


WorkerPhase = Literal["starting", "computing", "reducing", "committing", "applying", "idle"]
"""What an elastic worker is at within its step."""


class WorkerStateReport(Noun, frozen=True, kw_only=True):
    """What an elastic worker holds when an epoch begins: its state, and its partial results of the step in flight."""

    worker: str
    node: str
    step: int
    """Number of the first step still to do that its state is for."""
    done: tuple[int, ...] = ()
    """Micro-batches of this step that it has finished, or is at."""
    segments: tuple[int, ...] = ()
    """Segments of this step's gradient that it holds reduced."""
    phase: WorkerPhase = "idle"
    """`committing` and `applying`: all segments are reduced. `idle`: at a boundary, nothing of the step is begun."""
    fresh: bool = False
    """Its state is only the initial one: worth nothing if anybody holds more."""
    layers: tuple[int, ...] | None = None
    """Layers whose state of this step it holds; None: all, or none if it is fresh (a state that arrived in part)."""


class Transition(Noun, frozen=True, kw_only=True):
    """A plan worked out for an elastic job: who recomputes what, who sends which layer to whom.

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
    """By segment: the rank that gives it to those who lack it. Whoever is at `step` applies and is at step + 1, which is
    the first one to compute; `moves` carry the state of step + 1. Empty: the step has to be computed."""
    moves: tuple[tuple[int, int, int], ...] = ()
    """(rank of the giver, rank of the taker, layer), in this order."""
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
    incident: str = ""
    """That it was given for: the same plan against a later fault is asked for again."""


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
    settled: float = 0.0
    """When the incident has settled, or had."""
    silences: tuple[Silence, ...] = ()
    """Those that have begun and not ended."""
    windows: tuple[Window, ...] = ()
    """Of maintenance; those under way."""
    breakers: tuple[Breaker, ...] = ()
    """The open ones."""
    topology: Topology = Topology()
    layouts: Mapping[str, Layout] = {}
    """Job → its newest valid one."""
    nodes_min: Mapping[str, int] = {}
    """Job → the fewest nodes on which it runs."""
    demands: Mapping[str, Demand] = {}
    """Elastic job → what it asks for, and has."""
    telemetry: Mapping[str, Telemetry] = {}
    """Of every node that takes part in a job."""

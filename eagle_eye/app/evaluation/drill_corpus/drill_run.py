"""Drills through the chain as the runner calls it: frames → detectors → findings → diagnosis → incidents → the plan that would be proposed."""

import heapq
import logging
import math
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

import msgspec

from detectors.diagnosis import Diagnosis
from detectors.runtime.detector_set import DetectorSet
from detectors.runtime.evaluator import Prototypes
from eagle_eye.app import plugin_wiring
from eagle_eye.config import Config
from eagle_eye.frames import Frame
from eagle_eye.topology import node_of, with_layout
from eagle_eye.types import Entity, Incident, Kind, Mark, Severity, Topology

from .drill_frames import JobFrames
from .drill_job import DrillJob, DrillLabel
from .kinds.distractions import distract
from .kinds.handicaps import OWN, handicap
from .planned_drills import PlannedDrill, jobs_of
from .proposed_plan import evicted

log = logging.getLogger(__name__)

SETTLES_S = 1.0
"""Seconds after the last new cause, or culprit, before an incident is acted upon (`settle_s` of the engine)."""


class Accusation(msgspec.Struct, frozen=True, kw_only=True):
    """One incident with a culprit."""

    cause: str
    confidence: float
    """That it states."""
    score: float
    """Of the detectors, before it is calibrated."""
    right: bool
    """Its cause is right, and its culprits are exactly those at fault of its job."""


class DrillVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What the chain made of a drill, beside the truth."""

    number: int
    kind: str
    family: str
    fault: bool
    ranks: int
    causes: tuple[str, ...]
    """That are right."""
    told: tuple[str, ...]
    """Causes of its incidents; those that ask for a repair alone, where there are any."""
    culprits: tuple[str, ...]
    """Who is at fault."""
    accused: tuple[str, ...]
    """Whom the newest revisions accuse."""
    class_right: bool
    culprit_right: bool
    ever_accused: int
    """Healthy entities that a revision has accused which stood for a second."""
    evicted: tuple[str, ...]
    """Healthy nodes that the proposed plan of any revision would take out of a job."""
    accusations: tuple[Accusation, ...] = ()
    """What the newest revisions state."""
    delay_s: float | None = None
    """From the onset to the first incident that is right."""
    handicap: str = ""
    """What made it hard; '' = nothing."""


def run_drill(plan: PlannedDrill, detectors: Prototypes) -> DrillVerdict:
    """One drill, from its first healthy second on."""
    jobs, kind = jobs_of(plan)
    label = kind.happen(jobs)
    beside = distract(jobs[0])
    if beside and "" in label.causes:
        label = label._replace(causes=(*label.causes, beside))
    handicapped = handicap(jobs[0], plan.seed) if plan.hard else ""
    if handicapped:
        label = label._replace(causes=(*label.causes, *OWN), unknown_too=True)
    judge = DrillJudge(jobs, detectors)
    until = max(job.onset for job in jobs) + kind.lasts_s
    for frame in heapq.merge(*(JobFrames(job, until) for job in jobs), key=lambda frame: frame.time):
        judge.take(frame)
    return msgspec.structs.replace(judge.verdict(plan, label, family=kind.family, fault=kind.fault), handicap=handicapped)


def run_drills(plans: Sequence[PlannedDrill], processes: int, done: Callable[[object], None]) -> Iterator[DrillVerdict]:
    """All of them, as they are done; `done` is called after each. 1: in this process."""
    if processes == 1:
        detectors = plugin_wiring.detectors(Config())
        for plan in plans:
            yield run_drill(plan, detectors)
            done(plan)
        return
    longest_first = sorted(plans, key=lambda plan: -sum(plan.sizes))
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        for verdict in pool.map(_run, longest_first):
            yield verdict
            done(verdict)


def _run(plan: PlannedDrill) -> DrillVerdict:
    return run_drill(plan, plugin_wiring.detectors(Config()))


class DrillJudge:
    """Frames of all jobs of a drill in, incidents out."""

    def __init__(self, jobs: Sequence[DrillJob], detectors: Prototypes) -> None:
        self._jobs = {job.name: job for job in jobs}
        self._topology = Topology()
        for job in jobs:
            self._topology = with_layout(self._topology, job.layout)
        self._detectors = {job.name: DetectorSet(job.name, detectors, lambda name, text: log.warning("%s: %s", name, text)) for job in jobs}
        self._open: dict[str, Incident] = {}
        self._revisions: list[tuple[float, Incident]] = []
        self._number = 0

    def take(self, frame: Frame) -> None:
        """One frame of one job."""
        self._number += 1
        mark = Mark(mark="tick" if frame.tick else "cut", generation=1, number=self._number, time=frame.time)
        findings = self._detectors[frame.job].evaluate(frame, mark)
        if not findings:
            return
        for incident in Diagnosis().diagnose(tuple(self._open.values()), findings, self._topology):
            known = self._open.pop(incident.id, None)
            if incident.active:
                self._open[incident.id] = incident
            if known is None or incident.revision > known.revision:
                self._revisions.append((frame.time, incident))

    # --- the verdict -----------------------------------------------------------------------------------------------

    def verdict(self, plan: PlannedDrill, label: DrillLabel, *, family: str, fault: bool) -> DrillVerdict:
        """Beside the truth."""
        newest = [each for each in {incident.id: incident for _, incident in self._revisions}.values() if not each.part_of]
        to_blame = {self._identity(entity) for entity in label.culprits}
        accused = {self._identity(culprit.entity) for each in newest for culprit in each.culprits}
        right = [time for time, each in self._revisions if each.cause in label.causes and {self._identity(culprit.entity) for culprit in each.culprits} <= to_blame]
        guilty = {node for entity in label.culprits if (node := node_of(entity, self._topology))}
        evictions = {node for _, each in self._revisions for node in evicted(each, self._jobs[each.job].layout, self._topology)}
        ever = {self._identity(culprit.entity) for each in self._settled() for culprit in each.culprits if node_of(culprit.entity, self._topology) not in guilty}
        onset, unknown = min(job.onset for job in self._jobs.values()), label.unknown_too and not accused
        return DrillVerdict(
            number=plan.number, kind=plan.kind, family=family, fault=fault, ranks=sum(plan.sizes), causes=label.causes, told=_told(newest), culprits=tuple(sorted(to_blame)),
            accused=tuple(sorted(accused)), class_right=self._class_right(newest, label) or unknown, culprit_right=accused == to_blame or unknown, ever_accused=len(ever - to_blame),
            evicted=tuple(sorted(evictions - guilty)), accusations=tuple(self._accusation(each, label, to_blame) for each in newest if each.culprits),
            delay_s=max(0.0, min(right) - onset) if right else None,
        )  # fmt: skip

    def _accusation(self, incident: Incident, label: DrillLabel, to_blame: set[str]) -> Accusation:
        named = {self._identity(culprit.entity) for culprit in incident.culprits}
        exact = named == to_blame or (len(self._jobs) > 1 and not label.shared and named <= to_blame)
        first = incident.culprits[0]
        return Accusation(cause=incident.cause, confidence=first.confidence, score=first.score, right=exact and incident.cause in label.causes)

    def _settled(self) -> Iterator[Incident]:
        """Revisions that stood for as long as the engine waits before it believes them."""
        ends: dict[str, float] = {}
        for time, incident in reversed(self._revisions):
            if ends.get(incident.id, math.inf) - time >= SETTLES_S:
                yield incident
            ends[incident.id] = time

    def _identity(self, entity: Entity) -> str:
        """A worker and its GPU are the same suspect: no more can be told apart."""
        if entity.kind is Kind.WORKER and (gpu := self._topology.worker_gpus.get(entity.name, "")):
            return f"gpu {gpu}"
        return str(entity)

    def _class_right(self, newest: Sequence[Incident], label: DrillLabel) -> bool:
        """Every incident that asks for a repair has a right cause; where none does, one that informs has, or nothing needs to be told. One fault of two jobs is joined."""
        told, right = set(_told(newest)), set(label.causes)
        every = any(_asks(each) for each in newest) or "" in right
        return (told <= right if every else bool(told & right)) and bool(told or "" in right) and self._joined(newest) == label.shared

    def _joined(self, newest: Sequence[Incident]) -> bool:
        """An incident says that it hits all jobs of the drill."""
        return len(self._jobs) > 1 and any(set(each.victims) >= self._jobs.keys() for each in newest)


def _asks(incident: Incident) -> bool:
    return incident.severity is not Severity.INFO


def _told(newest: Sequence[Incident]) -> tuple[str, ...]:
    asking = [each for each in newest if _asks(each)]
    return tuple(sorted({each.cause for each in asking or newest}))


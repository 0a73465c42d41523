"""What the scheduler knows of this node and its jobs: which job of Slurm or pod of Kubernetes each belongs to, notices that something ends, and the node's state.

Told to each job on the node, once and when it changes. Nothing is changed at a scheduler, and what cannot be asked costs nothing. The parts are in collectors/site/.
"""

import logging
import math
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, NamedTuple

import msgspec

from eagle_eye.cgroups import PROC
from eagle_eye.clock import Clock, SystemClock
from eagle_eye.ranges import Delay, Seconds
from eagle_eye.redaction import redact
from eagle_eye.types import Event, Kind

from .agent.job_directory import JobDirectory
from .agent.unsigned_event import filled, unsigned_event
from .site.kubernetes_queries import SERVICE_ACCOUNT, KubernetesQueries
from .site.kubernetes_records import (
    FAULT_CONDITIONS,
    FAULT_TAINTS,
    KubernetesPod,
    node_notices,
    node_state_of,
    pod_notice,
)
from .site.scheduler_facts import NodeState, PreemptionNotice
from .site.scheduler_jobs import Pod, SchedulerJob, SchedulerJobs
from .site.slurm_queries import SlurmQueries
from .site.slurm_records import notice_of

log = logging.getLogger(__name__)

NO_SCHEDULER = "no scheduler can be asked here; for Slurm install scontrol, in Kubernetes mount the token of a service account that may get nodes and list pods"
Attributes = dict[str, object]


class SchedulerFact(NamedTuple):
    """Something that a job is told when it is new, or otherwise than before."""

    name: str
    """Of the event."""
    key: str
    """What it is about: a later fact with the same name and key takes its place."""
    kind: Kind
    entity: str
    attributes: Attributes
    message: str


@dataclass
class SchedulerCollector:
    """`scheduler.job`, `scheduler.preemption`, `scheduler.preemption_withdrawn` and `scheduler.node_state` events."""

    slurm_s: Seconds = 15.0
    """Seconds between two questions about a job to Slurm's controller, asked by the job's first node alone; each node asks about itself four times less often."""
    slurm_node: str = ""
    """Name of this node in Slurm, where it is another one than the agent's up to its first dot."""
    scontrol: str = "scontrol"
    """Program that asks Slurm's controller; "" asks nobody."""
    kubernetes_s: Seconds = 5.0
    """Seconds between two questions to the API server of Kubernetes; a pod that is deleted often has 30 s."""
    kubernetes: bool = True
    """Ask the API server, where the agent has the token of a service account."""
    service_account: Path = SERVICE_ACCOUNT
    """Folder with that token and the authority of the API server."""
    answer_s: Annotated[float, msgspec.Meta(gt=0, le=4)] = 2.0
    """Seconds within which the API server has to answer a question."""
    notice_s: Delay = 300.0
    """The time limit of a job of Slurm is reported so long before it."""
    conditions: tuple[str, ...] = FAULT_CONDITIONS
    """Conditions of the node that are faults when they are True; * stands for anything."""
    taints: tuple[str, ...] = FAULT_TAINTS
    """Taints of the node that mean a fault."""
    node: str = ""
    """Name of this node; set by the agent."""
    run_dir: Path = Path("/run/eagle-eye")
    """Run directory with the launchers' job files; set by the agent."""
    proc: Path = PROC
    """Where the kernel's procfs is mounted."""
    clock: Clock = field(default_factory=SystemClock)

    interval_s: ClassVar[Seconds] = 1.0
    timeout_s: ClassVar[Seconds] = 15.0

    def __post_init__(self) -> None:
        program = shutil.which(self.scontrol) or "" if self.scontrol else ""
        self._slurm = SlurmQueries(program, self.slurm_node or self.node.partition(".")[0], self.slurm_s)
        self._kubernetes = KubernetesQueries(Path(self.service_account), self.node, self.kubernetes_s, self.answer_s, self.clock)
        self._directory = JobDirectory(Path(self.run_dir))
        self._jobs = SchedulerJobs(Path(self.proc))
        self._belongs: dict[str, SchedulerJob] = {}
        """Job of ours on this node → what it belongs to."""
        self._told: dict[str, dict[tuple[str, str], SchedulerFact]] = {}
        """Job → (event, key) → what it was told."""
        self.doing = ""

    def collect(self) -> list[Event]:
        local = [job for job in self._directory.read() if not job.stopped]
        self._belongs = self._jobs.of({job.job: (job.launcher_pid, job.launcher_start_time) for job in local})
        self._slurm.look(self.clock.monotonic(), self._slurm_jobs())
        if self.kubernetes:
            self.doing = "the API server of Kubernetes"
            self._kubernetes.look(any(each.pod for each in self._belongs.values()))
            self.doing = ""
        return [*self._health(), *self._news([job.job for job in local] or [""])]

    @property
    def knows(self) -> str:
        """In words, for `eagle-eye agent --check`."""
        known = [_state_words(state) for state in self._states()]
        known += [f"{job} is {_job_words(belongs)}" for job, belongs in self._belongs.items() if any(belongs)]
        return "; ".join(known)

    @property
    def problems(self) -> tuple[str, ...]:
        """What cannot be asked, with the remedy where one is known."""
        failing = self._kubernetes.health.failing
        return (*self._slurm.problems.values(), *([failing] if failing else []))

    @property
    def unavailable(self) -> str:
        """Why nothing is known."""
        return "" if self.knows else ", ".join(self.problems) or ("" if self._slurm.present or self._kubernetes.present else NO_SCHEDULER)

    @property
    def waits(self) -> bool:
        """A program was asked and has not answered yet: the next look takes what it says."""
        return self._slurm.waits

    def _slurm_jobs(self) -> set[str]:
        """Those that this node asks about: of which it is the first, or may be."""
        return {each.slurm.job for each in self._belongs.values() if each.slurm is not None and each.slurm.node_index <= 0}

    # --- what is known

    def _states(self) -> list[NodeState]:
        slurm, node = self._slurm.node_state, self._kubernetes.node
        of_kubernetes = [node_state_of(node, self.conditions, self.taints)] if node is not None else []
        return [*([slurm] if slurm is not None else []), *of_kubernetes]

    def _facts(self, job: str) -> Iterator[SchedulerFact]:
        belongs = self._belongs.get(job, SchedulerJob())
        if any(belongs):
            yield SchedulerFact("scheduler.job", "", Kind.NODE, self.node, _job_attributes(belongs), f"{job} on {self.node} is {_job_words(belongs)}")
        for state in self._states():
            attributes = filled({"scheduler": state.scheduler, "states": ",".join(state.states), "reason": redact(state.reason) if state.states else ""})
            yield SchedulerFact("scheduler.node_state", state.scheduler, Kind.NODE, self.node, attributes, f"{self.node}: {_state_words(state)}")
        for notice in self._notices(belongs):
            of_job = notice.scheduler == "slurm"
            kind, entity = (Kind.JOB, job) if of_job else (Kind.NODE, self.node)
            yield SchedulerFact("scheduler.preemption", f"{notice.subject}: {notice.reason}", kind, entity, _notice_attributes(notice), _notice_words(notice))

    def _notices(self, belongs: SchedulerJob) -> Iterator[PreemptionNotice]:
        record = self._slurm.jobs.get(belongs.slurm.job) if belongs.slurm is not None else None
        pod = self._pod(belongs.pod) if belongs.pod is not None else None
        of_job = notice_of(record, self.clock.now(), self.notice_s) if record is not None else None
        of_pod = pod_notice(pod) if pod is not None else None
        of_node = node_notices(self._kubernetes.node) if self._kubernetes.node is not None else []
        yield from (notice for notice in (of_job, *of_node, of_pod) if notice is not None)

    def _pod(self, wanted: Pod) -> KubernetesPod | None:
        """The one of this uid; without one, the only one of this name."""
        if wanted.uid:
            return next((pod for pod in self._kubernetes.pods if pod.metadata.uid == wanted.uid), None)
        found = [pod.metadata for pod in self._kubernetes.pods]
        named = [at for at, each in enumerate(found) if each.name == wanted.name and wanted.namespace in ("", each.namespace)]
        return self._kubernetes.pods[named[0]] if len(named) == 1 else None

    # --- what is told

    def _news(self, jobs: list[str]) -> Iterator[Event]:
        self._told = {job: self._told.get(job, {}) for job in jobs}
        for job, told in self._told.items():
            now = {(fact.name, fact.key): fact for fact in self._facts(job)}
            for key, fact in now.items():
                before = told.get(key)
                ordinary = before is None and fact.name == "scheduler.node_state" and "states" not in fact.attributes
                if not ordinary and (before is None or before.attributes != fact.attributes):
                    yield self._event(fact.name, fact, job, fact.message)
            for key in sorted(told.keys() - now.keys()):
                if told[key].name == "scheduler.preemption" and self._is_withdrawn(told[key], self._belongs.get(job, SchedulerJob())):
                    yield self._event("scheduler.preemption_withdrawn", told[key], job, f"not any more: {told[key].message}")
                else:
                    now[key] = told[key]
            self._told[job] = now

    def _is_withdrawn(self, notice: SchedulerFact, belongs: SchedulerJob) -> bool:
        """What it was about is still there; a pod that is gone has ended as it was told."""
        return not notice.key.startswith("pod ") or (belongs.pod is not None and self._pod(belongs.pod) is not None)

    def _event(self, name: str, fact: SchedulerFact, job: str, message: str) -> Event:
        log.info("%s: %s", name, message)
        return unsigned_event(name, fact.kind, fact.entity, self.clock.now(), message, job, **fact.attributes)

    def _health(self) -> Iterator[Event]:
        """As the agent tells it of a collector: missing telemetry must not look like health."""
        if not self._kubernetes.changed_health:
            return
        reason = self._kubernetes.health.failing
        name, reason = ("collector.failing", reason) if reason else ("collector.recovered", "the API server answers again")
        log.warning("%s: scheduler kubernetes: %s", name, reason)
        yield unsigned_event(name, Kind.NODE, self.node, self.clock.now(), f"scheduler kubernetes: {reason}", "", collector="scheduler kubernetes", reason=reason)


def _job_attributes(belongs: SchedulerJob) -> Attributes:
    slurm, pod = belongs
    found: Attributes = {}
    if slurm is not None:
        found |= {"slurm_job": slurm.job, "slurm_step": slurm.step, "slurm_end": f"{slurm.end:.0f}" if math.isfinite(slurm.end) else ""}
    if pod is not None:
        found |= {"pod": pod.name, "namespace": pod.namespace, "pod_uid": pod.uid}
    return filled(found)


def _job_words(belongs: SchedulerJob) -> str:
    slurm, pod = belongs
    words = [f"Slurm job {slurm.job}{f' step {slurm.step}' if slurm.step else ''}"] if slurm is not None else []
    if pod is not None:
        words.append(f"pod {'/'.join(filter(None, (pod.namespace, pod.name))) or pod.uid}")
    return " in ".join(words)


def _state_words(state: NodeState) -> str:
    words = ", ".join(state.states) or "takes work"
    return f"{state.scheduler}: {words}{f' ({redact(state.reason)})' if state.states and state.reason else ''}"


def _notice_attributes(notice: PreemptionNotice) -> Attributes:
    """`began` and `deadline` in whole seconds since 1970."""
    times = {name: f"{value:.0f}" for name, value in (("began", notice.began), ("deadline", notice.deadline)) if math.isfinite(value)}
    return filled({"scheduler": notice.scheduler, "subject": notice.subject, "reason": notice.reason, **times, "detail": redact(notice.detail)})


def _notice_words(notice: PreemptionNotice) -> str:
    return f"{notice.scheduler} ends {notice.subject}: {notice.reason.replace('_', ' ')}{f' ({redact(notice.detail)})' if notice.detail else ''}"

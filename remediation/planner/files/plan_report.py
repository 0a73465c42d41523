"""The plan report of a cluster file: nodes of each job and why, and a decision for each job that a what-if event hits."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from remediation.planner.allocation.allocation import Allocation
from remediation.planner.allocation.next_events import NextEventKind
from remediation.planner.allocation.tasks import Task, TaskCluster
from remediation.planner.decision.checkpoint_interval import daly
from remediation.planner.decision.decision import IncidentDecision, TransitionCosts, decide
from remediation.planner.performance.calibration import Calibration
from remediation.planner.performance.throughput_model import ThroughputEstimate

from . import what_if
from .cluster_allocation import ClusterAllocation, SlowNodeVerdict, allocate
from .cluster_file import ClusterFile, JobSpec
from .job_case import estimate_now, incident_case_of, transition_s


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """One job of the report."""

    name: str
    before: int
    """Nodes it has."""
    nodes: int
    """Nodes it gets."""
    estimate: ThroughputEstimate
    waf: float
    """Weighted FLOP/s with them."""
    why: str
    checkpoint: str
    """Advice on the interval; empty where no save was measured."""


@dataclass(frozen=True, slots=True)
class PlanReport:
    """The allocation, and the decisions for the jobs that were hit."""

    allocation: Allocation
    jobs: tuple[JobReport, ...]
    slow: tuple[SlowNodeVerdict, ...]
    """Whether each slow node stays in its job."""
    decisions: dict[str, IncidentDecision]
    owners: dict[str, str]
    """Node -> job before the events; '' for none."""
    calibration: Calibration
    """Of the performance model that it rests on."""


def make_report(file: ClusterFile, texts: Sequence[str] = (), costs: TransitionCosts | None = None) -> PlanReport:
    """texts: what-if events, all at once; none: the present cluster. Raises ConfigError for events that cannot happen."""
    costs = costs or TransitionCosts()
    cluster = file.task_cluster({job.name: transition_s(file, job, costs) for job in file.jobs})
    owners = node_owners(file)
    happens = what_if.parse(texts, owners, [job.name for job in file.jobs])
    shared = allocate(file, cluster, happens, owners)
    tasks = {task.name: task for task in shared.problem.tasks}
    jobs = tuple(_job_report(file, job, tasks[job.name], shared) for job in file.jobs if job.name in tasks)
    return PlanReport(shared.allocation, jobs, shared.slow, _decisions(file, cluster, happens, owners, shared, costs), owners, file.calibration)


def node_owners(file: ClusterFile) -> dict[str, str]:
    """node1, node2, ...: to the jobs in the order of the file; then free ones, the spares last."""
    names = [f"node{number}" for number in range(1, file.machines.nodes + 1)]
    taken = [job.name for job in file.jobs for _ in range(job.nodes)]
    return dict(zip(names, [*taken, *[""] * (len(names) - len(taken))], strict=True))


def _job_report(file: ClusterFile, job: JobSpec, task: Task, shared: ClusterAllocation) -> JobReport:
    gpus, node = shared.allocation.workers[job.name], file.machines.gpus_per_node
    stays = gpus == task.current and job.name not in shared.relayouts
    estimate = estimate_now(file, job) if stays else file.throughput_model.estimate(job.name, gpus)
    return JobReport(
        name=job.name,
        before=job.nodes,
        nodes=gpus // node,
        estimate=replace(estimate, flops=float(task.throughput[gpus])),
        waf=task.waf_at(gpus),
        why=", ".join([*_layout_reasons(file, job, estimate), *_why(task, gpus, node, shared.problem.horizon_s)]),
        checkpoint=_checkpoint(file, job, gpus),
    )


def _layout_reasons(file: ClusterFile, job: JobSpec, planned: ThroughputEstimate) -> list[str]:
    """What its layout has to do with it, where the file names it."""
    if job.layout is None or planned.layout is None:
        return []
    now, best = estimate_now(file, job), file.throughput_model.estimate(job.name, job.nodes * file.machines.gpus_per_node)
    gain = job.weight * (best.flops - now.flops)
    if planned.layout != job.layout.layout:
        return [f"changes its layout from {now.layout}"]
    return [f"{best.layout} would add {_flops(gain)}, less than the transition costs"] if gain > 0 and best.layout != now.layout else []


def _why(task: Task, gpus: int, node: int, horizon_s: float) -> list[str]:
    """What one node more or less would change."""
    here = task.waf_at(gpus)
    parts = []
    if gpus + node <= task.most:
        parts.append(f"one node more would add {_flops(task.waf_at(gpus + node) - here)}")
    elif gpus:
        parts.append("it is at its maximum")
    if gpus:
        parts.append(f"one less would cost {_flops(here - task.waf_at(gpus - node)).lstrip('+')}")
    if gpus != task.current:
        gain, price = (here - task.waf) * horizon_s, task.waf * task.transition_s
        parts.append(f"the change gains {gain:.2g} WAF·s until the next failure or repair in {horizon_s / 3600:.1f} h and costs {price:.2g}")
    return parts


def _flops(flops: float) -> str:
    return f"{flops / 1e15:+.2f} weighted PFLOP/s" if flops >= 0 else f"{flops / 1e15:.2f} weighted PFLOP/s"


def _checkpoint(file: ClusterFile, job: JobSpec, gpus: int) -> str:
    if job.checkpoint_save_s is None or not gpus:
        return ""
    mtbf = file.machines.gpu_mtbf_hours * 3600 / gpus
    return f"save every {daly(job.checkpoint_save_s, mtbf) / 60:.0f} min (one failure every {mtbf / 3600:.0f} h; a save pauses training for {job.checkpoint_save_s:g} s)"


def _decisions(file: ClusterFile, cluster: TaskCluster, happens: what_if.WhatIf, owners: dict[str, str], shared: ClusterAllocation, costs: TransitionCosts) -> dict[str, IncidentDecision]:
    """For each job that lost a node or has a slow one. Spares go to the jobs that the allocation gives nodes to."""
    free = sum(not owner for owner in owners.values()) - sum(not owner for owner in happens.lost.values())
    finished = {event.task for event in happens.events if event.kind is NextEventKind.FINISHED}
    found = {}
    for job in file.jobs:
        if job.name in finished:
            continue
        lost = sum(owner == job.name for owner in happens.lost.values())
        slow = {node: speed for node, speed in happens.slow.items() if owners[node] == job.name and speed < 1 and node not in happens.lost}
        if lost or slow:
            task = next(task for task in cluster.tasks if task.name == job.name)
            aside = sum(one.job == job.name and not one.kept for one in shared.slow)
            coming = shared.allocation.workers[job.name] // file.machines.gpus_per_node - (job.nodes - lost - aside)
            spares = max(0, min(free, coming))
            found[job.name] = decide(replace(incident_case_of(file, job, task), lost=lost, slow=slow, spares=spares), costs)
            free -= spares
    return found

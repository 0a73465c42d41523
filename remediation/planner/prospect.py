"""A whole plan for a cluster file: who gets how many nodes, why, and what to do about what happens to whom."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from . import what_if
from .allocation import Allocation, solve
from .calibration import Calibration
from .checkpoint_interval import daly
from .cluster_file import ClusterFile, Job
from .decision import Case, Costs, Decision, decide
from .events import EventKind, situation_after
from .performance import Estimate
from .workload import Cluster, Task

STATE_BYTES = 14.0
"""Of a parameter: weights in half precision, and Adam's fp32 weights and moments (ZeRO, 2020, section 3.1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """One job's part."""

    name: str
    before: int
    """Nodes it has."""
    nodes: int
    """Nodes it is to have."""
    estimate: Estimate
    waf: float
    """Weighted FLOP/s with them."""
    why: str
    checkpoint: str
    """Advice on the interval; empty where no save was measured."""


@dataclass(frozen=True, slots=True)
class Prospect:
    """The plan, and the decisions for the jobs that were hit."""

    allocation: Allocation
    jobs: tuple[JobPlan, ...]
    decisions: dict[str, Decision]
    owners: dict[str, str]
    """Node -> job before anything happened; '' for none."""
    calibration: Calibration
    """Of the performance model that it rests on."""


def foresee(file: ClusterFile, words: Sequence[str] = (), costs: Costs | None = None) -> Prospect:
    """words: what happens, all at once; none: the plan for the cluster as it stands. Raises ConfigError for what cannot happen."""
    costs = costs or Costs()
    cluster = file.cluster({job.name: transition_s(file, job, costs) for job in file.jobs})
    owners = node_owners(file)
    happens = what_if.parse(words, owners, [job.name for job in file.jobs])
    situation = situation_after(cluster, happens.events)
    allocation = solve(situation)
    tasks = {task.name: task for task in situation.tasks}
    jobs = tuple(_job_plan(file, job, tasks, allocation, situation.horizon_s) for job in file.jobs if job.name in tasks)
    return Prospect(allocation, jobs, _decisions(file, cluster, happens, owners, costs), owners, file.calibration)


def node_owners(file: ClusterFile) -> dict[str, str]:
    """node1, node2, ...: to the jobs in the order of the file; then free ones, the spares last."""
    names = [f"node{number}" for number in range(1, file.machines.nodes + 1)]
    taken = [job.name for job in file.jobs for _ in range(job.nodes)]
    return dict(zip(names, [*taken, *[""] * (len(names) - len(taken))], strict=True))


def transition_s(file: ClusterFile, job: Job, costs: Costs) -> float:
    """D_transition: as the file says, else a restart and each node's part of the state."""
    if job.transition_s is not None:
        return job.transition_s
    return costs.restart_s + _state_bytes(file, job) / max(1, job.nodes) / costs.network_bytes_s


def _state_bytes(file: ClusterFile, job: Job) -> float:
    run = file.performance.runs.get(job.name)
    return STATE_BYTES * run.shape.parameters if run else 0.0


def _job_plan(file: ClusterFile, job: Job, tasks: dict[str, Task], allocation: Allocation, horizon_s: float) -> JobPlan:
    task, gpus, node = tasks[job.name], allocation.workers[job.name], file.machines.gpus_per_node
    return JobPlan(
        name=job.name,
        before=job.nodes,
        nodes=gpus // node,
        estimate=file.performance.estimate(job.name, gpus),
        waf=task.waf_at(gpus),
        why=_why(task, gpus, node, horizon_s),
        checkpoint=_checkpoint(file, job, gpus),
    )


def _why(task: Task, gpus: int, node: int, horizon_s: float) -> str:
    """What a node more or less would do to it."""
    here = task.waf_at(gpus)
    parts = []
    if gpus + node <= task.most:
        parts.append(f"a node more would bring {_flops(task.waf_at(gpus + node) - here)}")
    elif gpus:
        parts.append("it may not have more")
    if gpus:
        parts.append(f"one less would cost {_flops(here - task.waf_at(gpus - node))}")
    if gpus != task.current:
        gain, price = (here - task.waf) * horizon_s, task.waf * task.transition_s
        parts.append(f"the change brings {gain:.2g} WAF·s until the next failure in {horizon_s / 3600:.1f} h and costs {price:.2g}")
    return ", ".join(parts)


def _flops(flops: float) -> str:
    return f"{flops / 1e15:+.2f} weighted PFLOP/s" if flops >= 0 else f"{flops / 1e15:.2f} weighted PFLOP/s"


def _checkpoint(file: ClusterFile, job: Job, gpus: int) -> str:
    if job.checkpoint_save_s is None or not gpus:
        return ""
    mtbf = file.machines.gpu_mtbf_hours * 3600 / gpus
    return f"save every {daly(job.checkpoint_save_s, mtbf) / 60:.0f} min (a failure every {mtbf / 3600:.0f} h, a save stops it for {job.checkpoint_save_s:g} s)"


def _decisions(file: ClusterFile, cluster: Cluster, happens: what_if.WhatIf, owners: dict[str, str], costs: Costs) -> dict[str, Decision]:
    """For each job that lost a node or has a slow one. Spares go to the jobs in the order of the file."""
    free = sum(not owner for owner in owners.values()) - sum(not owner for owner in happens.lost.values())
    finished = {event.task for event in happens.events if event.kind is EventKind.FINISHED}
    found = {}
    for job in file.jobs:
        if job.name in finished:
            continue
        lost = sum(owner == job.name for owner in happens.lost.values())
        slow = {node: speed for node, speed in happens.slow.items() if owners[node] == job.name and speed < 1}
        if lost or slow:
            task = next(task for task in cluster.tasks if task.name == job.name)
            found[job.name] = decide(replace(_case(file, job, task), lost=lost, slow=slow, spares=max(0, free)), costs)
            free -= lost + len(slow)
    return found


def _case(file: ClusterFile, job: Job, task: Task) -> Case:
    estimate = file.performance.estimate(job.name, task.current)
    layout, run = estimate.layout, file.performance.runs.get(job.name)
    replicas = job.replicas or (layout.data if layout else 1)
    micro_batches = math.ceil(run.global_batch / (layout.data * layout.micro_batch)) if run and layout else 1
    return Case(
        task=job.name,
        gpus=task.current,
        gpus_per_node=file.machines.gpus_per_node,
        healthy=estimate.flops,
        iteration_s=estimate.iteration_s if math.isfinite(estimate.iteration_s) else 1.0,
        repair_s=file.machines.repair_hours * 3600,
        weight=job.weight,
        replicas=replicas,
        stages=layout.pipeline if layout else 1,
        micro_batches=max(1, micro_batches),
        state_bytes=_state_bytes(file, job),
        checkpoint_age_s=job.checkpoint_age_minutes * 60,
        throughput=task.throughput,
    )

"""A job of a cluster file as it runs now: throughput, size of its state, transition time, and the incident case that it starts from."""

import math

from remediation.planner.allocation.tasks import Task
from remediation.planner.decision.incident_case import IncidentCase, TransitionCosts
from remediation.planner.performance.throughput_model import ThroughputEstimate

from .cluster_file import ClusterFile, JobSpec

STATE_BYTES = 14.0
"""Of a parameter: weights in half precision, and Adam's fp32 weights and moments (ZeRO, 2020, section 3.1)."""


def estimate_now(file: ClusterFile, job: JobSpec) -> ThroughputEstimate:
    """With the layout that it runs, where the file names one, else with the best on as many GPUs."""
    if job.layout is not None:
        return file.throughput_model.running(job.name, job.layout.layout)
    return file.throughput_model.estimate(job.name, job.nodes * file.machines.gpus_per_node)


def state_bytes(file: ClusterFile, job: JobSpec) -> float:
    """Of one copy of parameters and optimizer; 0 where no model is described."""
    run = file.throughput_model.runs.get(job.name)
    return STATE_BYTES * run.shape.parameters if run else 0.0


def transition_s(file: ClusterFile, job: JobSpec, costs: TransitionCosts) -> float:
    """D_transition: as the file says, else a restart and each node's part of the state."""
    if job.transition_s is not None:
        return job.transition_s
    return costs.restart_s + state_bytes(file, job) / max(1, job.nodes) / costs.network_bytes_s


def incident_case_of(file: ClusterFile, job: JobSpec, task: Task) -> IncidentCase:
    """Before anything is broken."""
    now = estimate_now(file, job)
    layout, run = now.layout, file.throughput_model.runs.get(job.name)
    micro_batches = math.ceil(run.global_batch / (layout.data * layout.micro_batch)) if run and layout else 1
    return IncidentCase(
        task=job.name,
        gpus=task.current,
        gpus_per_node=file.machines.gpus_per_node,
        healthy=now.flops,
        iteration_s=now.iteration_s if math.isfinite(now.iteration_s) else 1.0,
        repair_s=file.machines.repair_hours * 3600,
        weight=job.weight,
        replicas=job.replicas or (layout.data if layout else 1),
        stages=layout.pipeline if layout else 1,
        micro_batches=max(1, micro_batches),
        state_bytes=state_bytes(file, job),
        checkpoint_age_s=job.checkpoint_age_minutes * 60,
        throughput=task.throughput,
    )

"""The downtime curve: how long one lost node stops a job, by the size of the job (detection, transition, recomputation)."""

from collections.abc import Sequence

import numpy as np

from .fault_trace import FaultKind, FaultTrace, TraceEvent
from .job_mix import JobMixEntry
from .recovery_policy import RecoveryPolicy
from .simulation import Scenario, simulate
from .time_accounting import TimeCategory

SIZES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 12_500)
"""GPUs."""
DOWNTIME_CATEGORIES = (TimeCategory.DETECTION, TimeCategory.TRANSITION, TimeCategory.RECOMPUTATION)
GPUS_PER_NODE = 4
"""So that every size is a whole number of nodes."""
ITERATION_S = 20.0
CYCLES = 1.5
"""The node is lost half a checkpoint interval after a checkpoint, and half an iteration after an update."""


def downtime_s(policy: RecoveryPolicy, gpus: int) -> float:
    """Seconds of downtime of a job of so many GPUs, one replica for each two nodes, for one lost node that is replaced at once."""
    nodes = max(2, gpus // GPUS_PER_NODE)
    costs = policy.costs
    whole = costs.checkpoint_interval_s + costs.checkpoint_stall_s
    lost_s = (CYCLES * whole // ITERATION_S + 0.5) * ITERATION_S
    rates = np.arange(nodes + 2.0)
    job = JobMixEntry(name="job", weight=1.0, minimum=1, maximum=nodes, replica=1, iteration_s=ITERATION_S, rates=rates, template_rates=rates)
    trace = FaultTrace("one node", nodes + 1, lost_s + 20_000.0, (TraceEvent(lost_s, FaultKind.LOST, (0,)),), node_mtbf_s=1e9)
    result = simulate(Scenario(jobs=[job], gpus_per_node=GPUS_PER_NODE, spares=1, start=(nodes,)), policy, trace)
    stopped = sum(result.time_shares[category.label] for category in DOWNTIME_CATEGORIES) * result.gpus * result.duration_s
    return stopped / (nodes * GPUS_PER_NODE)


def downtime_curve(policies: Sequence[RecoveryPolicy], sizes: Sequence[int] = SIZES) -> dict[str, list[float]]:
    """Policy → seconds of downtime for each size."""
    return {policy.label: [downtime_s(policy, gpus) for gpus in sizes] for policy in policies}

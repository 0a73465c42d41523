"""Pipeline templates for consecutive node counts, and the proof that they serve every number of nodes left.

With sizes n0 .. n_max and f faults to tolerate, Oobleck's condition is that each count from (f + 1)·n0 to N is a sum of at
least f + 1 sizes: then each node works, and after f lost nodes a whole pipeline is left to copy from. Here that is
not concluded from a theorem but shown for each count: the sizes that were made may have holes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from eagle_eye.errors import ConfigError

from .layer_profile import LayerChain
from .node_stages import one_stage_per_node
from .packing import pack
from .pipeline_template import PipelineTemplate, four_per_stage


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCluster:
    """What the pipelines run on."""

    nodes: int
    gpus_per_node: int = 1
    gpu_bytes: float = np.inf
    faults: int = 1
    """Nodes that may be lost at once without loss of state."""


@dataclass(frozen=True, slots=True)
class NodeCoverage:
    """For each node count, pipelines that use all of it; or that there are none."""

    served: Mapping[int, tuple[int, ...]]
    """Count -> sizes of at least faults + 1 pipelines, ascending."""
    unserved: tuple[int, ...]
    """Counts of the operating range without."""

    def require_all(self) -> None:
        """Raises ConfigError that names the counts which are not served."""
        if self.unserved:
            counts = ", ".join(map(str, self.unserved))
            raise ConfigError(f"no templates use all of {counts} nodes: allow other counts, more memory or fewer faults")


@dataclass(frozen=True, slots=True)
class TemplateSet:
    """All templates that a job needs to be reconfigured at once."""

    by_nodes: Mapping[int, PipelineTemplate]
    faults: int
    coverage: NodeCoverage

    @property
    def smallest(self) -> int:
        """n0, nodes of the smallest pipeline."""
        return min(self.by_nodes)

    @property
    def minimum_nodes(self) -> int:
        """With fewer nodes the job can only restart from a checkpoint: (f + 1)·n0."""
        return (self.faults + 1) * self.smallest


def make_templates(layers: LayerChain, cluster: NodeCluster, micro_batches: int | None = None, in_flight: int = 1) -> TemplateSet:
    """Templates of n0 .. N - f·n0 nodes.

    micro_batches: of one pipeline, fixed for all; None: one stage per node, 4 for each stage, as Oobleck does.
    in_flight: micro-batches whose activations a stage holds at once (1F1B holds up to the number of stages without
    recomputation). Raises ConfigError when the model fits on no count, or on too many for so many faults.
    """
    counts = range(1, cluster.nodes + 1)
    if micro_batches is None:
        found = one_stage_per_node(layers, counts, four_per_stage, cluster.gpus_per_node, cluster.gpu_bytes, in_flight)
    else:
        found = pack(layers, counts, cluster.gpus_per_node, micro_batches, cluster.gpu_bytes, in_flight).templates
    if not found:
        raise ConfigError(
            f"the model fits on none of 1 to {cluster.nodes} nodes of {cluster.gpus_per_node} GPUs with"
            f" {cluster.gpu_bytes:.3g} bytes: add nodes, memory or recomputation"
        )
    least = min(found)
    if (cluster.faults + 1) * least > cluster.nodes:
        raise ConfigError(
            f"{cluster.faults} faults need {cluster.faults + 1} pipelines of at least {least} nodes, there are"
            f" {cluster.nodes}: add nodes or allow fewer faults"
        )
    kept = {count: plan for count, plan in found.items() if count <= cluster.nodes - cluster.faults * least}
    return TemplateSet(kept, cluster.faults, node_coverage(tuple(kept), cluster.nodes, cluster.faults))


def node_coverage(sizes: Sequence[int], nodes: int, faults: int) -> NodeCoverage:
    """What these sizes serve, for each count from (faults + 1)·(least size) to `nodes`; O(nodes · sizes)."""
    most = [0] + [-1] * nodes
    last = [0] * (nodes + 1)
    for count in range(1, nodes + 1):
        for size in sorted(sizes):
            if size <= count and most[count - size] >= 0 and most[count - size] + 1 > most[count]:
                most[count], last[count] = most[count - size] + 1, size
    wanted = range((faults + 1) * min(sizes), nodes + 1)
    served = {count: _chain(last, count) for count in wanted if most[count] > faults}
    return NodeCoverage(served, tuple(count for count in wanted if count not in served))


def _chain(last: Sequence[int], count: int) -> tuple[int, ...]:
    parts = []
    while count:
        parts.append(last[count])
        count -= last[count]
    return tuple(sorted(parts))

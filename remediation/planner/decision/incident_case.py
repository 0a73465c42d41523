"""What a decision needs: the incident case (the job before the incident, what is broken, which spares there are) and the costs of a transition.

TransitionCosts holds the constants, each with its source; give your own where you measured.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from eagle_eye.errors import ConfigError
from remediation.planner.pipelines.pipeline_reconfiguration import ReconfigurationProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class TransitionCosts:
    """Seconds and rates. Raises ConfigError for a negative one."""

    regroup_s: float = 0.05
    """Rebuilding the process groups of a living job in place, once its processes are there. Assumed: no benchmark shows it
    apart. It is part of the 0.9 s from a worker's death to the first step after its restart in benchmarks.chain.restart
    (4 workers, gloo, a small model). Measure your own."""
    spare_start_s: float = 3.0
    """Starting the processes of a spare node that is up. Assumed: `import torch` is most of it, and takes seconds."""
    restart_s: float = 42.9
    """Ending and starting all processes of a job. Source: Parcae (NSDI'24), measured 28.8 to 42.9 s on 1 to 32 nodes."""
    collective_timeout_s: float = 600.0
    """Until a worker notices a dead peer by itself. Source: PyTorch's default for NCCL."""
    network_bytes_s: float = 12.5e9
    """At which a node receives state from others. Source: data sheet, one adapter of 100 Gb/s per node."""
    storage_bytes_s: float = 9.1e9
    """At which a job writes and reads checkpoints on shared storage. Source: TRANSOM's public benchmark, 175B parameters
    at 14 bytes in 270 s."""
    lost_iterations: float = 1.0
    """Iterations that a heal in place throws away. Source: Oobleck's artifact (SOSP'23), the running one. 0 where
    finished micro-batches are kept (Unicron, 2023, section 6)."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if not (math.isfinite(value) and value >= 0) or (each.name.endswith("bytes_s") and value == 0):
                raise ConfigError(f"costs: {each.name} is {value}; it must be a number that is not negative, and a rate is above zero")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IncidentCase:
    """Raises ConfigError, naming the field, for what cannot be."""

    task: str
    gpus: int
    """That it ran on."""
    gpus_per_node: int
    healthy: float
    """FLOP/s of all of them together before the incident."""
    iteration_s: float
    """Of a healthy iteration."""
    repair_s: float
    """Expected time until what is broken is back: the horizon over which everything is counted."""
    weight: float = 1.0
    lost: int = 0
    """Nodes that are gone. With `pipelines` their names are in its `lost`."""
    slow: Mapping[str, float] = field(default_factory=dict)
    """Speed of each slow node; 1 is healthy."""
    process_died: bool = False
    """No node is lost, but a process died and the job has stopped."""
    spares: int = 0
    """Nodes that may be taken."""
    spare_worth: float = 0.0
    """Weighted FLOP/s that a spare node achieves elsewhere; 0: it is idle."""
    spare_cost: float = 0.0
    """WAF·seconds that taking them costs elsewhere, once: the transitions of the jobs that give them."""
    spare_owner: str = ""
    """Jobs that give the spares; empty: the spares are free."""
    in_place: bool = False
    """The job continues by itself without what it lost, and admits new nodes while it runs (elastic)."""
    replicas: int = 1
    """Data-parallel copies of the state. With 1 nothing survives the loss of a node but checkpoints."""
    stages: int = 1
    """Of each pipeline."""
    micro_batches: int = 1
    """Of each pipeline in an iteration."""
    state_bytes: float = 0.0
    """Of one copy of parameters and optimizer, the whole job's."""
    checkpoint_age_s: float = 0.0
    """Work since the newest checkpoint, in seconds of healthy running."""
    throughput: NDArray[np.float64] | None = None
    """T(t, x), the row of FLOP/s at x = 0, 1, 2, ... GPUs (Performance.row); None: other layouts are not known."""
    pipelines: ReconfigurationProblem | None = None
    """Templates and nodes, with the same `lost` and `speeds`; it then determines `replicas`, `stages` and `micro_batches`.
    None: pipelines are taken as equal."""

    def __post_init__(self) -> None:
        if self.pipelines is not None:
            self._take(self.pipelines)
        self._check_numbers()
        if any(not 0 < speed <= 1 for speed in self.slow.values()):
            raise self._wrong("slow", "a speed above 0 and at most 1 for each node; a node that makes no progress is lost")
        if self.process_died and self.slow:
            raise self._wrong("process_died", "False where nodes are slow: restart the job first, then decide about them")
        if (self.lost + len(self.slow)) * self.gpus_per_node > self.gpus:
            raise self._wrong("lost", f"at most the job's {self.gpus // self.gpus_per_node} nodes, slow ones included")
        if self.pipelines is not None and (len(self.pipelines.lost) != self.lost or dict(self.pipelines.speeds) != dict(self.slow)):
            raise self._wrong("lost", f"the {len(self.pipelines.lost)} nodes that `pipelines` names as lost, and `slow` its speeds")

    def _check_numbers(self) -> None:
        for name in ("gpus", "gpus_per_node", "replicas", "stages", "micro_batches"):
            if getattr(self, name) < 1:
                raise self._wrong(name, "1 or more")
        for name in ("healthy", "iteration_s", "repair_s"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise self._wrong(name, "a finite number above zero")
        for name in ("weight", "lost", "spares", "spare_worth", "spare_cost", "state_bytes", "checkpoint_age_s"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise self._wrong(name, "a finite number that is not negative")

    def _take(self, pipelines: ReconfigurationProblem) -> None:
        count = len(pipelines.pipelines)
        stages = (len(pipelines.templates[len(pipeline)].stages) for pipeline in pipelines.pipelines)
        for name, value in (("replicas", count), ("stages", max(stages, default=1)), ("micro_batches", -(-pipelines.micro_batches // max(1, count)))):
            object.__setattr__(self, name, value)

    def _wrong(self, name: str, wanted: str) -> ConfigError:
        return ConfigError(f"incident of task {self.task!r}: {name} is {getattr(self, name)}; it must be {wanted}")

    @property
    def broken(self) -> int:
        """Nodes that are lost or slow."""
        return self.lost + len(self.slow)

    @property
    def pipelines_per_node(self) -> int:
        """Pipelines that one node is part of: more than one where a pipeline is smaller than a node."""
        return max(1, self.replicas * self.gpus_per_node // self.gpus)

    @property
    def healthy_gpus(self) -> int:
        """GPUs of the nodes that are neither."""
        return self.gpus - self.broken * self.gpus_per_node

    @property
    def stopped(self) -> bool:
        """A synchronous job does not go on by itself without a worker, unless it does so in place."""
        return self.process_died or (self.lost > 0 and not self.in_place)

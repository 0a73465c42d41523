"""The incident case: the facts that a decision needs (the job before the incident, what is broken, which spares there are)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from eagle_eye.errors import ConfigError
from remediation.planner.pipelines.pipeline_reconfiguration import ReconfigurationProblem


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

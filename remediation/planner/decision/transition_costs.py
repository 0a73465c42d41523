"""Costs of a transition in seconds and rates: the constants of a decision, each with its source. Give your own where you measured."""

import math
from dataclasses import dataclass, fields

from eagle_eye.errors import ConfigError


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
        for field in fields(self):
            value = getattr(self, field.name)
            if not (math.isfinite(value) and value >= 0) or (field.name.endswith("bytes_s") and value == 0):
                raise ConfigError(f"costs: {field.name} is {value}; it must be a number that is not negative, and a rate is above zero")

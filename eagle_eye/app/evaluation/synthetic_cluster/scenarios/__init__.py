"""What happens to the jobs of a synthetic cluster: one file a family, each with its faults and the innocent twins that look like them."""

from collections.abc import Sequence

from eagle_eye.app.evaluation.synthetic_cluster.job_scenario import JobScenario, ScenarioPair

from . import (
    death_scenarios,
    gpu_scenarios,
    network_scenarios,
    node_scenarios,
    slowness_scenarios,
    stall_scenarios,
    storage_scenarios,
    training_scenarios,
)

PAIRS: Sequence[ScenarioPair] = (*slowness_scenarios.PAIRS, *stall_scenarios.PAIRS, *death_scenarios.PAIRS, *gpu_scenarios.PAIRS, *network_scenarios.PAIRS, *storage_scenarios.PAIRS, *node_scenarios.PAIRS, *training_scenarios.PAIRS)
SCENARIOS: Sequence[JobScenario] = tuple(dict.fromkeys(scenario for pair in PAIRS for scenario in pair))
"""A fault, then its twin. A cluster has each at least once that fits into it."""

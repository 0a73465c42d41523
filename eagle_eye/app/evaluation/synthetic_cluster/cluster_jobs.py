"""Which jobs a synthetic cluster runs: sizes, layouts and scenarios, all drawn from the seed."""

from collections.abc import Iterator

import numpy as np

from eagle_eye.types import Layout, RankPlacement

from .scenarios import SCENARIOS, JobScenario, PlannedJob

GPUS_PER_NODE = 8
SIZES = (8, 16, 32, 64, 128, 256, 512, 1024, 2048)
WEIGHTS = (0.30, 0.18, 0.14, 0.12, 0.10, 0.07, 0.05, 0.03, 0.01)
"""GPUs of a job, and how often: most jobs of a cluster are small, most of its GPUs are in large ones."""
STAGES = (1, 2, 4)
BEGAN = 1_790_000_000.0


def planned_jobs(gpus: int, seed: int, steps: int) -> Iterator[PlannedJob]:
    """Until every GPU has had a job and every scenario has happened. A cluster that is too small for all of them at once runs them one after the other."""
    rng = np.random.default_rng(seed)
    scenarios = [each for each in SCENARIOS if each.smallest <= gpus]
    used = number = 0
    order: list[int] = []
    while used < gpus or number < len(scenarios):
        order = order or rng.permutation(len(scenarios)).tolist()  # so that a job's number does not tell what happens to it
        scenario = scenarios[order.pop()]
        size = _size(scenario.smallest, gpus, rng)
        yield _job(number, size, scenario, steps, rng)
        used, number = used + size, number + 1


def _size(least: int, most: int, rng: np.random.Generator) -> int:
    fitting = [place for place, size in enumerate(SIZES) if least <= size <= most]
    weights = np.array([WEIGHTS[place] for place in fitting])
    return SIZES[int(rng.choice(fitting, p=weights / weights.sum()))]


def _job(number: int, size: int, scenario: JobScenario, steps: int, rng: np.random.Generator) -> PlannedJob:
    fitting = [stages for stages in STAGES if stages >= scenario.stages and size // stages >= scenario.peers]
    stages = int(rng.choice(fitting))
    name = f"synthetic/cluster/run{number}"
    onset, target = int(rng.integers(steps // 3, steps // 2)), int(rng.integers(size))
    return PlannedJob(name=name, layout=_layout(name, size, stages), scenario=scenario, steps=steps, onset=onset, target=target, seed=int(rng.integers(1 << 62)))


def _layout(name: str, size: int, stages: int) -> Layout:
    """Ranks of one replica and stage stand side by side on a node."""
    run = name.rsplit("/", 1)[-1]
    replicas = size // stages
    places = []
    for rank in range(size):
        node = f"{run}-node-{rank // GPUS_PER_NODE}"
        slot = rank % GPUS_PER_NODE
        places.append(RankPlacement(worker=f"{run}/{node}/{slot}", node=node, rank=rank, local_rank=slot, gpu=f"GPU-{node}-{slot}", dp=rank % replicas, pp=rank // replicas))
    first = places[0].node
    return Layout(job=name, epoch=1, time=BEGAN, coordinator=first, launchers={}, placements=tuple(places), reason="start")

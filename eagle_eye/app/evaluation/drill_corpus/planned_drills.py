"""Which drills a corpus has: kinds, sizes, layouts, onsets and targets, all drawn from the seed."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from eagle_eye.types import Layout, NodePlace, RankPlacement

from .drill_job import BEGAN, DrillJob, DrillKind
from .kinds import BY_NAME, KINDS

GPUS_PER_NODE, NODES_PER_SWITCH = 8, 4
SIZES = (64, 128, 256, 512, 1024, 2048, 4096)
WEIGHTS = (0.28, 0.22, 0.17, 0.13, 0.09, 0.06, 0.05)
"""Ranks of a job, and how often: what a drill costs grows with them."""
LARGEST_OF_TWO = 512
TWO_JOBS = 0.1
"""Share of the drills."""
HEALTHY_S = (38, 60)
"""Seconds before the onset: what detectors learn from."""


class PlannedDrill(NamedTuple):
    """One drill; the same plan is the same drill."""

    number: int
    kind: str
    sizes: tuple[int, ...]
    """Ranks of each of its jobs."""
    seed: int
    hard: bool = False
    """With a handicap (kinds/handicaps.py)."""


def planned_drills(incidents: int, seed: int, hard: float = 0.0) -> list[PlannedDrill]:
    """Half of them innocent twins, a tenth with two jobs; of each group every kind as often as every other. `hard`: share of those with one job that have a handicap; the others are the same as without."""
    rng = np.random.default_rng((seed, incidents))
    two = round(TWO_JOBS * incidents)
    counts = {(True, 1): (incidents - two + 1) // 2, (False, 1): (incidents - two) // 2, (True, 2): (two + 1) // 2, (False, 2): two // 2}
    kinds = [kind for (fault, jobs), count in counts.items() for kind in _drawn([kind for kind in KINDS if kind.fault is fault and kind.jobs == jobs], count, rng)]
    order = rng.permutation(len(kinds)).tolist()
    plans = [PlannedDrill(number, kinds[at].name, _sizes(kinds[at], rng), int(rng.integers(1 << 62))) for number, at in enumerate(order)]
    drawn = np.random.default_rng((seed, incidents, 1)).random(len(plans)) < hard
    return [plan._replace(hard=True) if chosen and len(plan.sizes) == 1 else plan for plan, chosen in zip(plans, drawn.tolist(), strict=True)]


def _drawn(kinds: Sequence[DrillKind], count: int, rng: np.random.Generator) -> Iterator[DrillKind]:
    for begin in range(0, count, len(kinds)):
        for at in rng.permutation(len(kinds))[: count - begin].tolist():
            yield kinds[at]


def _sizes(kind: DrillKind, rng: np.random.Generator) -> tuple[int, ...]:
    fitting = [at for at, size in enumerate(SIZES) if kind.jobs == 1 or size <= LARGEST_OF_TWO]
    weights = np.array([WEIGHTS[at] for at in fitting])
    return tuple(SIZES[int(rng.choice(fitting, p=weights / weights.sum()))] for _ in range(kind.jobs))


def jobs_of(plan: PlannedDrill) -> tuple[list[DrillJob], DrillKind]:
    """The jobs, before anything has happened to them. Of two jobs the second has its first nodes at the last switch of the first one, and shares a node with it."""
    kind, rng = BY_NAME[plan.kind], np.random.default_rng(plan.seed)
    onset = BEGAN + float(rng.integers(*HEALTHY_S))
    jobs, first = [], 0
    for place, size in enumerate(plan.sizes):
        fitting = [stages for stages in kind.stages if size // stages >= kind.peers]
        shared = place == 1
        layout = _layout(f"drill/corpus/run{plan.number}{'ab'[place] if kind.jobs > 1 else ''}", size, int(rng.choice(fitting)), first - 2 if shared else first, shared=shared)
        jobs.append(DrillJob(layout=layout, onset=onset, target=layout.placements[int(rng.integers(size))], rng=np.random.default_rng(int(rng.integers(1 << 62)))))
        first += size // GPUS_PER_NODE
    return jobs, kind


def _layout(name: str, size: int, stages: int, first: int, *, shared: bool) -> Layout:
    """Nodes from number `first` on. `shared`: its workers on the first node have the slots behind those of another job there."""
    run, replicas = name.rsplit("/", 1)[-1], size // stages
    places = []
    for rank in range(size):
        number, slot = first + rank // GPUS_PER_NODE, rank % GPUS_PER_NODE
        node = f"n{number}"
        taken = GPUS_PER_NODE if shared and rank < 2 * GPUS_PER_NODE else 0
        places.append(RankPlacement(worker=f"{run}/{node}/{slot}", node=node, rank=rank, local_rank=slot, gpu=f"GPU-{node}-{slot + taken}", dp=rank % replicas, pp=rank // replicas))
    nodes = tuple(dict.fromkeys(place.node for place in places))
    where = {node: NodePlace(switch=f"leaf-{int(node[1:]) // NODES_PER_SWITCH}", rack=f"rack-{int(node[1:]) // (2 * NODES_PER_SWITCH)}") for node in nodes}
    return Layout(job=name, epoch=1, time=BEGAN, coordinator=nodes[0], launchers=dict.fromkeys(nodes, "127.0.0.1:1"), placements=tuple(places), reason="start", places=where)

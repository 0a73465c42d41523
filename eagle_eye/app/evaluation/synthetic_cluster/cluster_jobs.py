"""Which jobs a synthetic cluster runs: sizes, layouts, scenarios, onsets and who is hit, all drawn from the seed.

A fault and its twin are planned together, with the same sizes, stages and lengths, and then all runs are put into an order that is drawn: neither the number of a job nor its
size, its layout or how many rows it has tells one from the other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from eagle_eye.app.evaluation.drill_corpus.drill_job import BEGAN, DrillJob
from eagle_eye.types import Layout, NodePlace, RankPlacement

from .job_scenario import JobScenario, ScenarioPair
from .scenarios import PAIRS

GPUS_PER_NODE, NODES_PER_SWITCH, SWITCHES_PER_RACK = 8, 4, 2
SIZES = (8, 16, 32, 64, 128, 256, 512, 1024, 2048)
WEIGHTS = (0.30, 0.18, 0.14, 0.12, 0.10, 0.07, 0.05, 0.03, 0.01)
"""GPUs of a job, and how often: most jobs of a cluster are small, most of its GPUs are in large ones."""
LARGEST_SHARE, LARGEST_OF_SMALL = 8, 64
"""No job has more than an eighth of the cluster; of a small one up to 64 GPUs."""
STAGES = (1, 2, 4)
STEP_S = 1.16
"""That a step lasts, about; a job is watched for so long times its steps."""
ONSET = (1 / 3, 1 / 2)
"""Between these shares of a job what happens to it begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """One job, or two on shared parts, and what happens to them. The same plan is the same run."""

    number: int
    scenario: JobScenario
    twin: str
    """Of a fault the name of its twin, of a twin that of its fault."""
    size: int
    """Workers of each job."""
    stages: int
    onset: float
    """Seconds since 1970."""
    until: float
    seed: int

    @property
    def names(self) -> tuple[str, ...]:
        """Of its jobs."""
        return tuple(f"synthetic/cluster/run{self.number}{part}" for part in ("ab" if self.scenario.jobs > 1 else ("",)))

    @property
    def workers(self) -> int:
        """Of all its jobs."""
        return self.size * self.scenario.jobs


def planned_runs(gpus: int, seed: int, steps: int) -> list[PlannedRun]:
    """Until every GPU has had a job and every scenario that fits has happened. A cluster that is too small for all of them at once runs them one after the other."""
    rng = np.random.default_rng(seed)
    runs = [run for pair in _pairs(gpus, rng) for run in _planned(pair, steps, rng)]
    order = rng.permutation(len(runs)).tolist()
    return [replace(runs[at], number=number) for number, at in enumerate(order)]


def _pairs(gpus: int, rng: np.random.Generator) -> Iterator[tuple[ScenarioPair, int]]:
    """With the size of both."""
    fitting = [pair for pair in PAIRS if pair.smallest * pair.fault.jobs <= gpus]
    used, first = 0, True
    while used < gpus or first:
        for at in rng.permutation(len(fitting)).tolist():
            if not first and used >= gpus:
                return
            size = _size(fitting[at], gpus, rng)
            used += 2 * size * fitting[at].fault.jobs
            yield fitting[at], size
        first = False


def _size(pair: ScenarioPair, gpus: int, rng: np.random.Generator) -> int:
    most = max(gpus // LARGEST_SHARE, LARGEST_OF_SMALL)
    fitting = [place for place, size in enumerate(SIZES) if pair.smallest <= size <= min(most, gpus // pair.fault.jobs)]
    weights = np.array([WEIGHTS[place] for place in fitting])
    return SIZES[int(rng.choice(fitting, p=weights / weights.sum()))]


def _planned(sized: tuple[ScenarioPair, int], steps: int, rng: np.random.Generator) -> Iterator[PlannedRun]:
    pair, size = sized
    least, most = max(pair.fault.stages, pair.twin.stages), min(pair.fault.most_stages, pair.twin.most_stages)
    peers = max(pair.fault.peers, pair.twin.peers)
    stages = int(rng.choice([each for each in STAGES if least <= each <= most and size // each >= peers]))
    lasts = steps * STEP_S
    for scenario, other in ((pair.fault, pair.twin), (pair.twin, pair.fault)):
        onset = BEGAN + float(np.floor(lasts * rng.uniform(*ONSET)))
        yield PlannedRun(number=0, scenario=scenario, twin=other.name, size=size, stages=stages, onset=onset, until=BEGAN + lasts, seed=int(rng.integers(1 << 62)))


def jobs_of(run: PlannedRun) -> list[DrillJob]:
    """The jobs, before anything has happened to them. Of two the second has its first nodes at the last switch of the first one, and shares a node with it."""
    rng = np.random.default_rng(run.seed)
    jobs, first = [], 0
    for place, name in enumerate(run.names):
        layout = _layout(run, name, first - 2 if place else 0, shared=place > 0)
        jobs.append(DrillJob(layout=layout, onset=run.onset, target=layout.placements[int(rng.integers(run.size))], rng=np.random.default_rng(int(rng.integers(1 << 62)))))
        first += run.size // GPUS_PER_NODE
    return jobs


def _layout(run: PlannedRun, name: str, first: int, *, shared: bool) -> Layout:
    """Nodes from number `first` on; ranks of one replica and stage stand side by side. `shared`: its workers on the first two nodes have the GPUs behind those of another job there."""
    short, prefix, replicas = name.rsplit("/", 1)[-1], f"run{run.number}", run.size // run.stages
    places = []
    for rank in range(run.size):
        node, slot = f"{prefix}-node-{first + rank // GPUS_PER_NODE}", rank % GPUS_PER_NODE
        taken = GPUS_PER_NODE if shared and rank < 2 * GPUS_PER_NODE else 0
        places.append(RankPlacement(worker=f"{short}/{node}/{slot}", node=node, rank=rank, local_rank=slot, gpu=f"GPU-{node}-{slot + taken}", dp=rank % replicas, pp=rank // replicas))
    nodes = tuple(dict.fromkeys(place.node for place in places))
    where = {node: _place(prefix, int(node.rpartition("-")[2])) for node in nodes}
    return Layout(job=name, epoch=1, time=BEGAN, coordinator=nodes[0], launchers=dict.fromkeys(nodes, "127.0.0.1:1"), placements=tuple(places), reason="start", places=where)


def _place(prefix: str, number: int) -> NodePlace:
    switch = number // NODES_PER_SWITCH
    return NodePlace(switch=f"{prefix}-leaf-{switch}", rack=f"{prefix}-rack-{switch // SWITCHES_PER_RACK}")


def workers_of(runs: Sequence[PlannedRun]) -> int:
    """Of all of them."""
    return sum(run.workers for run in runs)

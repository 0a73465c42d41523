"""One moment: which job has which fault, and which part of Eagle Eye is killed how long after it. Drawn from a seed."""

import random
from dataclasses import dataclass

NODES = ("node-a", "node-b")
WORKERS_PER_NODE = 2
WITHIN_S = 3.0
"""After the fault: it is found, decided and healed in that time."""
AWAY_S = 2.0
"""For so long at most the part is gone before it is started again."""
JOBS = {"plain, heals itself": "restart:100", "plain, healed by the server": "none", "elastic": "in-place:100"}
"""Kind of job → its --heal."""
FAULTS = ("kill", "exception", "stop")
"""Names of drills on a worker."""
PARTS = ("server", "agent", "launcher")


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What happens in one trial."""

    seed: int
    job: str
    fault: str
    rank: int
    """Of the worker that has it."""
    part: str
    node: str
    """Of the part; the server has none."""
    after_s: float
    """From the fault to the kill."""
    away_s: float
    """From the kill to the start."""

    @property
    def heal(self) -> str:
        return JOBS[self.job]

    @property
    def elastic(self) -> bool:
        return self.job == "elastic"

    def __str__(self) -> str:
        where = f" of {self.node}" if self.part != "server" else ""
        return f"{self.job} job: {self.fault} of rank {self.rank}, {self.after_s:.2f} s later kill -9 of the {self.part}{where}, {self.away_s:.2f} s later it is started again"


def drawn(seed: int) -> Moment:
    """The moment of a seed; faults, parts and kinds of jobs come in turns, so that a few seeds have them all."""
    chance = random.Random(seed)
    turns = [(part, fault, job) for job in JOBS for fault in FAULTS for part in PARTS]
    part, fault, job = turns[seed % len(turns)]
    return Moment(
        seed=seed, job=job, fault=fault, rank=chance.randrange(len(NODES) * WORKERS_PER_NODE), part=part, node=chance.choice(NODES),
        after_s=chance.uniform(0.0, WITHIN_S), away_s=chance.uniform(0.0, AWAY_S),
    )  # fmt: skip

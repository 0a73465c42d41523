"""Which part of Eagle Eye is away for how long while which job trains, and what happens to the job meanwhile: drawn from a seed."""

import itertools
import random
from dataclasses import dataclass

SECONDS = (1.0, 10.0, 60.0)
SCRIPTS = ("plain", "elastic")
PARTS = (
    "server stopped", "server killed", "agents stopped", "agents killed", "coordinator stopped", "follower stopped", "launchers parted",
    "node out of sight", "stream held", "disk full", "everything",
)  # fmt: skip
"""Each is a function of parts.py."""
ON_DISK = frozenset({"disk full", "everything"})
"""Parts that need a state directory of their own size."""
KINDS = ("kill", "exception")
BEFORE_S, AFTER_S = 3.0, 2.0
"""A fault strikes the job at most so long before, or after, the end of the outage."""
NODES, SLOTS = 2, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFault:
    """What really happens to one worker."""

    kind: str
    """kill: kill -9 from outside; exception: its script raises one."""
    node: int
    slot: int
    after_s: float
    """From the beginning of the outage; it may be over by then."""

    def __str__(self) -> str:
        return f"{self.kind} of worker {self.slot} of node {self.node} after {self.after_s:.1f} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """One run."""

    number: int
    seed: int
    part: str
    seconds: float
    script: str
    """marked, unmarked (both plain) or elastic."""
    fault: TrainingFault | None
    """None: nothing happens to the training."""

    @property
    def elastic(self) -> bool:
        return self.script == "elastic"

    @property
    def replay(self) -> str:
        """The command that plays this run alone."""
        return f"python -m benchmarks.faults.parts_away --seed {self.seed} --number {self.number}"

    def __str__(self) -> str:
        return f"run {self.number} ({self.script}), {self.part} for {self.seconds:g} s, {self.fault or 'no fault'}"


CASES = tuple((part, seconds, script) for script, seconds, part in itertools.product(SCRIPTS, SECONDS, PARTS))
"""Every part for each time under each script: 66."""


def drawn(number: int, seed: int) -> Outage:
    """A run depends on its number and the seed alone. The cases come by turns; a half of them, drawn anew for each turn, has a fault."""
    chance = random.Random(f"{seed}/{number}")
    turn, case = divmod(number, len(CASES))
    part, seconds, script = CASES[case]
    with_fault = random.Random(f"{seed}/turn {turn}").sample(range(len(CASES)), len(CASES) // 2)
    return Outage(
        number=number, seed=seed, part=part, seconds=seconds, script=chance.choice(("marked", "unmarked")) if script == "plain" else script,
        fault=_fault(seconds, chance) if case in with_fault else None,
    )  # fmt: skip


def _fault(seconds: float, chance: random.Random) -> TrainingFault:
    after_s = seconds + chance.uniform(-min(BEFORE_S, seconds), AFTER_S)
    return TrainingFault(kind=chance.choice(KINDS), node=chance.randrange(NODES), slot=chance.randrange(SLOTS), after_s=after_s)

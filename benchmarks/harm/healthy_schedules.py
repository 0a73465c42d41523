"""Schedules of harmless behaviour, drawn from a seed: what the ranks of a healthy job do besides its steps."""

import math
import random
from dataclasses import dataclass

from benchmarks.harm.acts import ACTS
from benchmarks.harm.clock_jump import JUMP_S, ClockJump
from benchmarks.harm.plan import Plan, PlannedAct

SHORTEST_S, LONGEST_S = 5.0, 90.0
BELOW_STANDING_S = 25.0
"""Who reads from a socket stands without a proof; past stall.standing_s (30 s) it is accused by design."""
STANDS = frozenset({"data_socket"})
FIRST_ACT, BETWEEN, AFTER = 40, 40, 120
"""Steps."""
LOAD_SHARE, SECOND_SHARE, FIRST_STEP_SHARE, UNEVEN_SHARE, JUMP_SHARE = 0.15, 0.5, 0.15, 0.2, 0.15
WARM_UPS = ("compute", "recompile", "child", "sleep", "multiply")
"""What a slow first step does."""
SCRIPTS = ("marked", "unmarked", "elastic")


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The life of one healthy job."""

    number: int
    script: str
    plan: Plan
    load: int = 0
    """So many other processes compute beside it."""
    jump: ClockJump | None = None

    @property
    def seconds(self) -> float:
        """Of all acts."""
        return sum(act.seconds for act in self.plan.acts)

    def __str__(self) -> str:
        beside = [*self.plan.acts, *([f"{self.load} other processes compute"] if self.load else []), *([self.jump] if self.jump else [])]
        return f"schedule {self.number} ({self.script}): {'; '.join(map(str, beside))}"


def drawn(number: int, seed: int) -> Schedule:
    """A schedule depends on its number and the seed alone; the first act goes through all kinds by turns."""
    chance = random.Random(f"{seed}/{number}")
    kinds = list(ACTS)
    script = SCRIPTS[number % len(SCRIPTS)]
    acts = [_act(kinds[number // len(SCRIPTS) % len(kinds)], FIRST_ACT, chance)]
    if chance.random() < SECOND_SHARE:
        acts.append(_act(chance.choice(kinds), FIRST_ACT + BETWEEN, chance))
    if chance.random() < FIRST_STEP_SHARE:
        acts.insert(0, _act(chance.choice(WARM_UPS), 0, chance))
    load = chance.choice((1, 2)) if chance.random() < LOAD_SHARE else 0
    jump = _jump(chance) if chance.random() < JUMP_SHARE else None
    return Schedule(number=number, script=script, plan=Plan(steps=acts[-1].step + AFTER, acts=tuple(acts)), load=load, jump=jump)


def _jump(chance: random.Random) -> ClockJump:
    return ClockJump(both=chance.random() < 0.3, seconds=chance.choice((-JUMP_S, JUMP_S)), after_s=chance.uniform(2.0, 12.0), lasts_s=chance.uniform(2.0, 20.0))


def _act(kind: str, step: int, chance: random.Random) -> PlannedAct:
    longest = BELOW_STANDING_S if kind in STANDS else LONGEST_S
    seconds = math.exp(chance.uniform(math.log(SHORTEST_S), math.log(longest)))
    ranks = tuple(range(4)) if chance.random() < 0.4 else (chance.randrange(4),)
    uneven = len(ranks) > 1 and chance.random() < UNEVEN_SHARE
    return PlannedAct(kind=kind, step=step, ranks=ranks, seconds=round(seconds, 1), labelled=chance.random() < 0.5, uneven=uneven)

"""What a drill is: one job or two, what happens to them, and the truth about it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from eagle_eye.types import Doubles, Entity, Event, Floats, Kind, Layout, RankPlacement, digest_of

BEGAN = 1_790_000_000.0
NOBODY: tuple[Entity, ...] = ()


@dataclass(slots=True)
class StepSignals:
    """What the workers of a job do in one step; a fault changes it in place."""

    number: int
    begin: float
    compute_s: Doubles
    data_s: Doubles
    tokens: Doubles
    loss: Doubles
    grad_norm: Doubles
    wait_s: float = 0.1
    """In collectives, for nobody in particular."""
    logged: dict[str, Floats] = field(default_factory=dict)
    """Further values of the step; `without` takes values out."""
    without: tuple[str, ...] = ()


@dataclass(slots=True)
class TickSignals:
    """What agents read in one second; a fault changes it in place."""

    time: float
    entities: dict[Kind, tuple[str, ...]]
    metrics: dict[Kind, dict[str, Floats]]
    reporting: dict[str, float]
    """Node → time of its newest batch."""
    clocks: dict[str, float] = field(default_factory=dict)
    """Node whose clock is off → seconds that it is ahead."""

    def place(self, kind: Kind, name: str) -> int:
        """Column of an entity."""
        return self.entities[kind].index(name)


def no_change(_signals: StepSignals | TickSignals) -> None:
    """Changes nothing."""


class Standstill(NamedTuple):
    """No step is completed for a while: what is seen of the processes then."""

    begin: float
    end: float = float("inf")
    who: tuple[int, ...] = ()
    """Workers that the others wait for; () = all are alike."""
    activity: str = ""
    """Of these; '' = nobody looks."""
    phase: str = "forward"
    state: str = "S"
    others: str = "awaits peers"
    others_phase: str = "communication"


@dataclass(slots=True, kw_only=True)
class DrillEffect:
    """What happens to one job from the onset on. Times are seconds since 1970."""

    told: list[tuple[float, Event]] = field(default_factory=list)
    """(when it arrives, event)"""
    step: Callable[[StepSignals], None] = no_change
    """Changes each step that begins at or after the onset."""
    script: Callable[[StepSignals], None] = no_change
    """Changes each step, from the first one on: how the script is."""
    machines: Callable[[TickSignals], None] = no_change
    """Changes each tick, from the first one on: how the machines are."""
    tick: Callable[[TickSignals], None] = no_change
    """Changes each tick from the onset on."""
    still: Standstill | None = None
    restart: float | None = None
    """A new epoch of the job begins then, and trains as before."""
    without: tuple[str, ...] = ()
    """Nodes that are not in that epoch."""


@dataclass(slots=True, kw_only=True)
class DrillJob:
    """One job of a drill."""

    layout: Layout
    onset: float
    target: RankPlacement
    """Whom it happens to, where it happens to somebody."""
    rng: np.random.Generator
    effect: DrillEffect = field(default_factory=DrillEffect)

    @property
    def name(self) -> str:
        return self.layout.job

    @property
    def worker(self) -> Entity:
        """The target."""
        return Entity(kind=Kind.WORKER, name=self.target.worker)

    @property
    def gpu(self) -> Entity:
        """Of the target."""
        return Entity(kind=Kind.GPU, name=self.target.gpu)

    @property
    def node(self) -> Entity:
        """Of the target."""
        return Entity(kind=Kind.NODE, name=self.target.node)

    @property
    def itself(self) -> Entity:
        """The job as an entity."""
        return Entity(kind=Kind.JOB, name=self.layout.job)

    def places(self, node: str) -> list[RankPlacement]:
        """Workers of a node."""
        return [place for place in self.layout.placements if place.node == node]

    def indices(self, node: str) -> list[int]:
        """Of the workers of a node."""
        return [place.rank for place in self.layout.placements if place.node == node]

    def peers(self, most: int) -> list[RankPlacement]:
        """Some workers of other nodes and of the target's, never the target."""
        others = [place for place in self.layout.placements if place.worker != self.target.worker]
        chosen = self.rng.permutation(len(others))[:most]
        return [others[at] for at in sorted(chosen.tolist())]

    def tell(self, time: float, name: str, entity: Entity, *, node: str = "", message: str = "", late_s: float | None = None, more: Mapping[str, object] | None = None, **attributes: object) -> None:
        """An event at this time, which arrives a moment later. `more`: further attributes."""
        said = {"message": message} if name.endswith("exception") else {}
        told = {key: str(value) for key, value in {"epoch": 1, **said, **attributes, **(more or {})}.items()}
        writer = node or (entity.name.split("/")[1] if entity.kind is Kind.WORKER else entity.name if entity.kind is Kind.NODE else self.target.node)
        number = int(digest_of(name, entity, time, told)[:7], 16)
        event = Event(name=name, job=self.name, entity=entity, time=time, node=writer, incarnation="drill", number=number, message=message, attributes=told)
        arrives = time + (float(self.rng.uniform(0.01, 0.3)) if late_s is None else late_s)
        self.effect.told.append((max(arrives, time), event))


class DrillLabel(NamedTuple):
    """The truth about a drill."""

    causes: tuple[str, ...]
    """Names of causes of which each is right; '' among them: nothing needs to be told."""
    culprits: tuple[Entity, ...] = NOBODY
    """Who is at fault; () = nobody that could be named."""
    shared: bool = False
    """One fault of both jobs."""
    unknown_too: bool = False
    """So little is seen of it that who accuses nobody is right, too."""


Happening = Callable[[Sequence[DrillJob]], DrillLabel]
"""Fills in the effects of the jobs, and says what is true."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillKind:
    """A kind of fault, or of an innocent twin."""

    name: str
    family: str
    """What it is a kind of: the classes of a corpus are balanced by it."""
    fault: bool
    happen: Happening
    jobs: int = 1
    lasts_s: int = 40
    """Seconds that the job is watched for from the onset on."""
    stages: tuple[int, ...] = (1, 2, 4)
    """Pipeline stages of its jobs, one of these."""
    peers: int = 4
    """Ranks of a stage at least: where a slow node is a third of its stage, nobody can tell it from slow work."""

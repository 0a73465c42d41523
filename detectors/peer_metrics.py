"""A GPU or a node whose power or clock keeps apart from all others of its job, or whose power meter is stuck; it informs only.

In a synchronous job all wait for one another, so that healthy machines show the same in the same moment (features/peer_levels.py). One whose power falls to a third computes
nothing; one whose clock and power are a fifth lower is throttled and slows all; one that takes more than the others may be stuck in a busy loop. What is told is that it is different
since a time and by how much: why, other findings and a look at it must say.

Where more than a quarter of the machines keep apart, it is none of them: the job does something in which they are not alike.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np

from eagle_eye.frames import Frame
from eagle_eye.ranges import Count, Ratio, Seconds, Share
from eagle_eye.types import Claim, Entity, Evidence, Floats, Kind

from .features.active_claims import ActiveClaims
from .features.peer_levels import EQUAL, PeerLevels

APART, STUCK = "unlike_peers", "reading_stuck"
CERTAIN = 0.9
"""Score of a claim: that it is different is sure, that it is sick is not."""
BACK = 0.5
"""Share of the limit below which it is like the others again."""


class _Distance(NamedTuple):
    """How far something keeps apart; all but the time are logarithms."""

    apart: float
    usual: float
    limit: float
    since: float


@dataclass
class PeerMetrics:
    """Claims gpu.unlike_peers, node.unlike_peers, gpu.reading_stuck and node.reading_stuck."""

    needs_job: ClassVar[bool] = True
    of_gpus: tuple[str, ...] = ("power_watts", "sm_clock_mhz")
    """Metrics of GPUs that are compared."""
    of_nodes: tuple[str, ...] = ("power_watts",)
    """Metrics of nodes that are compared."""
    meters: tuple[str, ...] = ("power_watts",)
    """Of these, the ones whose readings always change."""
    told: Share = 0.1
    """So far from the median of all, beside its usual place."""
    deviations: Ratio = 3.0
    """And so many robust deviations of what all show in one moment."""
    seconds: Seconds = 6.0
    """And for so long, in every reading."""
    at_most: Share = 0.25
    """Of all that may keep apart together."""
    peers: Count = 4
    """Fewer cannot be compared."""
    _levels: dict[tuple[Kind, str], PeerLevels] = field(default_factory=dict, init=False, repr=False)
    _names: dict[Kind, tuple[str, ...]] = field(default_factory=dict, init=False, repr=False)
    _claims: ActiveClaims = field(default_factory=ActiveClaims, init=False, repr=False)

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        if not frame.tick:
            return
        for kind, metrics in ((Kind.GPU, self.of_gpus), (Kind.NODE, self.of_nodes)):
            names = frame.entities.get(kind, ())
            if names != self._names.get(kind, ()):
                yield from self._follow(kind, names, frame.time)
            for metric in metrics:
                values = frame.metrics.get(kind, {}).get(metric)
                if values is not None:
                    yield from self._judge(kind, metric, self._levels_of(kind, metric, len(names)), values, frame.time)

    def _levels_of(self, kind: Kind, metric: str, count: int) -> PeerLevels:
        levels = self._levels.get((kind, metric))
        if levels is None:
            levels = self._levels[kind, metric] = PeerLevels()
            levels.move(np.full(count, -1))
        return levels

    def _judge(self, kind: Kind, metric: str, levels: PeerLevels, values: Floats, now: float) -> Iterator[Claim]:
        if not levels.update(values, now, self.peers):
            return
        names, limit = self._names[kind], max(math.log1p(self.told), self.deviations * levels.noise)
        apart, lasting = levels.keep_apart(limit, self.seconds)
        if np.count_nonzero(np.isfinite(levels.since)) <= self.at_most * len(names):
            for place in lasting.tolist():
                distance = _Distance(float(apart[place]), float(levels.level[place]), limit, float(levels.since[place]))
                yield from self._tell(Entity(kind=kind, name=names[place]), metric, distance)
        for place in levels.stuck().tolist() if metric in self.meters else ():
            yield from self._tell_stuck(Entity(kind=kind, name=names[place]), metric, float(levels.last[place]), levels.times[0])
        yield from self._withdraw(kind, metric, levels, limit, now)

    def _tell(self, entity: Entity, metric: str, distance: _Distance) -> Iterator[Claim]:
        now, usual = _beside(distance.apart + distance.usual), _beside(distance.usual)
        text = f"{entity}: its {metric} is {now} the median of its peers, in each reading for {self.seconds:g} s; usual is {usual}"
        line = Evidence(text=text, metric=metric, value=math.exp(distance.apart), threshold=math.exp(math.copysign(distance.limit, distance.apart)))
        yield from self._claims.report(_claim(entity, APART, distance.since, line), revise=False)

    def _tell_stuck(self, entity: Entity, metric: str, value: float, since: float) -> Iterator[Claim]:
        line = Evidence(text=f"{entity}: its {metric} was {value:.6g} in {EQUAL} readings in succession, while those of its peers changed", metric=metric, value=value)
        yield from self._claims.report(_claim(entity, STUCK, since, line), revise=False)

    def _withdraw(self, kind: Kind, metric: str, levels: PeerLevels, limit: float, now: float) -> Iterator[Claim]:
        """Claims that rest on this metric and do not hold any more."""
        mine = [(entity, claim) for (entity, _), claim in self._claims.open.items() if entity.kind is kind and claim.evidence[0].metric == metric]
        place = {name: number for number, name in enumerate(self._names[kind])} if mine else {}
        for entity, claim in mine:
            number = place[entity.name]
            recent = np.abs(levels.newest[:, number] - levels.level[number])
            if claim.kind.endswith(STUCK):
                if levels.equal[number] < EQUAL:
                    yield from self._claims.withdraw(entity, claim.kind, now, "its readings change again")
            elif (recent < max(BACK * limit, 2.0 * levels.noise)).all():
                yield from self._claims.withdraw(entity, claim.kind, now, "it shows what its peers show again")

    def _follow(self, kind: Kind, names: tuple[str, ...], now: float) -> Iterator[Claim]:
        """Others are there than in the tick before. By name: a frame may be left out."""
        place = {name: number for number, name in enumerate(self._names.get(kind, ()))}
        moved = np.array([place.get(name, -1) for name in names], np.int64)
        for (other, _), levels in self._levels.items():
            if other is kind:
                levels.move(moved)
        self._names[kind] = names
        present = set(names)
        for entity, claimed in list(self._claims.open):
            if entity.kind is kind and entity.name not in present:
                yield from self._claims.withdraw(entity, claimed, now, "nothing is read of it any more")


def _claim(entity: Entity, what: str, since: float, line: Evidence) -> Claim:
    return Claim(entity=entity, kind=f"{entity.kind}.{what}", score=CERTAIN, since=since, evidence=(line,))


def _beside(logarithm: float) -> str:
    """
    >>> _beside(math.log(0.8)), _beside(0.0)
    ('20 % below', '0 % above')
    """
    share = round(100.0 * abs(math.expm1(logarithm)))
    return f"{share} % {'below' if logarithm < 0.0 and share else 'above'}"

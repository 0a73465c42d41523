"""Clocks of nodes that are off: what happened first on two nodes is less sure then, and times in the node's own logs are other times."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from eagle_eye.frames import Frame
from eagle_eye.ranges import Count, Seconds
from eagle_eye.types import Claim, Entity, Evidence, Kind

from .features.active_claims import ActiveClaims, ends_epoch

KIND = "clock.skewed"
TOLD = 64
"""Nodes of one job; further ones are not named."""
MANY = 2
"""So many nodes, and all of the job, are not off by themselves."""
RIGHT = 0.7
"""Share of the limit below which a clock that was off is right again: one that is off by just about the limit is told once."""


@dataclass
class ClockSkew:
    """Claims clock.skewed of each node whose batches show that its clock is off, or of the job where all of its nodes are off to the same side: then it is the server's.

    Informs, never accuses: the times that such a node reports are put right (eagle_eye/node_clocks.py). Withdrawn when its clock is right again, when the
    node leaves the job, and with the end of the job.
    """

    needs_job: ClassVar[bool] = True
    ahead_s: Seconds = 5.0
    """A clock that is further ahead is told: no batch comes from the future."""
    behind_s: Seconds = 10.0
    """The same for one that is behind: on a busy machine a batch may be some seconds old."""
    ticks: Count = 3
    """In so many ticks in succession before it is told, and as many of a right clock before that is withdrawn."""
    _off: dict[str, float] = field(default_factory=dict, init=False, repr=False)
    """Node whose clock is off → seconds that it was ahead when it was last seen to be."""
    _counts: dict[str, int] = field(default_factory=dict, init=False, repr=False)
    """Node → ticks in succession in which its clock was not as `_off` says."""
    _over: bool = field(default=False, init=False, repr=False)
    _claims: ActiveClaims = field(default_factory=ActiveClaims, init=False, repr=False)

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        for event in frame.events:
            if event.name in ("job.finished", "job.failed"):
                self._over = True
                self._off.clear()
                self._counts.clear()
                yield from self._claims.withdraw_all(event.time, ends_epoch(event))
            elif event.name in ("job.started", "epoch.started"):
                self._over = False
        if frame.tick and not self._over and frame.layout is not None:
            yield from self._judge(frame, frozenset(frame.layout.nodes))

    def _judge(self, frame: Frame, nodes: frozenset[str]) -> Iterator[Claim]:
        self._count({node: frame.clocks.get(node, 0.0) for node in nodes & (frame.clocks.keys() | self._off.keys() | self._counts.keys())})
        claims = self._of_all(nodes, frame) or {_node(node): self._claim(node, ahead, frame.time) for node, ahead in sorted(self._off.items())[:TOLD]}
        for entity, _ in list(self._claims.open):
            if entity not in claims:
                yield from self._claims.withdraw(entity, KIND, frame.time, self._why(entity, nodes))
        for claim in claims.values():
            yield from self._claims.report(claim, revise=False)

    def _count(self, clocks: Mapping[str, float]) -> None:
        """Who is off, by the clocks of this tick: of all nodes that are off, or may be."""
        counts: dict[str, int] = {}
        for node, ahead in clocks.items():
            if self._is_off(ahead, RIGHT if node in self._off else 1.0) != (node in self._off):
                counts[node] = self._counts.get(node, 0) + 1
        turned = {node for node, count in counts.items() if count >= self.ticks}
        self._off = {node: ahead if node not in counts else self._off.get(node, ahead) for node, ahead in clocks.items() if (node in self._off) != (node in turned)}
        self._counts = {node: count for node, count in counts.items() if node not in turned}

    def _is_off(self, ahead: float, share: float) -> bool:
        """By more than this share of the limit."""
        return ahead > share * self.ahead_s or -ahead > share * self.behind_s

    def _of_all(self, nodes: frozenset[str], frame: Frame) -> dict[Entity, Claim]:
        """One claim about the job, where all of its nodes are off to the same side; one that nearly is speaks neither for it nor against it."""
        off, sides = self._off, {ahead > 0.0 for ahead in self._off.values()}
        nearly = {node for node, ahead in frame.clocks.items() if node not in off and self._is_off(ahead, RIGHT) and (ahead > 0.0) in sides}
        known = (nodes & frame.reporting.keys()) - nearly
        if len(off) < max(MANY, len(known)) or len(sides) != 1:
            return {}
        least = min(off.values(), key=abs)
        text = f"the clocks of all {len(off)} nodes are {_distance(least)} or more of the server's: it is the server's clock that is off, most likely"
        entity = Entity(kind=Kind.JOB, name=frame.job)
        return {entity: _claimed(entity, frame.time, Evidence(text=text, metric="clock_ahead_s", value=least))}

    def _claim(self, node: str, ahead: float, time: float) -> Claim:
        held = "" if ahead > 0.0 else ", or its telemetry is held up on its way"
        text = f"the clock of {node} is {_distance(ahead)} of the server's{held}: its times are put right, to within a second or two"
        return _claimed(_node(node), time, Evidence(text=text, metric="clock_ahead_s", value=ahead, threshold=self.ahead_s if ahead > 0.0 else -self.behind_s))

    def _why(self, entity: Entity, nodes: frozenset[str]) -> str:
        if entity.kind is Kind.NODE and entity.name not in nodes:
            return "the node is no part of the job any more"
        return "the clock is right again"


def _node(name: str) -> Entity:
    return Entity(kind=Kind.NODE, name=name)


def _claimed(entity: Entity, time: float, proof: Evidence) -> Claim:
    return Claim(entity=entity, kind=KIND, score=0.9, since=time, evidence=(proof,))


def _distance(ahead: float) -> str:
    return f"{abs(ahead):.0f} s {'ahead' if ahead > 0.0 else 'behind'}"

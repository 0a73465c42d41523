"""Nodes whose telemetry has stopped, or comes late, while their job trains on: missing telemetry looks like health, or like a hang."""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import ClassVar

from eagle_eye.frames import Frame
from eagle_eye.ranges import Count, Seconds
from eagle_eye.types import Claim, Entity, Evidence, Kind

from .features.active_claims import ActiveClaims, ends_epoch

KIND = "telemetry.late"
STEADY = 3
"""Telemetry comes again once it has not been late for so many times `late_s`: an agent whose batches come by fits and starts is told once."""
TOLD = 64
"""Nodes of one job; further ones are not named."""


@dataclass
class TelemetryDelay:
    """Claims telemetry.late of each node whose newest batch is old, while others of the job report and its launcher has not gone; of the job, where that is most of its nodes.

    Informs, never accuses. Nothing is told of a node that never reported (it has no agent), of one that is no part of the job any more, of one whose launcher's session is gone
    (liveness judges that), of an agent that begins again within `late_s`, and of a job all of whose nodes are silent: the job, the stream or the network is away.
    """

    needs_job: ClassVar[bool] = True
    late_s: Seconds = 10.0
    """Batches come each second; one that is older is late."""
    ticks: Count = 3
    """In so many ticks in succession."""
    _counts: dict[str, int] = field(default_factory=dict, init=False, repr=False)
    """Node → ticks in succession in which it was late."""
    _came: dict[Entity, float] = field(default_factory=dict, init=False, repr=False)
    """Who was told to be late and is not now → since when."""
    _gone: set[str] = field(default_factory=set, init=False, repr=False)
    """Nodes whose launcher's session is gone."""
    _over: bool = field(default=False, init=False, repr=False)
    _claims: ActiveClaims = field(default_factory=ActiveClaims, init=False, repr=False)

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        for event in frame.events:
            if event.name == "peer.lost" or (event.name == "session.lost" and event.attributes.get("role") == "launcher"):
                self._gone.add(event.entity.name)
            elif event.name == "session.opened" and event.attributes.get("role") == "launcher":
                self._gone.discard(event.entity.name)
            elif event.name in ("job.finished", "job.failed"):
                self._over = True
                self._counts.clear()
                self._came.clear()
                yield from self._claims.withdraw_all(event.time, ends_epoch(event))
            elif event.name in ("job.started", "epoch.started"):
                self._over = False
        if frame.tick and not self._over and frame.layout is not None:
            yield from self._judge(frame)

    def _judge(self, frame: Frame) -> Iterator[Claim]:
        nodes = () if frame.layout is None else frame.layout.nodes
        ages = {node: frame.time - frame.reporting[node] + frame.clocks.get(node, 0.0) for node in nodes if node in frame.reporting}
        late = {node for node, age in ages.items() if age > self.late_s}
        if len(late) == len(ages):  # the job, the stream or the network is away, and what was said of one node still holds
            self._counts.clear()
            self._came.clear()
        else:
            self._counts = {node: self._counts.get(node, 0) + 1 for node in late - self._gone}
            yield from self._withdraw(frame.time, ages, late)
        told = {node: ages[node] for node, count in self._counts.items() if count >= self.ticks}
        if 2 * len(told) > len(ages):
            yield from self._claims.report(self._of_most(frame, told, len(ages)), revise=False)
            return
        for node in sorted(told)[:TOLD]:
            yield from self._claims.report(self._of_one(node, told[node], frame.time), revise=False)

    def _withdraw(self, now: float, ages: Mapping[str, float], late: Set[str]) -> Iterator[Claim]:
        most = 2 * len(late) > len(ages)
        for entity, _ in list(self._claims.open):
            of_job = entity.kind is Kind.JOB
            if not of_job and entity.name not in ages:
                why = "the node is no part of the job any more"
            elif not of_job and entity.name in self._gone:
                why = "its launcher's session is gone, too"
            elif self._comes_again(entity, now, late=most if of_job else entity.name in late):
                why = f"{'the telemetry of most nodes' if of_job else 'its telemetry'} comes again"
            else:
                continue
            self._came.pop(entity, None)
            yield from self._claims.withdraw(entity, KIND, now, why)

    def _comes_again(self, entity: Entity, now: float, *, late: bool) -> bool:
        """It has for a while."""
        if late:
            self._came.pop(entity, None)
            return False
        return now - self._came.setdefault(entity, now) >= STEADY * self.late_s

    def _of_most(self, frame: Frame, told: Mapping[str, float], known: int) -> Claim:
        text = f"{len(told)} of {known} nodes have sent no telemetry of the last {self.late_s:g} s: the stream, the network or their agents are away"
        return _claim(Entity(kind=Kind.JOB, name=frame.job), frame.time - min(told.values()), Evidence(text=text))

    def _of_one(self, node: str, age: float, now: float) -> Claim:
        text = f"{node} has sent no telemetry of the last {self.late_s:g} s, while its job and its launcher go on: its agent is away, or what it sends is held up"
        return _claim(Entity(kind=Kind.NODE, name=node), now - age, Evidence(text=text, metric="telemetry_age_s", value=age, threshold=self.late_s))


def _claim(entity: Entity, since: float, proof: Evidence) -> Claim:
    return Claim(entity=entity, kind=KIND, score=0.9, since=since, evidence=(proof,))

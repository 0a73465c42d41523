"""Failing collectors: missing telemetry is a finding of its own, so that it does not look like health."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from eagle_eye.frames import Frame
from eagle_eye.ranges import Share
from eagle_eye.types import Claim, Entity, Event, Evidence

from .features.active_claims import ActiveClaims


@dataclass
class CollectorHealth:
    """Claims collector.failing of a node while at least one of its collectors fails; informs, never accuses."""

    score: Share = 0.9
    """Score of the claim; the agent itself reports the failure."""
    _failing: dict[Entity, dict[str, Evidence]] = field(default_factory=dict, init=False, repr=False)
    _claims: ActiveClaims = field(default_factory=ActiveClaims, init=False, repr=False)

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        for event in frame.events:
            if event.name == "collector.failing":
                yield from self._failed(event)
            elif event.name == "collector.recovered":
                yield from self._back(event)

    def _failed(self, event: Event) -> Iterator[Claim]:
        collector, reason = event.attributes.get("collector", "?"), event.attributes.get("reason", "no reason given")
        proof = Evidence(text=f"collector {collector} on {event.entity.name} fails: {reason}", event=event.id)
        self._failing.setdefault(event.entity, {})[collector] = proof
        yield from self._claims.report(self._claim(event.entity, event.time))

    def _back(self, event: Event) -> Iterator[Claim]:
        failing = self._failing.get(event.entity, {})
        failing.pop(event.attributes.get("collector", "?"), None)
        if failing:
            yield from self._claims.report(self._claim(event.entity, event.time))
            return
        self._failing.pop(event.entity, None)
        yield from self._claims.withdraw(event.entity, "collector.failing", event.time, "its collectors work again")

    def _claim(self, node: Entity, time: float) -> Claim:
        before = self._claims.open.get((node, "collector.failing"))
        return Claim(
            entity=node,
            kind="collector.failing",
            score=self.score,
            since=before.since if before else time,
            evidence=tuple(self._failing[node].values()),
        )

"""Launchers that are there while their job trains without their nodes, and may not take them in by itself."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from eagle_eye.event_attributes import integer_attribute
from eagle_eye.frames import Frame
from eagle_eye.ranges import Share
from eagle_eye.types import Claim, Event, Evidence, Kind

from .features.active_claims import ActiveClaims, ends_epoch

KIND = "node.unused"
NODES_KEPT = 1000
"""Of one job; further ones are not named."""


@dataclass
class UnusedNodes:
    """Claims node.unused of each node that its job's coordinator reports as such; accuses nobody, for the job trains.

    Withdrawn when the session of its launcher breaks, with the next epoch, and with the end of the job.
    """

    score: Share = 1.0
    """Score of the claim; the coordinator itself reports whom it leaves out."""
    _epoch: int = field(default=-1, init=False, repr=False)
    """The newest that has begun: a coordinator of an older one has been left behind."""
    _claims: ActiveClaims = field(default_factory=ActiveClaims, init=False, repr=False)

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        for event in frame.events:
            if event.name == KIND:
                yield from self._unused(event)
            elif event.name == "peer.lost":
                yield from self._claims.withdraw(event.entity, KIND, event.time, "its launcher has gone")
            elif why := ends_epoch(event):
                self._epoch = max(self._epoch, integer_attribute(event, "epoch"))
                yield from self._claims.withdraw_all(event.time, why)

    def _unused(self, event: Event) -> Iterator[Claim]:
        late = integer_attribute(event, "epoch") < self._epoch
        if late or event.entity.kind is not Kind.NODE or len(self._claims.open) >= NODES_KEPT:
            return
        proof = Evidence(text=event.message or event.attributes.get("reason", event.name), event=event.id)
        yield from self._claims.report(Claim(entity=event.entity, kind=KIND, score=self.score, since=event.time, evidence=(proof,)), revise=False)

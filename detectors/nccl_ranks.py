"""Ranks of which NCCL's own RAS says that they do not answer, lag or have failed: they inform, since who waits looks like who is waited for."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from eagle_eye.event_attributes import integer_attribute
from eagle_eye.frames import Frame
from eagle_eye.ranges import Seconds, Share
from eagle_eye.types import Claim, Event, Evidence

from .features.active_claims import ActiveClaims, ends_epoch, epoch_over

KIND = "nccl.outlier_ranks"
COMMUNICATORS_KEPT = 64
LINES = 4
"""Communicators in the evidence; where a rank hangs most of them stand."""
WORKERS_NAMED = 4


@dataclass
class NcclRanks:
    """Claims nccl.outlier_ranks of the job while ranks of a communicator stand out. Beside a stall it is evidence; it accuses nobody."""

    score: Share = 0.5
    """Score of the claim: RAS knows where ranks stand, not why."""
    withdraw_after_s: Seconds = 3600.0
    """Withdrawn so many seconds after RAS's last word, where no agent reports that it is over."""
    _over: int = field(default=-1, init=False, repr=False)
    """The newest epoch that is over."""
    _told: dict[str, tuple[Event, Evidence]] = field(default_factory=dict, init=False, repr=False)
    """By communicator."""
    _claims: ActiveClaims = field(default_factory=ActiveClaims, init=False, repr=False)

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        for event in frame.events:
            if event.name == "nccl.outlier_ranks":
                yield from self._stands_out(event, frame)
            elif event.name == "nccl.ranks_agree":
                self._told.pop(event.attributes.get("communicator", ""), None)
                yield from self._end(event.time, "the ranks agree again")
            elif why := ends_epoch(event):
                self._over = max(self._over, epoch_over(event))
                self._told.clear()
                yield from self._end(event.time, why)
        if frame.tick and self._told and frame.time - max(event.time for event, _ in self._told.values()) > self.withdraw_after_s:
            self._told.clear()
            yield from self._end(frame.time, f"RAS has said nothing more for {self.withdraw_after_s:.0f} s")

    def _stands_out(self, event: Event, frame: Frame) -> Iterator[Claim]:
        name = event.attributes.get("communicator", "")
        if 0 <= integer_attribute(event, "epoch") <= self._over or (name not in self._told and len(self._told) >= COMMUNICATORS_KEPT):
            return
        self._told[name] = (event, Evidence(text=_words(event, frame), event=event.id))
        before = self._claims.open.get((event.entity, KIND))
        first = sorted(self._told.values(), key=lambda told: _weight(told[0]))[:LINES]
        since = before.since if before else event.time
        yield from self._claims.report(Claim(entity=event.entity, kind=KIND, score=self.score, since=since, evidence=tuple(line for _, line in first)))

    def _end(self, time: float, why: str) -> Iterator[Claim]:
        """Once none is left."""
        if not self._told:
            yield from self._claims.withdraw_all(time, why)


def _weight(event: Event) -> tuple[int, int, str]:
    """What says most first: ranks that do not answer, then failed ones, then the fewest that lag."""
    attributes = event.attributes
    if attributes.get("unresponsive"):
        return 0, 0, event.id
    return (1, 0, event.id) if attributes.get("failed") else (2, integer_attribute(event, "lagging_count"), event.id)


def _words(event: Event, frame: Frame) -> str:
    """As RAS says it, with the workers' names where ranks are the job's."""
    text = event.message or f"NCCL RAS: ranks of communicator {event.attributes.get('communicator', '?')} stand out"
    if event.attributes.get("numbered_by") != "job" or frame.layout is None:
        return text
    told = [event.attributes.get(name, "") for name in ("unresponsive", "failed", "lagging")]
    ranks = next((numbers.split(",") for numbers in told if numbers), [])
    workers = {str(each.rank): each.worker for each in frame.layout.placements}
    named = [workers[rank] for rank in ranks[:WORKERS_NAMED] if rank in workers]
    return f"{text} ({', '.join(named)}{', …' if len(ranks) > len(named) else ''})" if named else text

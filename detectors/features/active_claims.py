"""The claims that a detector has open, so that it yields changes only: a new claim, a revision, a withdrawal."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from eagle_eye.event_attributes import integer_attribute
from eagle_eye.types import Claim, Entity, Event, Evidence


@dataclass(slots=True)
class ActiveClaims:
    """The open claims of one detector for one job, by entity and kind.

    >>> from eagle_eye.types import Kind
    >>> node = Entity(kind=Kind.NODE, name="a")
    >>> proof = Evidence(text="its batches stopped")
    >>> claim = Claim(entity=node, kind="node.lost", score=1.0, since=5.0, evidence=(proof,))
    >>> active = ActiveClaims()
    >>> len(list(active.report(claim))), len(list(active.report(claim)))
    (1, 0)
    >>> [claim.active for claim in active.withdraw(node, "node.lost", 9.0, "it reports again")]
    [False]
    """

    open: dict[tuple[Entity, str], Claim] = field(default_factory=dict)
    """(entity, kind of finding) → the claim as it was last reported."""

    def report(self, claim: Claim, *, revise: bool = True) -> Iterator[Claim]:
        """Yield the claim if it is new or its score or evidence changed; `revise=False`: only if it is new."""
        key = (claim.entity, claim.kind)
        before = self.open.get(key)
        if before is None or (revise and (before.score, before.evidence) != (claim.score, claim.evidence)):
            self.open[key] = claim
            yield claim

    def withdraw(self, entity: Entity, kind: str, time: float, why: str) -> Iterator[Claim]:
        """Yield the withdrawal of a claim if it is open; `time` and `why` become its last line of evidence."""
        before = self.open.pop((entity, kind), None)
        if before is not None:
            evidence = (*before.evidence, over(why, time))
            yield Claim(
                entity=entity, kind=kind, score=before.score, since=before.since, evidence=evidence, active=False
            )

    def withdraw_all(self, time: float, why: str) -> Iterator[Claim]:
        """Yield the withdrawal of every open claim."""
        for entity, kind in list(self.open):
            yield from self.withdraw(entity, kind, time, why)

    def __contains__(self, key: tuple[Entity, str]) -> bool:
        return key in self.open


def over(why: str, time: float) -> Evidence:
    """The last line of what is withdrawn."""
    return Evidence(text=f"over: {why}", metric="over", value=time)


def ends_epoch(event: Event) -> str:
    """Why this event ends all claims about the workers of the current epoch; '' if it does not end them."""
    if event.name == "epoch.started":
        return f"epoch {event.attributes.get('epoch', '?')} has begun"
    if event.name in ("job.finished", "job.failed"):
        return f"the job has {event.name.removeprefix('job.')}"
    return ""


def epoch_over(event: Event) -> int:
    """The newest epoch that an event of `ends_epoch` ends; -1 if the event does not name it."""
    epoch = integer_attribute(event, "epoch")
    return epoch - 1 if event.name == "epoch.started" else epoch

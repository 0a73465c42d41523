"""What a job's launchers wait for before they can begin another epoch: launchers that cannot be reached, processes that do not end, a full disk."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from eagle_eye.frames import Frame
from eagle_eye.ranges import Share
from eagle_eye.types import Claim, Entity, Event, Evidence, Kind

from .features.active_claims import ActiveClaims, ends_epoch

KIND = "job.waiting"
WAITS = frozenset({"coordinator.isolated", "node.held", "vote.withheld"})
REASONS_KEPT = 16
"""Of one job; further ones are not named."""


@dataclass
class LauncherQuorum:
    """Claims job.waiting of a job whose coordinator reports what keeps it from going on; accuses nobody: the workers are left as they are.

    Withdrawn when the launchers can be reached again, with the next epoch, and with the end of the job.
    """

    score: Share = 1.0
    """Score of the claim; the coordinator itself reports what it waits for."""
    _reasons: dict[tuple[str, str], Evidence] = field(default_factory=dict, init=False, repr=False)
    """(event, entity) → what it told."""
    _job: Entity | None = field(default=None, init=False, repr=False)
    _since: float = field(default=0.0, init=False, repr=False)
    _claims: ActiveClaims = field(default_factory=ActiveClaims, init=False, repr=False)

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        for event in frame.events:
            if event.name in WAITS:
                yield from self._waits(event)
            elif event.name == "coordinator.reunited":
                yield from self._over(event.time, "the launchers can be reached again", "coordinator.isolated")
            elif why := ends_epoch(event):
                yield from self._over(event.time, why, *WAITS)

    def _waits(self, event: Event) -> Iterator[Claim]:
        if not self._reasons:
            self._since = event.time
        if len(self._reasons) < REASONS_KEPT:
            self._reasons[event.name, event.entity.name] = Evidence(text=event.message or event.attributes.get("reason", event.name), event=event.id)
        self._job = Entity(kind=Kind.JOB, name=event.job)
        yield from self._report(self._job)

    def _over(self, time: float, why: str, *names: str) -> Iterator[Claim]:
        before = len(self._reasons)
        self._reasons = {key: reason for key, reason in self._reasons.items() if key[0] not in names}
        if self._job is None or len(self._reasons) == before:
            return
        if self._reasons:
            yield from self._report(self._job)
        else:
            yield from self._claims.withdraw(self._job, KIND, time, why)

    def _report(self, job: Entity) -> Iterator[Claim]:
        yield from self._claims.report(Claim(entity=job, kind=KIND, score=self.score, since=self._since, evidence=tuple(self._reasons.values())))

"""What a job's launchers wait for before they can begin another epoch: launchers that cannot be reached, processes that do not end, a full disk."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from eagle_eye.event_attributes import integer_attribute
from eagle_eye.frames import Frame
from eagle_eye.ranges import Share
from eagle_eye.types import Claim, Entity, Event, Evidence, Kind

from .features.active_claims import ActiveClaims, ends_epoch

KIND = "job.waiting"
TRAINS = "trains"
"""Status of the evidence where no epoch is wanted: the job trains on, and could not heal itself."""
WAITS = frozenset({"coordinator.isolated", "node.held", "vote.withheld"})
REASONS_KEPT = 16
"""Of one job; further ones are not named."""


@dataclass
class LauncherQuorum:
    """Claims job.waiting of a job whose coordinator reports what keeps it from going on; accuses nobody: the workers are left as they are.

    Withdrawn when the launchers can be reached again, with the next epoch, and with the end of the job. What is over before the next tick has
    kept nobody waiting.
    """

    score: Share = 1.0
    """Score of the claim; the coordinator itself reports what it waits for."""
    _reasons: dict[tuple[str, str], Evidence] = field(default_factory=dict, init=False, repr=False)
    """(event, entity) → what it told."""
    _job: Entity | None = field(default=None, init=False, repr=False)
    _epoch: int = field(default=-1, init=False, repr=False)
    """The newest that has begun: a coordinator of an older one has been left behind."""
    _since: float = field(default=0.0, init=False, repr=False)
    _news: bool = field(default=False, init=False, repr=False)
    """The reasons are others than those that were claimed."""
    _claims: ActiveClaims = field(default_factory=ActiveClaims, init=False, repr=False)

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        for event in frame.events:
            if event.name in WAITS and integer_attribute(event, "epoch") >= self._epoch:
                self._waits(event)
            elif event.name == "coordinator.reunited":
                yield from self._over(event.time, "the launchers can be reached again", "coordinator.isolated")
            elif why := ends_epoch(event):
                self._epoch = max(self._epoch, integer_attribute(event, "epoch"))
                yield from self._over(event.time, why, *WAITS)
        if frame.tick and self._news and self._job is not None:
            self._news = False
            yield from self._claims.report(Claim(entity=self._job, kind=KIND, score=self.score, since=self._since, evidence=self._evidence()))

    def _waits(self, event: Event) -> None:
        if not self._reasons:
            self._since = event.time
        key = (event.name, event.entity.name)
        if key in self._reasons or len(self._reasons) < REASONS_KEPT:
            status = TRAINS if event.attributes.get("trains") else ""
            self._reasons[key] = Evidence(text=event.message or event.attributes.get("reason", event.name), event=event.id, status=status)
        self._job, self._news = Entity(kind=Kind.JOB, name=event.job), True

    def _evidence(self) -> tuple[Evidence, ...]:
        """One reason for which the job waits makes all of them reasons to wait."""
        reasons = tuple(self._reasons.values())
        return reasons if all(reason.status for reason in reasons) else tuple(msgspec.structs.replace(reason, status="") for reason in reasons)

    def _over(self, time: float, why: str, *names: str) -> Iterator[Claim]:
        before = len(self._reasons)
        self._reasons = {key: reason for key, reason in self._reasons.items() if key[0] not in names}
        if self._job is None or len(self._reasons) == before:
            return
        self._news = bool(self._reasons)
        if not self._reasons:
            yield from self._claims.withdraw(self._job, KIND, time, why)

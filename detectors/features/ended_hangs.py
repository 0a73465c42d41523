"""Hangs that were over when they were told: the job left the worker out and went on before the server had judged what was seen of it."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from eagle_eye.event_attributes import float_attribute, integer_attribute
from eagle_eye.types import Claim, Entity, Event, Evidence

SETTLED_S = 2.0
"""Seconds behind the last of them until they are told: whether all workers hang, or one, is known then."""
STALLED = "it was stalled while all others waited for it"
"""Reason of `worker.excluded` where the coordinator left a worker out because of a stall."""


@dataclass(slots=True)
class EndedHangs:
    """Of the epochs that are over. Where every worker of the job hangs, none is the culprit, and nothing is told."""

    _told: dict[str, int] = field(default_factory=dict)
    """Worker → newest epoch in which it was accused."""
    _waiting: dict[str, Event] = field(default_factory=dict)
    _newest: float = 0.0

    def accused(self, worker: str, epoch: int) -> None:
        """It was claimed in time."""
        self._told[worker] = max(epoch, self._told.get(worker, -1))

    def add(self, event: Event) -> None:
        """A `stall` event that shows a hang, or the exclusion of a stalled worker; what was told before is left out."""
        worker, epoch = event.entity.name, integer_attribute(event, "epoch")
        known = self._waiting.get(worker)
        if epoch <= self._told.get(worker, -1) or (known is not None and known.name == "stall"):
            return
        self._waiting[worker] = event
        self._newest = max(self._newest, event.time)

    def due(self, now: float, workers: int) -> Iterator[Claim]:
        """Claims of worker.stalled, to be withdrawn at once. `workers`: of the job."""
        if not self._waiting or now < self._newest + SETTLED_S:
            return
        found, self._waiting = self._waiting, {}
        excluded = any(event.name == "worker.excluded" for event in found.values())
        if len(found) >= max(2, workers) and not excluded:
            return
        for worker, event in found.items():
            self.accused(worker, integer_attribute(event, "epoch"))
            yield _claim(event)


def _claim(event: Event) -> Claim:
    worker, step, age = event.entity.name, event.attributes.get("step", ""), max(0.0, float_attribute(event, "age_s"))
    where = f" in step {step}" if step else ""
    if event.name == "stall":
        text = f"worker {worker} hung{where} for {age:.1f} s when its job went on without it: it {event.attributes.get('doing', '') or 'did not move'}"
    else:
        text = f"the job left worker {worker} out{where}: {event.attributes.get('reason', '')}"
    proof = Evidence(text=text, event=event.id, metric="progress_age_s", value=age, status="task hang")
    return Claim(entity=Entity(kind=event.entity.kind, name=worker), kind="worker.stalled", score=0.95, since=event.time - age, evidence=(proof,))

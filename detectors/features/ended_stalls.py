"""Stops and hangs that are over when they are told: the job went on before the server had judged what was seen of its worker."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from eagle_eye.event_attributes import float_attribute, integer_attribute
from eagle_eye.types import Claim, Event, Evidence

SAME_STOP_S = 1.0
"""Two reports of one worker whose stops began so close together are of one stop."""
SETTLED_S = 2.0
"""Seconds behind the last of them until they are told: whether all workers hang, or one, is known then."""
UNSEEN_S = 6.0
"""The same where only its job says that a worker hung: its agent, which may be starting again, could yet say that it was stopped by a signal."""


@dataclass(slots=True)
class EndedStops:
    """By a signal. One that is over is reported by several looks, and late: it is told once."""

    _told: deque[tuple[str, float, str]] = field(default_factory=lambda: deque(maxlen=64))
    """(worker, since, where it stood: epoch and mark)."""

    def is_told(self, worker: str, since: float, event: Event | None) -> bool:
        """Whether this stop was claimed; if not, it is from now on. `event`: its report. A new agent counts from its own first look, but the
        worker stands where it stood."""
        place = _place(event)
        told = any(worker == name and (abs(since - known) <= SAME_STOP_S or (place and place == there)) for name, known, there in self._told)
        if not told:
            self._told.append((worker, since, place))
        return told

    def claim(self, event: Event) -> Claim | None:
        """Of a `stall` event in state T whose worker was ended since; None if it was told before."""
        step, age = event.attributes.get("step", ""), float_attribute(event, "age_s")
        if self.is_told(event.entity.name, event.time - age, event):
            return None
        text = f"worker {event.entity.name} was stopped by a signal (state T){f' in step {step}' if step else ''} for {age:.1f} s when it was ended"
        return _claim(event, "worker.stopped", 1.0, text, age)


@dataclass(slots=True)
class EndedHangs:
    """Of the epochs that are over. Where every worker of the job hangs, none is the culprit, and nothing is told."""

    _told: dict[str, int] = field(default_factory=dict)
    """Worker → newest epoch in which it was accused."""
    _resumed: dict[str, float] = field(default_factory=dict)
    """Worker → when it moved again after it was accused: a hang that began later is another one."""
    _waiting: dict[str, Event] = field(default_factory=dict)
    _newest: float = 0.0

    def accused(self, worker: str, epoch: int) -> None:
        """It was claimed, or it was stopped by a signal, which is told as that."""
        self._told[worker] = max(epoch, self._told.get(worker, -1))
        self._resumed.pop(worker, None)

    def resumed(self, worker: str, time: float) -> None:
        """It moves again."""
        self._resumed[worker] = time

    def add(self, event: Event) -> None:
        """A `stall` event that shows a hang, or the exclusion of a stalled worker; what was told before is left out."""
        worker = event.entity.name
        known = self._waiting.get(worker)
        if self._is_told(event) or (known is not None and known.name == "stall"):
            return
        self._waiting[worker] = event
        self._newest = max(self._newest, event.time)

    def due(self, now: float, workers: int) -> Iterator[Claim]:
        """Claims of worker.stalled, to be withdrawn at once. `workers`: of the job."""
        if not self._waiting or now < self._newest + self._settled_s():
            return
        found = {worker: event for worker, event in self._waiting.items() if not self._is_told(event)}
        self._waiting = {}
        excluded = any(event.name == "worker.excluded" for event in found.values())
        if len(found) >= max(2, workers) and not excluded:
            return
        for worker, event in found.items():
            self.accused(worker, integer_attribute(event, "epoch"))
            yield _hang(event)

    def _settled_s(self) -> float:
        seen = all(event.name == "stall" for event in self._waiting.values())
        return SETTLED_S if seen else UNSEEN_S

    def _is_told(self, event: Event) -> bool:
        worker, began = event.entity.name, event.time - float_attribute(event, "age_s")
        again = event.name == "stall" and began >= self._resumed.get(worker, float("inf"))
        return integer_attribute(event, "epoch") <= self._told.get(worker, -1) and not again


def _place(event: Event | None) -> str:
    """'' if it does not say."""
    if event is None or not event.attributes.get("marks"):
        return ""
    return f"{integer_attribute(event, 'epoch')}/{event.attributes['marks']}"


def _hang(event: Event) -> Claim:
    worker, step, age = event.entity.name, event.attributes.get("step", ""), max(0.0, float_attribute(event, "age_s"))
    where = f" in step {step}" if step else ""
    if event.name == "stall":
        text = f"worker {worker} hung{where} for {age:.1f} s when its job went on without it: it {event.attributes.get('doing', '') or 'did not move'}"
    else:
        text = f"the job left worker {worker} out{where}: {event.attributes.get('reason', '')}"
    return _claim(event, "worker.stalled", 0.95, text, age)


def _claim(event: Event, kind: str, score: float, text: str, age_s: float) -> Claim:
    proof = Evidence(text=text, event=event.id, metric="progress_age_s", value=age_s, status="task hang")
    return Claim(entity=event.entity, kind=kind, score=score, since=event.time - age_s, evidence=(proof,))

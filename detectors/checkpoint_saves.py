"""Checkpoints that storage refused: the job trains on, and would lose everything since the last one that was saved."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePath

from eagle_eye.event_attributes import integer_attribute
from eagle_eye.frames import Frame
from eagle_eye.ranges import Share
from eagle_eye.training.storage_failure import size_text
from eagle_eye.types import Claim, Entity, Event, Evidence

from .features.active_claims import ActiveClaims

KIND = "checkpoint.failed"
FOLDERS_KEPT = 16
"""Of one job; further ones are not named."""


@dataclass(frozen=True, slots=True)
class _Refusal:
    """The last failed save to a folder."""

    worker: str
    errno: str
    step: int
    since: float
    evidence: Evidence


@dataclass
class CheckpointSaves:
    """Claims checkpoint.failed of a job whose checkpoints cannot be saved, with folder, error and free bytes; accuses nobody.

    Withdrawn when a save to that folder succeeds, or one by the same worker to a folder beside it (a script may make a new folder
    for each step), and at the end of the job. A new epoch ends nothing: the storage is as it was.
    """

    score: Share = 1.0
    """Score of the claim; the worker itself reports what the system said."""
    _refused: dict[str, _Refusal] = field(default_factory=dict, init=False, repr=False)
    """By folder."""
    _claims: ActiveClaims = field(default_factory=ActiveClaims, init=False, repr=False)

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        for event in frame.events:
            if event.name == "checkpoint.failed":
                yield from self._failed(event)
            elif event.name == "checkpoint.saved":
                yield from self._saved(event)
            elif event.name in ("job.finished", "job.failed"):
                yield from self._ended(event)

    def _failed(self, event: Event) -> Iterator[Claim]:
        folder, errno = event.attributes.get("path", ""), event.attributes.get("errno", "")
        worker, step = event.attributes.get("worker", ""), integer_attribute(event, "step")
        before = self._refused.get(folder)
        if before is None and (beside := self._beside(folder, worker)):
            before = self._refused.pop(beside)  # another folder for each step: one fault
        if before is None and len(self._refused) >= FOLDERS_KEPT:
            return
        same = before is not None and before.errno == errno and folder in self._refused
        evidence = before.evidence if before is not None and same else _evidence(event)
        self._refused[folder] = _Refusal(worker, errno, step, before.since if before else event.time, evidence)
        yield from self._report(event.entity)

    def _saved(self, event: Event) -> Iterator[Claim]:
        folder, worker = str(PurePath(event.attributes.get("path", "")).parent), event.attributes.get("worker", "")
        over = folder if folder in self._refused else self._beside(folder, worker)
        if not over:
            return
        del self._refused[over]
        if self._refused:
            yield from self._report(event.entity)
        else:
            yield from self._claims.withdraw(event.entity, KIND, event.time, f"the checkpoint of step {event.attributes.get('step', '?')} is saved")

    def _ended(self, event: Event) -> Iterator[Claim]:
        unsaved = ", ".join(f"{refusal.step} in {folder}" for folder, refusal in self._refused.items())
        self._refused.clear()
        yield from self._claims.withdraw(event.entity, KIND, event.time, f"the job has ended; never saved: the checkpoint of step {unsaved}")

    def _beside(self, folder: str, worker: str) -> str:
        """A folder next to this one to which the same worker could not save; '' if there is none."""
        parent = PurePath(folder).parent
        return next((each for each, refusal in self._refused.items() if refusal.worker == worker and PurePath(each).parent == parent), "")

    def _report(self, job: Entity) -> Iterator[Claim]:
        since = min(refusal.since for refusal in self._refused.values())
        evidence = tuple(refusal.evidence for refusal in self._refused.values())
        yield from self._claims.report(Claim(entity=job, kind=KIND, score=self.score, since=since, evidence=evidence))


def _evidence(event: Event) -> Evidence:
    told = event.attributes
    free, needed = integer_attribute(event, "free_bytes"), integer_attribute(event, "needed_bytes")
    reason = ": ".join(text for text in (told.get("errno", ""), told.get("reason", "")) if text)
    room = f"{size_text(free)} are free there" if free >= 0 else "the free space is unknown"
    needs = f", it needs {size_text(needed)}" if needed >= 0 else ""
    return Evidence(
        text=f"worker {told.get('worker', '?')} could not save the checkpoint of step {told.get('step', '?')} to {told.get('path', '?')}: {reason}; {room}{needs}",
        event=event.id,
        metric="free_bytes",
        value=float(free) if free >= 0 else None,
        threshold=float(needed) if needed >= 0 else None,
        status="storage error",
    )

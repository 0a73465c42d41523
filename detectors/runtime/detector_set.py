"""The detectors of one job: each evaluates every frame; one that fails does not affect the others."""

import copy
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from eagle_eye.frames import Frame
from eagle_eye.protocols import Detector
from eagle_eye.types import Claim, Finding, Mark

from .open_findings import OpenFindings, detector_digest

FAILURES = 3
"""A detector that raises so many times in a row is muted."""
Notify = Callable[[str, str], None]
"""(name of a notice, message)"""
_log = logging.getLogger(__name__)


@dataclass
class _Slot:
    """One detector of one job."""

    name: str
    detector: Detector
    digest: str
    failures: int = 0

    @property
    def muted(self) -> bool:
        return self.failures >= FAILURES


class DetectorSet:
    """Fresh copies of all detectors for one job, and their open findings."""

    def __init__(self, job: str, prototypes: Sequence[tuple[str, Detector]], notify: Notify) -> None:
        self.findings = OpenFindings(job)
        self._job = job
        self._notify = notify
        self._detectors = [_slot(name, detector) for name, detector in prototypes]
        self._ticks = 0

    def evaluate(self, frame: Frame, mark: Mark) -> list[Finding]:
        """Run the detectors on a frame: opened, revised and withdrawn findings, in the order of the detectors."""
        if frame.tick:
            self._ticks += 1
        found = []
        for slot in self._detectors:
            due = not frame.tick or self._ticks % getattr(slot.detector, "every", 1) == 0
            if slot.muted or not due:
                continue
            for claim in self._claims(slot, frame):
                finding = self.findings.take(slot.name, slot.digest, claim, mark)
                if finding is not None:
                    found.append(finding)
        return found

    def reconfigure(self, prototypes: Sequence[tuple[str, Detector]]) -> None:
        """Replace the detectors; those whose configuration is unchanged keep their state."""
        before = {(slot.name, slot.digest): slot for slot in self._detectors}
        slots = [_slot(name, detector) for name, detector in prototypes]
        self._detectors = [before.get((slot.name, slot.digest), slot) for slot in slots]

    def _claims(self, slot: _Slot, frame: Frame) -> Iterable[Claim]:
        try:
            claims = list(slot.detector.update(frame))
            _check(claims)
        except Exception as error:  # noqa: BLE001 -- a detector is foreign code: the others must go on
            slot.failures += 1
            _log.exception("detector %s failed on frame %d of %s", slot.name, frame.number, self._job)
            self._notify("detector.failing", f"{slot.name} on {self._job}: {type(error).__name__}: {error}")
            if slot.muted:
                self._notify(
                    "detector.muted",
                    f"{slot.name} on {self._job} failed {FAILURES} times in a row and is muted until the"
                    " configuration changes or the server restarts",
                )
            return ()
        slot.failures = 0
        return claims


def _slot(name: str, detector: Detector) -> _Slot:
    return _Slot(name, copy.deepcopy(detector), detector_digest(name, detector))


def _check(claims: Iterable[Claim]) -> None:
    for claim in claims:
        if not claim.evidence:
            raise ValueError(f"claims {claim.kind} about {claim.entity} without evidence")

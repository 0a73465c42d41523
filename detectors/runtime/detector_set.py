"""The detectors of one job: each judges every frame; one that fails hurts nobody but itself."""

import copy
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from eagle_eye.frames import Frame
from eagle_eye.protocols import Detector
from eagle_eye.types import Claim, Finding, Mark

from .open_findings import OpenFindings, detector_digest

FAILURES = 3
"""A detector that raises so often in a row is muted."""
Notify = Callable[[str, str], None]
"""(name of a notice, message)"""
_log = logging.getLogger(__name__)


@dataclass
class _Seat:
    """One detector of one job."""

    name: str
    detector: Detector
    digest: str
    failures: int = 0

    @property
    def muted(self) -> bool:
        return self.failures >= FAILURES


class DetectorSet:
    """Fresh copies of all detectors for one job, and the book of what they found."""

    def __init__(self, job: str, prototypes: Sequence[tuple[str, Detector]], tell: Notify) -> None:
        self.book = OpenFindings(job)
        self._job = job
        self._tell = tell
        self._seats = [_seat(name, detector) for name, detector in prototypes]
        self._ticks = 0

    def judge(self, frame: Frame, mark: Mark) -> list[Finding]:
        """What is new after this frame: opened, revised and withdrawn findings, in the order of the detectors."""
        if frame.tick:
            self._ticks += 1
        found = []
        for seat in self._seats:
            due = not frame.tick or self._ticks % getattr(seat.detector, "every", 1) == 0
            if seat.muted or not due:
                continue
            for claim in self._claims(seat, frame):
                finding = self.book.take(seat.name, seat.digest, claim, mark)
                if finding is not None:
                    found.append(finding)
        return found

    def reseat(self, prototypes: Sequence[tuple[str, Detector]]) -> None:
        """Other detectors from now on; those whose configuration is the same keep what they know."""
        before = {(seat.name, seat.digest): seat for seat in self._seats}
        seats = [_seat(name, detector) for name, detector in prototypes]
        self._seats = [before.get((seat.name, seat.digest), seat) for seat in seats]

    def _claims(self, seat: _Seat, frame: Frame) -> Iterable[Claim]:
        try:
            claims = list(seat.detector.update(frame))
            _check(claims)
        except Exception as error:  # noqa: BLE001 -- a detector is foreign code: the others must go on
            seat.failures += 1
            _log.exception("detector %s failed on frame %d of %s", seat.name, frame.number, self._job)
            self._tell("detector.failing", f"{seat.name} on {self._job}: {type(error).__name__}: {error}")
            if seat.muted:
                self._tell(
                    "detector.muted",
                    f"{seat.name} on {self._job} failed {FAILURES} times in a row and is asked no more until the"
                    " configuration changes or the server restarts",
                )
            return ()
        seat.failures = 0
        return claims


def _seat(name: str, detector: Detector) -> _Seat:
    return _Seat(name, copy.deepcopy(detector), detector_digest(name, detector))


def _check(claims: Iterable[Claim]) -> None:
    for claim in claims:
        if not claim.evidence:
            raise ValueError(f"claims {claim.kind} about {claim.entity} without evidence")

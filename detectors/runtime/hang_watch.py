"""Notices a detector, or its learner, that never returns. Its thread cannot be ended: the partition is evaluated by another one, without that detector.

The thread of an evaluator notes which detector it is in, which costs it some 50 ns for each; who owns the partition looks from outside.
"""

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

HANG_S = 20.0
"""A detector takes milliseconds; on a machine that swaps some seconds."""
LOOK_LONGEST_S = 1.0
"""Of the time between two looks counts at most so much: more is a process that was stopped, and its detectors with it."""
JOBS = 2
"""A detector that hangs on so many jobs is muted for all: it is the detector's fault, and not that of one job's records."""


class DetectorCall(NamedTuple):
    """A detector of a job."""

    job: str
    detector: str
    learner: bool = False
    """It is the detector's learner."""

    def __str__(self) -> str:
        return f"the learner of {self.detector}" if self.learner else f"detector {self.detector}"


class HangWatch:
    """Of one evaluator. `count` and `inside` are its thread's, the rest is of who looks."""

    __slots__ = ("_held_s", "_looked", "_seen", "count", "inside")

    def __init__(self) -> None:
        self.count = 0
        """Of calls: tells a call from the next one of the same detector."""
        self.inside: DetectorCall | None = None
        """The call that its thread is in."""
        self._looked = 0.0
        self._seen = -1
        self._held_s = 0.0

    @contextlib.contextmanager
    def within(self, call: DetectorCall) -> Iterator[None]:
        """The thread is in this call while the block lasts."""
        self.count += 1
        self.inside = call
        try:
            yield
        finally:
            self.inside = None

    def hung(self, now: float) -> DetectorCall | None:
        """The call that has not returned for HANG_S, if there is one. `now`: monotonic; called again and again from one thread."""
        inside, seen = self.inside, self.count
        passed, self._looked = min(now - self._looked, LOOK_LONGEST_S), now
        self._held_s = self._held_s + passed if inside is not None and seen == self._seen else 0.0
        self._seen = seen
        return inside if self._held_s >= HANG_S else None


class MutedDetectors:
    """Those that have hung in this process: not called again before it is started again."""

    def __init__(self) -> None:
        self._hung: set[DetectorCall] = set()

    def add(self, call: DetectorCall) -> str:
        """Do not call it again; returns what is told of it."""
        self._hung.add(call)
        where = "all jobs: it has hung on several" if self._everywhere(call) else call.job
        return (
            f"{call} on {call.job} has not returned for {HANG_S:g} s: its thread is left behind, the partition is evaluated by another one, "
            f"and it is muted for {where}. Mend it and start the server again, or set enabled = false in [detectors.{call.detector}]"
        )

    def __contains__(self, call: DetectorCall) -> bool:
        return call in self._hung or self._everywhere(call)

    def _everywhere(self, call: DetectorCall) -> bool:
        return sum(each[1:] == call[1:] for each in self._hung) >= JOBS

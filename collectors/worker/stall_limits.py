"""Stall limits: when a worker is suspected to stall. Whether it does, and which worker caused it, is decided by detectors/stall.py."""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from eagle_eye.config import StallConfig

STOPPED = "T"
"""State of a process that got SIGSTOP; one that a debugger or py-spy holds for a moment is `t`."""
REMEMBERED = 16
"""Steps over which the mean iteration time is taken."""


PAUSES = frozenset({"data", "evaluation", "checkpoint"})
"""Phases that take as long as they take."""


@dataclass(frozen=True, kw_only=True)
class StallLimits:
    """How long a worker may set no mark before it is suspected, in seconds."""

    stall: StallConfig = field(default_factory=StallConfig)
    gap_s: float = 0.5
    """The time between two samples counts for at most so long: unobserved time is no stall."""

    def beside_a_stall(self, iteration_s: float | None) -> float:
        """The limit once another worker of the job is suspected: half the ordinary one, in every phase.

        Workers that wait for a stalled one have hardly shorter ages; and a worker that pauses for data or a checkpoint
        while the others wait for it must be reported with them, or another worker would be accused.
        """
        return self._ordinary(iteration_s) / 2

    def of(self, phase: str, iteration_s: float | None) -> float:
        """The limit in a phase, for a worker with this mean iteration time; None: it has not completed a step."""
        limit = self._ordinary(iteration_s)
        return max(limit, self.stall.suspect_pause_s) if phase in PAUSES or iteration_s is None else limit

    def _ordinary(self, iteration_s: float | None) -> float:
        return max(self.stall.suspect_s, self.stall.suspect_iterations * (iteration_s or 0.0))


class ProgressSample(NamedTuple):
    """State of a worker at one moment."""

    state: str
    """Letter of the process state."""
    marks: int | None = None
    """None: it has no ring."""
    mark_age_s: float = 0.0
    """Seconds since the newest mark, by the ring's own clock."""
    phase: str = ""
    completed: int = 0
    """Steps completed so far."""
    running: bool = False
    """It is in its training loop."""


@dataclass
class WorkerProgress:
    """Progress of one worker. Ages count observed time only: a stopped agent or a changed clock is no stall."""

    limits: StallLimits
    age_s: float = 0.0
    """Since its newest mark, or since the first sample."""
    stopped_s: float = 0.0
    """Since it was first seen in the state T."""
    stalled: bool = False
    """A `stall` event was sent, and it has not moved since."""
    _before: ProgressSample | None = None
    _observed: float = 0.0
    _steps: int = 0
    _iterations: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    @property
    def iteration_s(self) -> float | None:
        """Mean over its last steps; None before the first."""
        return sum(self._iterations) / len(self._iterations) if self._iterations else None

    @property
    def left_loop(self) -> bool:
        """It is between two loops or behind the last: alone no stall, but others may wait for it."""
        sample = self._before
        return sample is not None and sample.marks is not None and sample.completed > 0 and not sample.running

    def completed(self, seconds: float) -> None:
        """A step took so long, without its evaluation and its checkpoint."""
        if seconds >= 0:
            self._steps += 1
            if self._steps == 2:  # the first one compiled and filled caches: no measure of the others
                self._iterations.clear()
            self._iterations.append(seconds)

    def observe(self, now: float, sample: ProgressSample) -> bool:
        """Take a sample; `now` is monotonic time. True if a stalled worker moves again."""
        before, self._before = self._before, sample
        elapsed, self._observed = now - self._observed, now
        if before is None:
            return False
        watched = min(elapsed, self.limits.gap_s)
        moved = sample.marks != before.marks
        # the ring knows more exactly when it moved, but its clock may have been set since: believed within the gap
        self.age_s = min(max(sample.mark_age_s, 0.0), elapsed) if moved else self.age_s + watched
        # a worker that is stopped and continued many times a second is slow, not stopped: it moves in between
        still_stopped = sample.state == before.state == STOPPED and not moved
        self.stopped_s = self.stopped_s + watched if still_stopped else 0.0
        freed = sample.marks is None and before.state == STOPPED != sample.state
        resumed = self.stalled and (moved or freed)
        if resumed:
            self.stalled = False
        return resumed

    def exceeds_limit(self, *, beside_a_stall: bool = False) -> bool:
        """It made no progress for longer than its limit; `beside_a_stall`: another worker of its job is stalled."""
        sample = self._before
        if sample is None:
            return False
        if self.stopped_s > self.limits.stall.stopped_s:
            return True
        if sample.marks is None:
            return False
        if beside_a_stall:
            return self.age_s >= self.limits.beside_a_stall(self.iteration_s)
        if self.left_loop:
            return False
        return self.age_s >= self.limits.of(sample.phase, self.iteration_s)

"""When a worker counts as stalled: a fact below the step, no judgement on who is to blame."""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

STOPPED = "T"
"""State of a process that got SIGSTOP; one that a debugger or py-spy holds for a moment is `t`."""
REMEMBERED = 16
"""Steps over which the mean iteration time is taken."""


@dataclass(frozen=True, kw_only=True)
class StallLimits:
    """How long a worker's marks may stand still, in seconds."""

    stall_s: float = 1.0
    iterations: float = 3.0
    """Or this many of its mean iteration times, if that is more."""
    data_s: float = 10.0
    evaluation_s: float = 300.0
    checkpoint_s: float = 300.0
    first_step_s: float = 300.0
    """Before the first step of an epoch is completed: imports, compilation, caches."""
    stopped_s: float = 0.5
    """In the state T, whatever the phase."""
    gap_s: float = 0.5
    """Two looks further apart than this count as this far: what nobody watched is no stall."""

    def beside_a_stall(self, iteration_s: float | None) -> float:
        """The limit once another worker of the job stands: half the ordinary one, whatever the phase.

        Who waits for a worker stands hardly shorter than that one does; and one that pauses for data or a checkpoint
        while the others wait for it has to be seen beside them, or somebody else gets the blame.
        """
        return max(self.stall_s, self.iterations * (iteration_s or 0.0)) / 2

    def of(self, phase: str, iteration_s: float | None) -> float:
        """The limit in a phase, for a worker with this mean iteration time; None: it has not completed a step."""
        slow = {"data": self.data_s, "evaluation": self.evaluation_s, "checkpoint": self.checkpoint_s}
        limit = slow.get(phase, self.stall_s)
        return max(limit, self.first_step_s if iteration_s is None else self.iterations * iteration_s)


class ProgressSample(NamedTuple):
    """What one look at a worker showed."""

    state: str
    """Letter of the process state."""
    marks: int | None = None
    """None: it has no ring."""
    mark_age_s: float = 0.0
    """By the ring's own clock."""
    phase: str = ""
    completed: int = 0
    """Steps behind it."""
    running: bool = False
    """It is in its training loop."""


@dataclass
class WorkerProgress:
    """How one worker gets on. Ages are watched time: what a stopped agent or a set clock leaves out is no stall."""

    limits: StallLimits
    age_s: float = 0.0
    """Since its marks moved last, or since the first look."""
    stopped_s: float = 0.0
    """Since it was first seen in the state T."""
    stalled: bool = False
    """It was told to stand still, and has not moved since."""
    _before: ProgressSample | None = None
    _looked: float = 0.0
    _steps: int = 0
    _iterations: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    @property
    def iteration_s(self) -> float | None:
        """Mean over its last steps; None before the first."""
        return sum(self._iterations) / len(self._iterations) if self._iterations else None

    def completed(self, seconds: float) -> None:
        """A step took so long, without its evaluation and its checkpoint."""
        if seconds >= 0:
            self._steps += 1
            if self._steps == 2:  # the first one compiled and filled caches: no measure of the others
                self._iterations.clear()
            self._iterations.append(seconds)

    def look(self, now: float, sight: ProgressSample) -> bool:
        """Take in one look; `now` is monotonic. True if a stalled worker moves again."""
        before, self._before = self._before, sight
        elapsed, self._looked = now - self._looked, now
        if before is None:
            return False
        watched = min(elapsed, self.limits.gap_s)
        moved = sight.marks != before.marks
        # the ring knows more exactly when it moved, but its clock may have been set since: believed within the gap
        self.age_s = min(max(sight.mark_age_s, 0.0), elapsed) if moved else self.age_s + watched
        # a worker that is stopped and continued many times a second is slow, not stopped: it moves in between
        still_stopped = sight.state == before.state == STOPPED and not moved
        self.stopped_s = self.stopped_s + watched if still_stopped else 0.0
        freed = sight.marks is None and sight.state != STOPPED
        resumed = self.stalled and (moved or freed)
        if resumed:
            self.stalled = False
        return resumed

    def stands(self, *, beside_a_stall: bool = False) -> bool:
        """It has stood still for longer than its limit; a stricter one once another worker of its job stands."""
        sight = self._before
        if sight is None:
            return False
        if self.stopped_s > self.limits.stopped_s:
            return True
        if sight.marks is None or (sight.completed and not sight.running):
            return False
        if beside_a_stall:
            return self.age_s >= self.limits.beside_a_stall(self.iteration_s)
        return self.age_s >= self.limits.of(sight.phase, self.iteration_s)

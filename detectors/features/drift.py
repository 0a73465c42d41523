"""Whether a job's healthy minutes are still those that a baseline was fitted to: how many of their scores are above its limit."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from eagle_eye.errors import UNREADABLE
from eagle_eye.frames import Frame

FEWEST, NEWEST = 500, 4000
"""Samples from which a share is believed; after so many the older ones count half."""
DRIFTED = 0.01
"""Share above the limit: ten thousand times as many as are stated (healthy_limit.py). Few states of a job make hundreds of samples, so that fewer prove nothing."""
JOBS_KEPT = 1000


@dataclass
class _JobCount:
    digest: str
    model: Any
    """None: it cannot be read, which the detector tells."""
    above: float = 0.0
    seen: float = 0.0


@dataclass
class DriftCount:
    """Of each job, since the baseline in force was fitted."""

    name: str
    """Of the baseline."""
    decode: Callable[[bytes], Any]
    _jobs: dict[str, _JobCount] = field(default_factory=dict, init=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """The process that fits needs none of it."""
        return type(self), (self.name, self.decode)

    def model(self, frame: Frame) -> Any:
        """The model in force, to count with; None without one."""
        baseline = frame.baselines.get(self.name)
        job = self._jobs.pop(frame.job, None)
        if baseline is None:
            return None
        if job is None or job.digest != baseline.digest:
            job = _JobCount(baseline.digest, self._decoded(baseline.data))
        self._jobs[frame.job] = job
        while len(self._jobs) > JOBS_KEPT:
            del self._jobs[next(iter(self._jobs))]
        return job.model

    def add(self, job: str, above: int, seen: int) -> None:
        """Of the samples of a healthy tick."""
        known = self._jobs[job]
        known.above, known.seen = known.above + above, known.seen + seen
        if known.seen > NEWEST:
            known.above, known.seen = 0.5 * known.above, 0.5 * known.seen

    def drifted(self, job: str) -> bool:
        """Far more healthy samples are above the limit than should be."""
        known = self._jobs.get(job)
        return known is not None and known.seen >= FEWEST and known.above > DRIFTED * known.seen

    def _decoded(self, data: bytes) -> Any:
        try:
            return self.decode(data)
        except (*UNREADABLE, ValueError, OverflowError):
            return None

"""Many incidents of one job at once: after the first few the rest share one notification."""

from collections import deque
from dataclasses import dataclass, field

from eagle_eye.types import digest_of


@dataclass(slots=True, kw_only=True)
class AlertStorms:
    """The first `separate` alerts of a job within `within_s` have notifications of their own; more of them are one storm, until none came for so long."""

    separate: int
    within_s: float
    _recent: dict[str, deque[float]] = field(default_factory=dict)
    """Job → when its last alerts of their own were opened."""
    _raging: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Job → (its storm, when the last incident joined it)."""

    def opened(self, job: str, when: float) -> None:
        """An alert of its own was opened."""
        self._recent.setdefault(job, deque(maxlen=max(1, self.separate))).append(when)

    def joined(self, job: str, storm: str, when: float) -> None:
        """An incident joined a storm."""
        self._raging[job] = (storm, when)

    def ended(self, job: str) -> None:
        """All of its incidents are over: the next one begins another."""
        self._raging.pop(job, None)

    def storm_for(self, job: str, incident: str, now: float) -> str:
        """The storm that a new incident belongs to; '' if it has an alert of its own."""
        self._forget(now)
        if self.separate < 1:
            return ""  # never together
        if job in self._raging:
            return self._raging[job][0]
        full = len(self._recent.get(job, ())) >= self.separate
        return f"storm-{digest_of(job, incident)}" if full else ""

    def _forget(self, now: float) -> None:
        self._raging = {job: each for job, each in self._raging.items() if now - each[1] <= self.within_s}
        for job, times in list(self._recent.items()):
            while times and now - times[0] > self.within_s:
                times.popleft()
            if not times:
                del self._recent[job]

"""Precomputed plans: made ahead of time for one next event."""

from collections.abc import Mapping
from typing import Literal

from .entity import Noun
from .remediation import Mode


class PrecomputedPlan(Noun, frozen=True, kw_only=True):
    """The plan for one possible next event, computed and checked by the guards before it happens."""

    id: str
    event: Literal["worker lost", "node lost", "worker returned"]
    of: str = ""
    """Job that loses a worker; '' when a node is lost or a worker returned."""
    node: str
    """Node of the event."""
    mode: Mode
    """Mode in which it was made; it is valid in that mode alone."""
    epochs: dict[str, int]
    """Job → epoch for which it was made; invalid once one of them has a newer epoch."""
    made: float
    expires: float
    workers: dict[str, int]
    """Job → workers after the event."""
    seats: dict[str, dict[str, int]] = {}
    """Job → node → workers, for jobs that are resized, jobs that shrink first; {}: none is."""
    waf_before: float = 0.0
    """Weighted work per second before the event (worker-seconds a second)."""
    waf: float = 0.0
    """The same after the event, with the plan carried out."""
    allowed: bool = False
    """Mode and guards allowed it when it was made."""
    why: str = ""
    """Their reasons, and what the plan is based on."""

    def fits(self, epochs: Mapping[str, int], mode: Mode, now: float) -> bool:
        """Whether it is still valid: same mode, not expired, no newer epoch."""
        return self.mode is mode and now < self.expires and all(epochs.get(job) == epoch for job, epoch in self.epochs.items())

"""Plans that wait for the event they are made for."""

from collections.abc import Mapping
from typing import Literal

from .entity import Noun
from .healing import Mode


class PrecomputedPlan(Noun, frozen=True, kw_only=True):
    """The answer to one next event, worked out and judged before it comes."""

    id: str
    event: Literal["worker lost", "node lost", "worker returned"]
    of: str = ""
    """Job that loses a worker; '' for a node or a returned worker."""
    node: str
    """Where."""
    mode: Mode
    """In which it was made: it counts in no other."""
    epochs: dict[str, int]
    """Job → epoch in which it was made: it is void once one has gone on."""
    made: float
    expires: float
    workers: dict[str, int]
    """Job → workers after it."""
    seats: dict[str, dict[str, int]] = {}
    """Job → node → workers, of the jobs that change their size by choice, givers before takers; {}: nobody has to."""
    waf_before: float = 0.0
    """Weighted work per second before the event (worker-seconds a second)."""
    waf: float = 0.0
    """The same after it, once the answer runs."""
    allowed: bool = False
    """Mode and guards let it pass when it was made."""
    why: str = ""
    """What they said, and what it rests on."""

    def fits(self, epochs: Mapping[str, int], mode: Mode, now: float) -> bool:
        """Whether it still holds."""
        return self.mode is mode and now < self.expires and all(epochs.get(job) == epoch for job, epoch in self.epochs.items())

"""Time accounting: in which category each second of each GPU is counted. The categories sum to GPUs × duration."""

import math
from collections.abc import Mapping
from enum import IntEnum

from eagle_eye.errors import EagleEyeError

TOLERANCE = 1e-9
"""Share of the whole that rounding may leave unaccounted."""


class TimeCategory(IntEnum):
    """What a GPU's second was spent on."""

    EFFECTIVE = 0
    """Training work that counts."""
    CHECKPOINT = 1
    """Training is paused while state is copied."""
    DETECTION = 2
    """A fault has happened and is not detected yet."""
    TRANSITION = 3
    """Restarting, regrouping, moving and loading state."""
    RECOMPUTATION = 4
    """Work that was done before the fault and lost."""
    IDLE = 5
    """Healthy and unused: waiting for other nodes, spare, or left over beside whole replicas."""
    REDUNDANT = 6
    """Work that other GPUs do too, in case they are lost."""
    SUB_HEALTHY = 7
    """Under repair, or held back by a slow node."""

    @property
    def label(self) -> str:
        """As tables and JSON show it."""
        return self.name.lower().replace("_", "-")


class TimeAccounting:
    """GPU-seconds by category."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = [0.0] * len(TimeCategory)

    def add_time(self, category: TimeCategory, gpu_seconds: float) -> None:
        """Count GPU-seconds in a category."""
        self.seconds[category] += gpu_seconds

    def add(self, other: "TimeAccounting") -> None:
        """Add another accounting, category by category."""
        self.seconds = [mine + theirs for mine, theirs in zip(self.seconds, other.seconds, strict=True)]

    @property
    def total(self) -> float:
        """GPU-seconds of all categories."""
        return math.fsum(self.seconds)

    def shares(self) -> Mapping[str, float]:
        """Share of the whole by the category's label; the shares sum to 1."""
        whole = self.total
        return {category.label: self.seconds[category] / whole if whole else 0.0 for category in TimeCategory}

    def check_total(self, gpu_seconds: float) -> None:
        """Raises EagleEyeError unless the categories sum to exactly so many GPU-seconds and none is negative: a bug of the simulator."""
        if abs(self.total - gpu_seconds) > TOLERANCE * max(gpu_seconds, 1.0) or min(self.seconds) < -TOLERANCE * max(gpu_seconds, 1.0):
            raise EagleEyeError(f"the time accounting holds {self.total!r} of {gpu_seconds!r} GPU-seconds ({self.seconds}); this is a bug of the simulator, report it")

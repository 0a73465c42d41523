"""Where each second of each GPU went. The books sum to all of them: GPUs × duration."""

import math
from collections.abc import Mapping
from enum import IntEnum

from eagle_eye.errors import EagleEyeError

CLOSE = 1e-9
"""Of the whole, what rounding may leave."""


class Account(IntEnum):
    """What a GPU's second was spent on."""

    EFFECTIVE = 0
    """Work that counts."""
    CHECKPOINT = 1
    """Training stands still while state is copied."""
    DETECTION = 2
    """Something is wrong and nobody knows yet."""
    TRANSITION = 3
    """Restarting, regrouping, moving and loading state."""
    RECOMPUTATION = 4
    """Work that was done before and lost."""
    IDLE = 5
    """Healthy and unused: waiting for other nodes, spare, or left over beside whole replicas."""
    REDUNDANT = 6
    """Work that others do too, in case they are lost."""
    SUB_HEALTHY = 7
    """Out for repair, or held back by a slow node."""

    @property
    def word(self) -> str:
        """As it is printed."""
        return self.name.lower().replace("_", "-")


class Books:
    """GPU-seconds by account."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = [0.0] * len(Account)

    def book(self, account: Account, gpu_seconds: float) -> None:
        """Add to one account."""
        self.seconds[account] += gpu_seconds

    def add(self, other: "Books") -> None:
        """Add another one's."""
        self.seconds = [mine + theirs for mine, theirs in zip(self.seconds, other.seconds, strict=True)]

    @property
    def total(self) -> float:
        """GPU-seconds of all accounts."""
        return math.fsum(self.seconds)

    def shares(self) -> Mapping[str, float]:
        """Share of the whole by account's word; they sum to 1."""
        whole = self.total
        return {account.word: self.seconds[account] / whole if whole else 0.0 for account in Account}

    def close(self, gpu_seconds: float) -> None:
        """Raises EagleEyeError unless exactly so many were booked, none of them negative: the simulator would be wrong."""
        if abs(self.total - gpu_seconds) > CLOSE * max(gpu_seconds, 1.0) or min(self.seconds) < -CLOSE * max(gpu_seconds, 1.0):
            raise EagleEyeError(f"the books hold {self.total!r} GPU-seconds of {gpu_seconds!r} ({self.seconds}); this is a mistake of the simulator, report it")

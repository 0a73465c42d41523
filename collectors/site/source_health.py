"""Whether a source that is asked again and again answers: when it is asked next, and which failure is told. No I/O."""

import math
from dataclasses import dataclass

AGAIN_S = 15.0
"""After a second failure in a row; doubled from then on. After the first it is asked again as usual."""
AGAIN_MOST_S = 300.0
TOLD_AFTER = 2
"""Failures in a row: a service that is started anew refuses once."""


@dataclass
class SourceHealth:
    """Of one source."""

    failing: str = ""
    """Why it gives nothing; '' if it does."""
    told: bool = False
    _failures: int = 0
    _again_at: float = -math.inf

    def is_due(self, monotonic: float) -> bool:
        """Whether its back-off is over."""
        return monotonic >= self._again_at

    def failed(self, reason: str, monotonic: float) -> bool:
        """Returns True if that is to be told: once, when it has failed twice in a row."""
        self._failures += 1
        self.failing = reason
        if self._failures > 1:
            self._again_at = monotonic + min(AGAIN_S * 2.0 ** min(self._failures - 2, 16), AGAIN_MOST_S)
        tell = self._failures >= TOLD_AFTER and not self.told
        self.told = self.told or tell
        return tell

    def worked(self) -> bool:
        """Returns True if its failure was told, so that its end is to be told too."""
        was_told, self.told = self.told, False
        self.failing, self._failures, self._again_at = "", 0, -math.inf
        return was_told

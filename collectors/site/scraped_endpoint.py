"""One endpoint over time: when it is asked next, whether it works, and what of its page cannot be used. No I/O."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from .exporter_client import ExporterAddress
from .exporter_page import NO_NUMBER
from .scraped_cells import Cell, ScrapedCells

AGAIN_S = 15.0
"""After a second failure in a row; doubled from then on. After the first it is asked again as usual."""
AGAIN_MOST_S = 300.0
TOLD_AFTER = 2
"""Failures in a row: an exporter that is started anew refuses once."""
REASONS_MOST = 20
"""That are remembered of one endpoint, so that each is told once."""
ORDINARY = frozenset({NO_NUMBER})
"""NaN is how exporters write that there is nothing to tell."""


@dataclass
class ScrapedEndpoint:
    """Its state."""

    endpoint: ExporterAddress
    cells: ScrapedCells
    asked: float = -math.inf
    """Monotonic time."""
    numbers: dict[Cell, float] = field(default_factory=dict)
    """Of the present run."""
    failing: str = ""
    """Why it gives no page; '' if it does."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Why series were left out → how many, since the agent's start."""
    told: bool = False
    _failures: int = 0
    _again_at: float = -math.inf
    _reasons: set[str] = field(default_factory=set)

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

    def count(self, left_out: Counter[str]) -> list[str]:
        """Take in what could not be used; returns the reasons that are new here."""
        self.left_out.update(left_out)
        return list(self._new(reason for reason in left_out if reason not in ORDINARY))

    def _new(self, reasons: Iterable[str]) -> Iterable[str]:
        for reason in reasons:
            if reason not in self._reasons and len(self._reasons) < REASONS_MOST:
                self._reasons.add(reason)
                yield reason

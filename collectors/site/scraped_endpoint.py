"""One endpoint over time: whether it works, and what of its page cannot be used. No I/O."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from .exporter_client import ExporterAddress
from .exporter_page import NO_NUMBER
from .scraped_metrics import Cell, ScrapedMetrics
from .source_health import SourceHealth

REASONS_MOST = 20
"""That are remembered of one endpoint, so that each is told once."""
ORDINARY = frozenset({NO_NUMBER})
"""NaN is how exporters write that there is nothing to tell."""


@dataclass
class ScrapedEndpoint:
    """Its state."""

    endpoint: ExporterAddress
    cells: ScrapedMetrics
    asked: float = -math.inf
    """Monotonic time."""
    numbers: dict[Cell, float] = field(default_factory=dict)
    """Of the present run."""
    health: SourceHealth = field(default_factory=SourceHealth)
    left_out: Counter[str] = field(default_factory=Counter)
    """Why series were left out → how many, since the agent's start."""
    _reasons: set[str] = field(default_factory=set)

    def count(self, left_out: Counter[str]) -> list[str]:
        """Take in what could not be used; returns the reasons that are new here."""
        self.left_out.update(left_out)
        return list(self._new(reason for reason in left_out if reason not in ORDINARY))

    def _new(self, reasons: Iterable[str]) -> Iterable[str]:
        for reason in reasons:
            if reason not in self._reasons and len(self._reasons) < REASONS_MOST:
                self._reasons.add(reason)
                yield reason

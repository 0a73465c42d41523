"""What the agent itself costs its node, and how far its records are behind: metrics of the node beside those of `host`.

Programs that it starts count once they have ended; what the driver takes, and the probe of storage as long as that runs, is not in them.
"""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from eagle_eye.clock import Clock, SystemClock
from eagle_eye.types import Kind, Reading

from .agent.agent_budget import processor_s
from .worker.procfs import resident_bytes

NAMES = ("agent_cpu_percent", "agent_memory_bytes", "spool_records", "spool_age_s", "spool_dropped_per_s")
"""Of one processor, all threads and ended children together; resident; records that wait for the stream, in memory and on disk; for how long the oldest of them does; records that were refused, since there was no room."""


@dataclass
class AgentMetricsCollector:
    """Processor time, memory and spool of the process that it runs in."""

    node: str = ""
    """Name of this node; set by the agent."""
    spool_status: Any = None
    """Returns the `SpoolStatus` of the agent's writer; set by the agent. None: not known."""
    clock: Clock = field(default_factory=SystemClock)

    interval_s: ClassVar[float] = 1.0
    timeout_s: ClassVar[float] = 3.0
    later: ClassVar[frozenset[str]] = frozenset(name for name in NAMES if name.startswith("spool_"))
    """Metrics that have no value before the agent runs."""

    def __post_init__(self) -> None:
        self._looked_s = self._used_s = self._dropped = math.nan

    def collect(self) -> list[Reading]:
        now_s, used_s = self.clock.monotonic(), processor_s()
        passed_s, spent_s = now_s - self._looked_s, used_s - self._used_s
        self._looked_s, self._used_s = now_s, used_s
        percent = 100.0 * spent_s / passed_s if passed_s > 0.0 else math.nan
        row = np.array([[percent, resident_bytes() or math.nan, *self._spool(passed_s)]], np.float32)
        return [Reading(source="agent", kind=Kind.NODE, entities=(self.node,), names=NAMES, matrix=row, time=self.clock.now())]

    def _spool(self, passed_s: float) -> tuple[float, float, float]:
        if self.spool_status is None:
            return math.nan, math.nan, math.nan
        status = self.spool_status()
        dropped, self._dropped = status.dropped - self._dropped, float(status.dropped)
        return status.waiting + status.spooled, status.oldest_age_s, dropped / passed_s if passed_s > 0.0 else math.nan

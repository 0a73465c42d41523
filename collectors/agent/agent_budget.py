"""What the agent may cost: processor time and memory, kept by running the costliest collectors less often.

What finds hangs and deaths is never slowed: whoever cannot keep the budget without that says so. `AgentBudget` is pure: figures are arguments.
"""

import resource
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

CHECK_S = 10.0
"""Seconds over which the processor time is measured."""
SLOWEST = 16
"""A collector runs at most so many times less often than it is set to."""
ROOM = 0.5
"""Below this share of the budget what was slowed is made faster again: twice as often still fits."""


class PaceChange(NamedTuple):
    """A collector is to run more or less often, or the budget cannot be kept."""

    collector: str
    """Empty: there is none left to slow."""
    pace: int
    """It runs so many times less often than it is set to; 1: as it is set to."""
    reason: str


@dataclass(frozen=True, slots=True)
class AgentUse:
    """What the agent has used."""

    monotonic_s: float
    processor_s: float
    """Of all its threads, and of the programs that it has started (journalctl, scontrol, py-spy), since its start."""
    memory_bytes: int
    of_collectors: Mapping[str, float]
    """Collector → processor seconds since the start; those alone that may be slowed."""


def processor_s() -> float:
    """Processor time of this process since its start, with that of its children."""
    return time.process_time() + children_s()


def children_s() -> float:
    """Processor time of the programs that this process has started: each counts once it has ended and was waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class AgentBudget:
    """Compares use with budget every CHECK_S seconds."""

    def __init__(self, cpu_percent: float, memory_mb: float) -> None:
        """`cpu_percent`: of one processor."""
        self._cpu_percent, self._memory_mb = cpu_percent, memory_mb
        self._before: AgentUse | None = None
        self._paces: dict[str, int] = {}
        self._told: set[str] = set()

    def check(self, use: AgentUse) -> list[PaceChange]:
        """What is to change, at most one collector at a time: the next look shows whether that was enough."""
        before = self._before
        if before is None or use.monotonic_s - before.monotonic_s >= CHECK_S:
            self._before = use
        if before is None or self._before is before:
            return []
        percent = 100.0 * (use.processor_s - before.processor_s) / (use.monotonic_s - before.monotonic_s)
        changes = self._memory(use)
        if percent > self._cpu_percent:
            return [*changes, *self._slow(percent, before, use)]
        self._told.discard("cpu")
        return [*changes, *(self._restore(percent) if percent < ROOM * self._cpu_percent else [])]

    def _slow(self, percent: float, before: AgentUse, use: AgentUse) -> list[PaceChange]:
        costs = {name: seconds - before.of_collectors.get(name, 0.0) for name, seconds in use.of_collectors.items()}
        costly = [name for name, cost in costs.items() if cost > 0 and self._paces.get(name, 1) < SLOWEST]
        over = f"the agent uses {percent:.1f} % of a processor, agent.cpu_percent allows {self._cpu_percent:g}"
        if not costly:
            return self._tell_once("cpu", PaceChange("", 1, f"{over}, and no collector is left to slow: raise it, or leave a collector out"))
        name = max(costly, key=lambda each: costs[each])
        pace = self._paces[name] = 2 * self._paces.get(name, 1)
        return [PaceChange(name, pace, f"{over}: {name} is the costliest and runs {pace} times less often")]

    def _restore(self, percent: float) -> list[PaceChange]:
        if not self._paces:
            return []
        name = max(self._paces, key=lambda each: self._paces[each])
        pace = self._paces.pop(name) // 2
        if pace > 1:
            self._paces[name] = pace
        return [PaceChange(name, pace, f"the agent uses {percent:.1f} % of a processor again: {name} runs " + ("as it is set to" if pace == 1 else f"{pace} times less often"))]

    def _memory(self, use: AgentUse) -> list[PaceChange]:
        megabytes = use.memory_bytes / 2**20
        if megabytes <= self._memory_mb:
            self._told.discard("memory")
            return []
        return self._tell_once("memory", PaceChange("", 1, f"the agent uses {megabytes:.0f} MB, agent.memory_mb allows {self._memory_mb:g}: raise it, or leave a collector out"))

    def _tell_once(self, what: str, change: PaceChange) -> list[PaceChange]:
        if what in self._told:
            return []
        self._told.add(what)
        return [change]

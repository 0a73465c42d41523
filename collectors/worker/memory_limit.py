"""The memory limit of a worker's cgroup and of those around it, how near it is, and what the kernel did about it (memory.events, memory.oom_control)."""

import math
from pathlib import Path
from typing import NamedTuple

from eagle_eye.cgroups import PROC, MemoryCgroup, membership_of, memory_cgroups_of

LOOK_S = 5.0
"""Between two looks: the kernel adds up memory.stat over all processors when it is asked."""


class MemoryUse(NamedTuple):
    """NaN: not known, or without a limit."""

    limit_bytes: float = math.nan
    used_percent: float = math.nan
    """Of the limit, without cached files that nobody reads any more; of the cgroup that is nearest to its limit."""
    oom_kills_per_s: float = math.nan
    """Processes of the worker's cgroup that the kernel ended for want of memory."""
    memory_high_events_per_s: float = math.nan
    """How often processes of it were slowed down for using more than memory.high."""


UNKNOWN = MemoryUse()


class MemoryLimit:
    """One process. It may be moved, and a limit may be set, changed and lifted while it runs."""

    def __init__(self, pid: int, proc: Path = PROC) -> None:
        self.pid, self._proc = pid, proc
        self._membership = ""
        self._cgroups: tuple[MemoryCgroup, ...] = ()
        self._counted: dict[MemoryCgroup, tuple[int | None, int | None]] = {}
        """Of the one cgroup that was counted at the look before: kills, and slow-downs."""
        self._looked = -math.inf
        self._known = UNKNOWN

    def look(self, monotonic: float) -> MemoryUse:
        """Now, or as it was LOOK_S ago at most; rates are since the look before."""
        elapsed = monotonic - self._looked
        if elapsed >= LOOK_S:
            self._looked = monotonic
            self._known = self._look(elapsed)
        return self._known

    def _look(self, elapsed: float) -> MemoryUse:
        membership = membership_of(self.pid, self._proc)
        if membership and membership != self._membership:
            self._membership, self._cgroups = membership, memory_cgroups_of(self.pid, self._proc)
        if not self._cgroups:
            return UNKNOWN
        limit, used = max(map(_use, self._cgroups), key=lambda use: -1.0 if math.isnan(use[1]) else use[1])
        own = next((cgroup for cgroup in self._cgroups if cgroup.kills() is not None), self._cgroups[0])
        before, now = self._counted.get(own, (None, None)), (own.kills(), own.high_events())
        self._counted = {own: now}
        kills, highs = (_rate(*counts, elapsed) for counts in zip(before, now, strict=True))
        return MemoryUse(limit, used, kills, highs)


def _use(cgroup: MemoryCgroup) -> tuple[float, float]:
    """(limit in bytes, share of it that is used in percent), NaN without a limit."""
    limit = cgroup.limit_bytes()
    used = cgroup.used_bytes() if limit else None
    return (float(limit), 100.0 * used / limit) if limit and used is not None else (math.nan, math.nan)


def _rate(before: int | None, now: int | None, elapsed: float) -> float:
    return (now - before) / elapsed if before is not None and now is not None and now >= before else math.nan

"""The CPU quota of a worker's cgroup and of those around it, and how often it was used up (cpu.max, cpu.cfs_quota_us, cpu.stat)."""

import math
from pathlib import Path
from typing import NamedTuple

from eagle_eye.cgroups import PROC, Cgroup, cgroups_of, membership_of

NOTHING = math.nan


class QuotaUse(NamedTuple):
    """Of the cgroup that held the worker back most; NaN = not known, or without a quota."""

    throttled_percent: float
    """Share of the quota's periods in which it was used up since the look before; 0 without a quota."""
    processors: float
    """That the quota allows."""


class CpuQuota:
    """One process. It may be moved, and a quota may be set, changed and lifted while it runs."""

    def __init__(self, pid: int, proc: Path = PROC) -> None:
        self.pid, self._proc = pid, proc
        self._membership = ""
        self._cgroups: tuple[Cgroup, ...] = ()
        self._counted: dict[Cgroup, tuple[int, int]] = {}
        """Cgroup → periods, and throttled ones, at the look before."""

    def look(self) -> QuotaUse:
        """Since the look before."""
        membership = membership_of(self.pid, self._proc)
        if membership and membership != self._membership:
            self._membership, self._cgroups = membership, cgroups_of(self.pid, "cpu", self._proc)
        if not self._cgroups:
            return QuotaUse(NOTHING, NOTHING)
        uses = [QuotaUse(self._throttled(cgroup), quota) for cgroup in self._cgroups if (quota := quota_of(cgroup)) is not None]
        return max(uses, key=lambda use: (use.throttled_percent, -use.processors), default=QuotaUse(0.0, NOTHING))

    def _throttled(self, cgroup: Cgroup) -> float:
        now = cgroup.keyed("cpu.stat", "nr_periods") or 0, cgroup.keyed("cpu.stat", "nr_throttled") or 0
        before = self._counted.get(cgroup, now)
        self._counted[cgroup] = now
        periods, throttled = now[0] - before[0], now[1] - before[1]
        return 100.0 * min(max(throttled, 0) / periods, 1.0) if periods > 0 else 0.0


def quota_of(cgroup: Cgroup) -> float | None:
    """Processors that a cgroup may use; None without a limit."""
    if cgroup.version == 1:
        quota, period = cgroup.number("cpu.cfs_quota_us"), cgroup.number("cpu.cfs_period_us")
        return quota / period if quota is not None and quota > 0 and period else None
    try:
        quota_text, period_text = (cgroup.folder / "cpu.max").read_text().split()
        return int(quota_text) / int(period_text)
    except (OSError, ValueError, ZeroDivisionError):  # not there, or the word `max`
        return None

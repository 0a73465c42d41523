"""The processor time of a worker: when it begins to use far less, and the CPU quota of its cgroup and of those around it, and how often that was used up."""

import math
from collections import deque
from pathlib import Path
from typing import NamedTuple

from eagle_eye.cgroups import PROC, Cgroup, cgroups_of, membership_of

NOTHING = math.nan
WINDOW_S = 1.0
"""Over which the use of a process is measured."""
USUAL_S = 5.0
"""What it is used to is an average that forgets in so many seconds."""
FAR_LESS = 0.25
"""Of what it is used to. Service threads of torch and of the probe use a little also in a process that hangs."""


class ProcessorUse:
    """How much of a processor one process uses: a worker without a ring is looked into when it begins to use far less.

    Falling is told once: from its usual use to far less, and from there to none at all.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque()
        self._usual = 0.0
        self._level = 0

    def falls(self, cpu_s: float, monotonic: float) -> bool:
        """Take a sample of its processor time; True if it has just begun to use far less."""
        while len(self._samples) > 1 and monotonic - self._samples[1][0] >= WINDOW_S:
            self._samples.popleft()
        before = self._samples[-1] if self._samples else (monotonic, cpu_s)
        self._samples.append((monotonic, cpu_s))
        began, cpu_then = self._samples[0]
        if monotonic - began < WINDOW_S:
            self._learn(cpu_s - before[1], monotonic - before[0])
            return False
        share = (cpu_s - cpu_then) / (monotonic - began)
        level, before_level = _level(share, self._usual), self._level
        self._level = level
        self._learn(cpu_s - before[1], monotonic - before[0])
        return level > before_level

    def _learn(self, cpu_s: float, seconds: float) -> None:
        if seconds > 0.0:
            kept = math.exp(-seconds / USUAL_S)
            self._usual = kept * self._usual + (1.0 - kept) * cpu_s / seconds


def _level(share: float, usual: float) -> int:
    if share <= 0.0:
        return 2
    return 1 if share < FAR_LESS * usual else 0


# --- CPU quota: cpu.max, cpu.cfs_quota_us, cpu.stat


class QuotaUse(NamedTuple):
    """Of the cgroup that held the worker back most; NaN = not known, or without a quota."""

    throttled_percent: float
    """Share of the quota's periods in which it was used up since the look before; 0 without a quota."""
    processors: float
    """That the quota allows."""


class CpuQuota:
    """Of one process. It may be moved, and a quota may be set, changed and lifted while it runs."""

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
        periods_now, throttled_now = cgroup.keyed("cpu.stat", "nr_periods"), cgroup.keyed("cpu.stat", "nr_throttled")
        if periods_now is None or throttled_now is None:
            self._counted.pop(cgroup, None)
            return 0.0
        before = self._counted.get(cgroup, (periods_now, throttled_now))
        self._counted[cgroup] = periods_now, throttled_now
        periods, throttled = periods_now - before[0], throttled_now - before[1]
        return 100.0 * min(max(throttled, 0) / periods, 1.0) if periods > 0 else 0.0


def quota_of(cgroup: Cgroup) -> float | None:
    """Processors that a cgroup may use; None without a limit."""
    if cgroup.version == 1:
        quota, period = cgroup.number("cpu.cfs_quota_us"), cgroup.number("cpu.cfs_period_us")
        return quota / period if quota is not None and quota > 0 and period else None
    try:
        quota_text, period_text = cgroup.content("cpu.max").split()
        return int(quota_text) / int(period_text)
    except (OSError, ValueError, ZeroDivisionError):  # not there, or the word `max`
        return None

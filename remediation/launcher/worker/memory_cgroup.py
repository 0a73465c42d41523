"""Which memory cgroup a process is in, and how often the kernel's out-of-memory killer struck there.

cgroup v2 counts in memory.events: `oom_kill` of the cgroup of the process that was killed, `oom` of the cgroup whose limit
was reached, both with those below them. v1 counts `oom_kill` in memory.oom_control of the process's own cgroup alone, and
memory.failcnt where a limit was reached.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from eagle_eye.cgroups import PROC, MemoryCgroup, memory_cgroups_of
from eagle_eye.training.storage_failure import size_text

POLL_S = 0.5
"""Between two looks at the counters."""
TOGETHER_S = 2.0
"""A process that dies so long after the counter rose died of that; an older rise was somebody else's."""


@dataclass(frozen=True, slots=True)
class OomKill:
    """One process of a worker, or the worker itself, was killed for want of memory."""

    cgroup: str
    """Whose limit was reached; '' if none was: then the machine itself had no memory left."""
    limit_bytes: int | None
    peak_bytes: int | None
    child: bool = False
    """It was not the worker itself, which has ended of that."""

    @property
    def words(self) -> str:
        """For the operator."""
        whom = "a process beside it" if self.child else "it"
        if not self.cgroup:
            return f"the kernel's out-of-memory killer ended {whom}: the machine had no memory left"
        peak = f", {size_text(self.peak_bytes)} were used at most" if self.peak_bytes is not None else ""
        return f"the kernel's out-of-memory killer ended {whom}: cgroup {self.cgroup} reached its limit of {size_text(self.limit_bytes or 0)}{peak}"


@dataclass(slots=True)
class _Counter:
    """What one cgroup had counted at the last look."""

    kills: int
    limit_hits: int
    hit: float = float("-inf")
    """When its limit was reached last."""
    rises: deque[float] = field(default_factory=lambda: deque(maxlen=256))
    """When kills were counted that no death is explained by yet."""


class OomWatch:
    """The counters of the cgroups in which watched processes are: a kill there explains one death, and only one at the same time."""

    def __init__(self, proc: Path = PROC, clock: Callable[[], float] = time.monotonic) -> None:
        self._proc, self._clock = proc, clock
        self._cgroups: dict[int, tuple[float, tuple[MemoryCgroup, ...]]] = {}
        """Process → since when it is watched, and its cgroups."""
        self._counters: dict[MemoryCgroup, _Counter] = {}

    def watch(self, pid: int) -> None:
        """From its start on: what was counted before is not its."""
        self.look()
        cgroups = memory_cgroups_of(pid, self._proc)
        self._cgroups[pid] = self._clock(), cgroups
        for cgroup in cgroups:
            if cgroup not in self._counters:
                self._counters[cgroup] = _Counter(cgroup.kills() or 0, cgroup.limit_hits())

    def forget(self) -> None:
        """All processes; the counters go on as long as the launcher lives."""
        self._cgroups.clear()

    def look(self) -> None:
        """Note what was counted since the last look."""
        now = self._clock()
        for cgroup, counter in self._counters.items():
            kills, hits = cgroup.kills() or 0, cgroup.limit_hits()
            counter.rises.extend([now] * min(kills - counter.kills, counter.rises.maxlen or 0) if kills > counter.kills else [])
            if hits > counter.limit_hits:
                counter.hit = now
            counter.kills, counter.limit_hits = kills, hits

    def explain(self, pid: int, *, child: bool = False, ended: bool = True) -> OomKill | None:
        """Whether a worker that has just died, or raised (`ended` is False), did so of a kill; asked once of its end.

        `child`: it was not killed itself, so a process beside it was.
        """
        self.look()
        watched, around = self._cgroups.pop(pid, (0.0, ())) if ended else self._cgroups.get(pid, (0.0, ()))
        own = next((cgroup for cgroup in around if cgroup.kills() is not None), None)
        if own is None:
            return None
        recent, rises = self._clock() - TOGETHER_S, self._counters[own].rises
        mine = next((rise for rise in rises if rise > watched and rise >= recent), None)
        if mine is None:
            return None
        rises.remove(mine)
        full = next((cgroup for cgroup in around if self._counters[cgroup].hit >= recent and cgroup.limit_bytes() is not None), None)
        return OomKill(full.name, full.limit_bytes(), full.peak_bytes(), child) if full is not None else OomKill("", None, None, child)

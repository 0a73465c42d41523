"""What each worker's compute was in its own best time: a measure that a creeping slowness does not drag along, over epochs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from eagle_eye.types import Doubles, Integers

SPARE = 1024
"""Workers that are not in the job now and whose past is kept."""


@dataclass
class ComputePast:
    """The level of each worker is the lowest that it held for a whole window: it follows whoever gets faster, and nobody who gets slower."""

    window: int = 60
    """Observations that make a level."""
    _levels: dict[str, float] = field(default_factory=dict)
    _recent: list[Doubles] = field(default_factory=list)
    """Observations of the window that is not full yet, each a row over `_workers`."""
    _workers: tuple[str, ...] = ()
    _known: Doubles = field(default_factory=lambda: np.zeros(0))
    """Of `_workers`, in their order."""

    def begin(self, workers: tuple[str, ...]) -> None:
        """Another epoch, or other workers: what is known of them holds, what was half seen is dropped."""
        self._keep()
        self._recent.clear()
        self._workers = workers
        self._known = levels_of(self._levels, workers)
        absent = absent_from(self._levels, workers) if len(self._levels) > len(workers) else []
        for worker in absent[:-SPARE]:
            del self._levels[worker]

    def forget(self) -> None:
        """They do other work now."""
        self._levels.clear()
        self._recent.clear()
        self._known = np.full(len(self._workers), np.nan)

    def recall(self, levels: Mapping[str, float], role: Integers) -> None:
        """Take over levels of an earlier time, of whom most peers have one. `role`: of each worker, 0 of those without enough peers.

        Everybody may do other work than then. Peers all changed alike by that, which falls out between them; whoever has none would be accused of it.
        """
        known = levels_of(levels, self._workers)
        have = np.bincount(role[np.isfinite(known)], minlength=int(role.max(initial=0)) + 1)
        most = (role > 0) & (have[role] * 3 >= np.bincount(role)[role] * 2)
        self._known = np.fmin(self._known, np.where(most, known, np.nan))

    @property
    def levels(self) -> Doubles:
        """Of the workers of now; NaN of those of which no window was seen yet."""
        return self._known

    def add(self, observed: Doubles) -> None:
        """The logarithm of what each worker computed; NaN where it is not known."""
        self._recent.append(observed)
        if len(self._recent) < self.window:
            return
        rows = np.array(self._recent)
        seen = np.isfinite(rows).sum(axis=0) * 2 > len(rows)
        level = np.full(len(self._workers), np.nan)
        level[seen] = np.nanmedian(rows[:, seen], axis=0)
        self._known = np.fmin(self._known, level)
        self._recent.clear()

    def _keep(self) -> None:
        for worker, level in zip(self._workers, self._known.tolist(), strict=True):
            if np.isfinite(level):
                self._levels[worker] = level


def levels_of(levels: Mapping[str, float], workers: tuple[str, ...]) -> Doubles:
    """In the order of the workers; NaN of those of which none is known."""
    return np.array([levels.get(worker, np.nan) for worker in workers])


def absent_from(levels: Mapping[str, float], workers: tuple[str, ...]) -> list[str]:
    """Of whom a level is known and who is not among the workers; in the order of the levels."""
    present = set(workers)
    return [worker for worker in levels if worker not in present]

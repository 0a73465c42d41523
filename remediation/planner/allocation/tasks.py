"""Tasks that share a cluster, with the throughput of each at any number of workers, and the allocation problem after an event."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eagle_eye.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task:
    """One training job. Equal only to itself: a changed task is a new one.

    Raises ConfigError, naming the task and the field, for anything that no task can have.
    """

    name: str
    throughput: NDArray[np.float64]
    """T(x), achieved FLOP/s of all workers together, at index x = 0, 1, 2, ... workers. No more than its last index is ever used."""
    weight: float = 1.0
    minimum: int = 0
    """Workers below which it does not run at all."""
    maximum: int | None = None
    """Workers above which it is never given more; None: as far as `throughput` goes."""
    current: int = 0
    """Workers it has now; 0: it waits."""
    transition_s: float = 0.0
    """Downtime when its workers change, in seconds (D_transition)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "throughput", np.asarray(self.throughput, dtype=np.float64))
        if not self.name:
            raise ConfigError("tasks: a task has no name; give each a name of its own")
        self._check_throughput()
        if not (math.isfinite(self.weight) and self.weight >= 0):
            raise self._wrong("weight", self.weight, "a finite number that is not negative")
        if not (math.isfinite(self.transition_s) and self.transition_s >= 0):
            raise self._wrong("transition_s", self.transition_s, "a finite number of seconds that is not negative")
        self._check_counts()

    def _check_throughput(self) -> None:
        if self.throughput.ndim != 1 or not len(self.throughput):
            raise self._wrong("throughput", f"of shape {self.throughput.shape}", "one row of FLOP/s, for 0, 1, 2, ... workers")
        bad = np.flatnonzero(~(np.isfinite(self.throughput) & (self.throughput >= 0)))
        if len(bad):
            raise self._wrong(f"throughput[{bad[0]}]", self.throughput[bad[0]], "a finite number that is not negative")

    def _check_counts(self) -> None:
        if self.minimum < 0:
            raise self._wrong("minimum", self.minimum, "0 or more workers")
        if self.maximum is not None and self.maximum < self.minimum:
            raise self._wrong("maximum", self.maximum, f"at least the minimum, {self.minimum}")
        if self.current < 0:
            raise self._wrong("current", self.current, "0 or more workers")
        if self.current >= len(self.throughput):
            raise self._wrong("current", self.current, f"at most {len(self.throughput) - 1}, the last count that throughput is given for")

    def _wrong(self, field: str, value: object, wanted: str) -> ConfigError:
        return ConfigError(f"task {self.name!r}: {field} is {value}; it must be {wanted}")

    @property
    def most(self) -> int:
        """The largest number of workers that it can be given."""
        known = len(self.throughput) - 1
        return known if self.maximum is None else min(known, self.maximum)

    @property
    def waf(self) -> float:
        """F(t, x) at the workers it has now."""
        return self.waf_at(self.current)

    def waf_at(self, workers: int) -> float:
        """F(t, x): weighted achieved FLOP/s with so many workers; 0 below the minimum."""
        return self.weight * float(self.throughput[workers]) if workers >= self.minimum else 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskCluster:
    """The tasks that run, those that may be launched next, and the workers there are.

    Raises ConfigError, naming the field, for counts that cannot be.
    """

    tasks: tuple[Task, ...]
    workers: int
    """That are alive, those of the spare pool among them."""
    gpu_mtbf_s: float
    """Mean time between failures of one worker."""
    granularity: int = 1
    """Workers are allocated and lost in groups of so many, e.g. 8: whole nodes."""
    queue: tuple[Task, ...] = ()
    """Tasks that may be launched next: the event table has an allocation for each."""
    spares: int = 0
    """Workers held back now; the next lost ones are replaced from these."""
    spare_pool: int = 0
    """How many should be held back: workers that join fill the pool up first."""

    def __post_init__(self) -> None:
        self._check_counts()
        _check_unique_names([task.name for task in (*self.tasks, *self.queue)])
        for task in self.queue:
            if task.current:
                raise ConfigError(f"queue: task {task.name!r} already has {task.current} workers; a running task belongs under tasks")
        used = sum(task.current for task in self.tasks)
        if used > self.usable:
            raise ConfigError(f"workers is {self.workers} with {self.spares} spares, but the tasks' current workers add up to {used}; no worker serves two tasks")

    def _check_counts(self) -> None:
        _check_granularity(self.granularity, self.gpu_mtbf_s)
        for field in ("workers", "spares", "spare_pool"):
            if getattr(self, field) < 0:
                raise ConfigError(f"{field} is {getattr(self, field)}; it must be 0 or more")
        if self.spares > self.workers:
            raise ConfigError(f"spares is {self.spares}, more than the {self.workers} workers there are")

    @property
    def usable(self) -> int:
        """n': the workers that may be allocated."""
        return self.workers - self.spares


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AllocationProblem:
    """Workers to allocate among tasks after an event. The tasks' `current` is what they had before it."""

    tasks: tuple[Task, ...]
    usable: int
    """n': workers that may be allocated."""
    gpu_mtbf_s: float
    granularity: int = 1
    failed: frozenset[str] = frozenset()
    """Tasks that lost a worker: they have to switch even if their count stays."""
    running_s: float | None = None
    """D_running(n'), if it is known better than from the MTBF of one worker."""

    def __post_init__(self) -> None:
        if self.usable < 0:
            raise ConfigError(f"usable is {self.usable}; no allocation is possible with fewer than 0 workers")
        if self.running_s is not None and not (math.isfinite(self.running_s) and self.running_s > 0):
            raise ConfigError(f"running_s is {self.running_s}; it must be a finite number of seconds above 0")
        _check_granularity(self.granularity, self.gpu_mtbf_s)
        names = [task.name for task in self.tasks]
        _check_unique_names(names)
        unknown = self.failed - set(names)
        if unknown:
            raise ConfigError(f"failed: no task is called {min(unknown)!r}; the tasks are {', '.join(sorted(names))}")

    @property
    def horizon_s(self) -> float:
        """D_running(n'): seconds until one of n' workers is expected to fail. Without workers nothing fails: one MTBF."""
        return self.gpu_mtbf_s / max(1, self.usable) if self.running_s is None else self.running_s


def _check_granularity(granularity: int, gpu_mtbf_s: float) -> None:
    if granularity < 1:
        raise ConfigError(f"granularity is {granularity}; it must be 1 worker or more")
    if not (math.isfinite(gpu_mtbf_s) and gpu_mtbf_s > 0):
        raise ConfigError(f"gpu_mtbf_s is {gpu_mtbf_s}; it must be a finite number of seconds above 0")


def _check_unique_names(names: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ConfigError(f"tasks: two tasks are called {name!r}; give each a name of its own")
        seen.add(name)

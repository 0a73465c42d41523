"""Whether the others wait for workers that compute slower than their peers: the newest steps of a job, and how much shorter they had been without that.

Two estimates by the model of step_estimate.py, of which the one that saves more counts: by what each worker computes, as `straggler` compares it, and by that and its waits for data. Either alone may hide
who is slow. Where one rank reads the batches for all, those who are early wait for the late one there, and look as busy as it is; where a stage has long waits for data of its own, computing alone does not show that
all wait for its slow worker. The time of GPUs is left out: it holds their waits in collectives, which make all of them look equally long.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eagle_eye.types import Doubles, Evidence, Floats, Integers, Layout, Step

from .peer_roles import PeerRoles
from .step_estimate import (
    NOT_SYNCHRONOUS,
    NOTICEABLE,
    PipelineGrid,
    Shortened,
    Truths,
    micro_batches_of,
    pipeline_grid,
    pipeline_seconds,
    typical_seconds,
)
from .step_time import phase, zero_if_unknown

OFF_PATH = "off the critical path"
"""Status of a claim (diagnosis/causes.py): the others do not wait for the worker."""

_LONGEST_S = np.float32(6e4)
"""Of a step; what is longer is kept as this."""


class _PathStep(NamedTuple):
    """One step."""

    seconds: NDArray[np.float16]
    """Of each worker, two rows: what it computed, and that with its waits for data. In two bytes, which tell a thousandth of a step."""
    step_s: float
    micro_batches: float


@dataclass
class CriticalPath:
    """The newest steps of one job."""

    steps: int = 5
    """How many are kept."""
    _workers: tuple[str, ...] = ()
    _of: tuple[int, float] = (-1, 0.0)
    """Epoch and time of the layout."""
    _grid: PipelineGrid = field(default_factory=lambda: pipeline_grid((), None))
    _kept: deque[_PathStep] = field(default_factory=deque)

    def add(self, step: Step, layout: Layout | None, busy: Floats) -> None:
        """Take a step in; other workers, or another layout, begin anew. `busy`: seconds that each worker computed, NaN of one that told none."""
        of = (layout.epoch, layout.time) if layout is not None else (-1, 0.0)
        if step.workers != self._workers or of != self._of:
            self.forget()
            self._workers, self._of, self._grid = step.workers, of, pipeline_grid(step.workers, layout)
        computed = zero_if_unknown(busy)
        seconds = np.minimum([computed, computed + zero_if_unknown(phase(step, "data_s"))], _LONGEST_S).astype(np.float16)
        self._kept.append(_PathStep(seconds, float(np.nanmedian(step.values["step_s"])), micro_batches_of(step)))
        while len(self._kept) > self.steps:
            self._kept.popleft()

    def forget(self) -> None:
        """Another epoch."""
        self._kept.clear()

    def cost(self, members: Truths, roles: PeerRoles) -> "SlownessCost | None":
        """Of these workers' not computing as the median of their peers that are not among them; None where that cannot be said."""
        if not self._kept or not members.any():
            return None
        seconds = np.array([each.seconds for each in self._kept], np.float32)
        typical = typical_seconds(seconds, members, roles)
        known = members & np.isfinite(typical[0, 0])
        if not known.any():
            return None
        step_s, count = np.array([each.step_s for each in self._kept]), self._kept[-1].micro_batches
        was = _Estimate.of(self._grid, count, seconds)
        if np.median(was.length[:, 1] / np.maximum(step_s, 1e-9)) > NOT_SYNCHRONOUS:
            return None
        had = _Estimate.of(self._grid, count, np.where(known, np.minimum(seconds, typical), seconds))
        return SlownessCost(_saved(was.length - had.length, step_s), step_s, known, was, had)


@dataclass(frozen=True, slots=True)
class _Estimate:
    """How long steps take by the seconds of all workers. Arrays are steps × 2 × workers, cells or replicas."""

    grid: PipelineGrid
    micro_batches: float
    seconds: Floats
    cells: Floats
    slowest: Integers
    """Of each step and row: the slowest replica ..."""
    length: Floats
    """... what it takes, and so the step ..."""
    second: Floats
    """... and what the second slowest takes; 0 where there is none."""

    @classmethod
    def of(cls, grid: PipelineGrid, micro_batches: float, seconds: Floats) -> "_Estimate":
        cells = grid.cells(seconds)
        replicas = grid.lengths(cells, micro_batches)
        second = np.partition(replicas, -2, axis=-1)[..., -2] if replicas.shape[-1] > 1 else np.zeros(replicas.shape[:-1], np.float32)
        return cls(grid, micro_batches, seconds, cells, replicas.argmax(axis=-1), replicas.max(axis=-1), second)

    def had(self, worker: int, seconds: Floats) -> Floats:
        """How long they take if that worker has these seconds in place of its own. Its replica alone is looked at anew, so that it takes no longer in a large job."""
        cell, replica = self.grid.place_of(worker)
        within, stages = self.grid.workers_of(cell), self.grid.cells_of(replica)
        cells = self.cells[..., stages].copy()
        cells[..., cell - stages.start] = np.where(within == worker, seconds[..., None], self.seconds[..., within]).max(axis=-1)
        mine = pipeline_seconds(cells.max(axis=-1), cells.sum(axis=-1), self.micro_batches)
        longest: Floats = np.maximum(mine, np.where(self.slowest == replica, self.second, self.length))
        return longest


@dataclass(frozen=True, slots=True)
class SlownessCost:
    """What slow workers cost, all of them and each by itself."""

    together: Shortened
    """Had all of them computed as their peers."""
    _step_s: Doubles
    _known: Truths
    """Slow workers with peers."""
    _was: _Estimate
    _had: _Estimate
    """Had they computed as their peers."""

    def alone(self, worker: int) -> Shortened | None:
        """Had that one, and the others as they do; None where nothing is known of it."""
        return _saved(self._was.length - self._was.had(worker, self._had.seconds[..., worker]), self._step_s) if self._known[worker] else None

    def remaining(self, worker: int) -> Shortened:
        """What that one costs once all others compute as their peers; as much as all where nothing is known of it."""
        return _saved(self._had.had(worker, self._was.seconds[..., worker]) - self._had.length, self._step_s) if self._known[worker] else self.together

    def line(self, worker: int, name: str) -> Evidence | None:
        """About that one: alone, or with all that are slow where only that helps. None where nothing is known of it."""
        alone = self.alone(worker)
        if alone is None:
            return None
        if alone.share >= NOTICEABLE or self.remaining(worker).share < NOTICEABLE:
            return alone.evidence(f"had worker {name} computed as its peers")
        return self.line_together(name)

    def line_together(self, name: str) -> Evidence:
        """About that one and all others that are slow."""
        return self.together.evidence(f"had worker {name} and the others that are slow computed as their peers")


def _saved(shorter: Floats, step_s: Doubles) -> Shortened:
    """The estimate that saves more counts. `shorter`: seconds by each, step by step."""
    saved = np.median(np.clip(shorter, 0.0, step_s[:, None]), axis=0)
    return Shortened(float(np.median(step_s)), float(saved.max()))


def off_path() -> Evidence:
    """Beside a line that says how little would be saved."""
    return Evidence(text="others compute for as long in each step: it is slow, and nobody waits for it", status=OFF_PATH)

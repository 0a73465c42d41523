"""Losses that workers print, out of frames: who prints a bad one now, and the job's newest.

A line in a log is known to be of some step, and not who was first: rank 0 prints the mean over all, or each rank its own. So nobody is accused by it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from eagle_eye.frames import Frame
from eagle_eye.types import Floats, Kind

QUIET_S = 5.0
"""So long after an epoch has begun lines of the one before may still be told: they are read twice a second, and a batch may be late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedLoss:
    """What a job's workers have printed since the tick before, and which of them are in a run of bad lines."""

    step: float
    """The highest that was printed with it; NaN: none was."""
    loss: float
    """Mean over those who printed a finite one; NaN: nobody did."""
    bad: Mapping[str, str]
    """Worker → what is no number, of those whose newest lines are bad: `loss` or `gradient norm`."""
    good: bool
    """Somebody has printed a loss that is a number, and nobody is in a run of bad lines, however short."""


@dataclass(slots=True)
class PrintedLosses:
    """Over all ticks of a job: a worker that has printed nothing new is as it was."""

    loss_lines: int
    norm_lines: int
    _runs: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Worker → lines in succession whose loss, whose gradient norm was no number; of those with any."""
    _quiet_until: float = -math.inf

    def update(self, frame: Frame) -> PrintedLoss | None:
        """None: nobody has printed a loss or a gradient norm since the tick before."""
        workers, metrics = frame.entities.get(Kind.WORKER, ()), frame.metrics.get(Kind.WORKER, {})
        losses, norms = (_read(metrics, f"printed_bad_{what}", len(workers)) for what in ("losses", "grad_norms"))
        fresh = np.isfinite(losses) & np.isfinite(norms)
        if frame.time < self._quiet_until or not fresh.any():
            return None
        running = np.flatnonzero(fresh & (losses + norms > 0.0)).tolist()
        if self._runs:
            silent = {workers[index] for index in np.flatnonzero(~fresh).tolist()}
            self._runs = {name: run for name, run in self._runs.items() if name in silent}
        self._runs |= {workers[index]: (float(losses[index]), float(norms[index])) for index in running}
        loss, step = (_read(metrics, f"printed_{what}", len(workers)) for what in ("loss", "step"))
        printed = loss[np.isfinite(loss)]
        bad = {name: what for name, run in self._runs.items() if (what := self._bad(*run))}
        return PrintedLoss(
            step=float(np.nanmax(step)) if np.isfinite(step).any() else float("nan"), loss=float(printed.mean()) if len(printed) else float("nan"),
            bad=bad, good=len(printed) > 0 and not self._runs,
        )  # fmt: skip

    def begin_epoch(self, time: float) -> None:
        """Other processes print from now on; what is told at once was printed by those before."""
        self._runs.clear()
        self._quiet_until = time + QUIET_S

    def _bad(self, losses: float, norms: float) -> str:
        return "loss" if losses >= self.loss_lines else "gradient norm" if norms >= self.norm_lines else ""


def _read(metrics: Mapping[str, Floats], name: str, workers: int) -> Floats:
    return metrics.get(name, np.full(workers, np.nan, np.float32))

"""What the workers of a job print, out of the history: for jobs whose script logs no loss or no tokens of its own."""

from dataclasses import dataclass

import numpy as np

from dashboard.sources import Sources
from eagle_eye.types import Doubles

from .steps import GAP_RATIO

TABLE = "worker/job_log"
WORKERS_S = 60.0
"""So long before the newest printed value the workers are counted."""
_NEEDS = ("printed_loss", "printed_grad_norm", "printed_iteration_s", "printed_tokens_per_s", "printed_gpu_tokens_per_s", "printed_step")
_PRINTED = """
SELECT floor((epoch(time) - $begin) / $every)::INTEGER AS bucket, max(epoch(time)) AS time, avg(printed_loss) AS loss, avg(printed_grad_norm) AS grad_norm,
       avg(printed_iteration_s) AS step_s, avg(printed_tokens_per_s) AS tokens_per_s, avg(printed_gpu_tokens_per_s) AS gpu_tokens_per_s, max(printed_step) AS step
FROM {rows} WHERE job = $job GROUP BY bucket ORDER BY bucket
"""
_WORKERS = "SELECT count(DISTINCT entity) AS workers FROM {rows} WHERE job = $job"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedTimeline:
    """Printed values over time, means over workers and over what is one point of a figure. Arrays of one length, NaN where nothing was printed."""

    times: Doubles
    loss: Doubles
    grad_norm: Doubles
    step_s: Doubles
    tokens_per_s: Doubles
    """Of the job: as printed, else that of a GPU times the workers."""
    steps: Doubles

    def at(self, times: Doubles, values: Doubles) -> Doubles:
        """Values of another axis of time: a printed one holds until the next is due. NaN before the first, and in a pause."""
        known = np.flatnonzero(np.isfinite(values))
        if not len(known):
            return np.full(len(times), np.nan)
        printed = self.times[known]
        lasts = GAP_RATIO * float(np.median(np.diff(printed))) if len(printed) > 1 else 0.0
        place = np.searchsorted(printed, times, side="right") - 1
        newest = np.where(place >= 0, values[known][place], np.nan)
        with np.errstate(invalid="ignore"):
            held: Doubles = np.where(times - printed[place] <= max(lasts, float(np.median(np.diff(times))) if len(times) > 1 else 0.0), newest, np.nan)
        return held


def timeline(sources: Sources, job: str, *, since: float, until: float, every: float) -> PrintedTimeline | None:
    """None where its workers have printed no value in that time. Raises NoHistory, BrokenHistory."""
    if TABLE not in sources.metrics(TABLE):
        return None
    found = sources.ask(TABLE, _PRINTED, {"job": job, "begin": since, "every": every}, needs=_NEEDS, since=since, until=until)
    if found is None or not len(found["time"]):
        return None
    columns = {name: np.asarray(column, float) for name, column in found.items()}
    tokens = columns["tokens_per_s"]
    if np.isfinite(columns["gpu_tokens_per_s"]).any():
        tokens = np.where(np.isfinite(tokens), tokens, columns["gpu_tokens_per_s"] * _workers(sources, job, float(columns["time"][-1])))
    return PrintedTimeline(
        times=columns["time"], loss=columns["loss"], grad_norm=columns["grad_norm"], step_s=columns["step_s"], tokens_per_s=tokens, steps=columns["step"],
    )  # fmt: skip


def _workers(sources: Sources, job: str, until: float) -> float:
    """That had a process just before; NaN: nobody has told."""
    found = sources.ask("worker/training", _WORKERS, {"job": job}, since=until - WORKERS_S, until=until)
    return float(found["workers"][0]) if found is not None and found["workers"][0] else float("nan")

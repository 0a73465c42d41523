"""Steps of jobs out of the history, and the pauses between them: one row for each step that all workers have completed, aggregated by DuckDB.

DuckDB aggregates each file by itself, once a file, and then the results of the files: a page that is loaded again, for another job or a
longer time, does not read the same files again.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dashboard.sources import Sources
from eagle_eye.types import Doubles

PHASES = ("data_s", "forward_s", "backward_s", "communication_s", "optimizer_s", "evaluation_s", "checkpoint_s", "other_s")
GRAD_NORM, MFU = "grad_norm", "mfu_percent"
LOGGED = (GRAD_NORM, MFU)
"""What a script, an integration or the probe may tell with its steps."""
_NEEDS = ("step_s", "tokens", "loss")
_OF_A_FILE = """
SELECT job, epoch, step, max(epoch(time)) AS done, max(step_s) AS seconds, sum(tokens) AS tokens, count(*) AS workers,
       sum(loss * tokens) FILTER (tokens > 0) AS weighed, sum(tokens) FILTER (tokens > 0 AND loss IS NOT NULL) AS weight, avg(loss) AS loss{phases}
FROM {{rows}} GROUP BY job, epoch, step
"""
"""A loss is weighted by its tokens, where the job reports them."""
_COMMITTED = """
WITH reported AS (
        SELECT job, epoch, step, max(done) AS done, max(seconds) AS seconds, sum(tokens) AS tokens, sum(workers)::BIGINT AS workers,
               coalesce(sum(weighed) / sum(weight), sum(loss * workers) / sum(workers) FILTER (loss IS NOT NULL)) AS loss{phases}
        FROM {{rows}} {where} GROUP BY job, epoch, step HAVING max(done) >= $since AND max(done) < $until),
    complete AS (SELECT * FROM reported QUALIFY workers = max(workers) OVER (PARTITION BY job, epoch)),
    ordered AS (
        SELECT *, done - lag(done) OVER newest AS since_last,
               step > coalesce(max(step) OVER (PARTITION BY job ORDER BY done, epoch, step ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), -1) AS first_time
        FROM complete WINDOW newest AS (PARTITION BY job ORDER BY done, epoch, step)),
    committed AS (
        SELECT *, CASE WHEN first_time THEN greatest(0, least(coalesce(seconds, since_last, 0), coalesce(since_last, seconds, 0))) ELSE 0 END AS productive
        FROM ordered)
"""
"""A step counts as productive when it is done for the first time, with its own duration, never with more than has passed since the
step before (as eagle_eye/metrics/job_metrics.py counts). A step that some workers of its epoch have not completed is not counted."""
GAP_RATIO = 4.0
"""A pause so many times longer than the median is a gap in the lines of a figure."""
CHECKED_MAX = 3
"""So many of the longest pauses are checked for samples of the nodes."""
CHECK_S = 30.0
"""At most so much on both sides of the middle of a pause is checked, as nodes report every second; not its ends, where samples begin again."""


def told(sources: Sources) -> frozenset[str]:
    """Names of all numbers that a job has told with its steps."""
    return frozenset(name for names in sources.metrics("steps").values() for name in names)


def averages(sources: Sources) -> tuple[str, ...]:
    """What `ask` averages over workers: the phases and LOGGED, as far as a job has reported them."""
    known = told(sources)
    return tuple(name for name in (*PHASES, *LOGGED) if name in known)


def ask(sources: Sources, question: str, given: Mapping[str, Any] | None = None, *, job: str = "", since: float, until: float) -> dict[str, Any] | None:
    """Column → numpy array, the answer to SQL over `committed`: job, epoch, step, done, seconds (of the slowest worker), tokens, workers, loss,
    each of `averages` (mean over the workers), since_last, first_time, productive. None if there is no such step.

    job: only that one. Raises NoHistory, BrokenHistory.
    """  # fmt: skip
    spent = averages(sources)
    summed = "".join(f", avg({name}) AS {name}" for name in spent)
    whole = "".join(f", sum({name} * workers) / sum(workers) FILTER ({name} IS NOT NULL) AS {name}" for name in spent)
    committed = _COMMITTED.format(phases=whole, where="WHERE job = $job" if job else "")
    asked = {**(given or {}), **({"job": job} if job else {}), "since": since, "until": until}
    return sources.ask_summed("steps", _OF_A_FILE.format(phases=summed), committed + question, asked, needs=(*_NEEDS, *spent), since=since, until=until)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """A time in which no step was completed. Seconds since 1970."""

    begin: float
    end: float
    sampled: bool = True
    """Samples of its nodes were written during the pause, so the job made no progress; False: nothing was written, so it is not known."""

    @property
    def seconds(self) -> float:
        return self.end - self.begin


def breaks(times: Doubles) -> Any:
    """Indices before which a line over these times breaks."""
    between = np.diff(times)
    if not len(between):
        return np.empty(0, np.int64)
    return np.flatnonzero(between > GAP_RATIO * max(float(np.median(between)), 1e-6)) + 1


def pauses(sources: Sources, job: str, times: Doubles) -> tuple[Pause, ...]:
    """Between the times at which steps were completed; longest first. Those beyond CHECKED_MAX count as sampled."""
    found = [Pause(begin=float(times[row - 1]), end=float(times[row])) for row in breaks(times)]
    longest = sorted(found, key=lambda pause: -pause.seconds)
    return (*_checked(sources, job, longest[:CHECKED_MAX]), *longest[CHECKED_MAX:])


def _checked(sources: Sources, job: str, found: Iterable[Pause]) -> Iterator[Pause]:
    table = next((name for name in sources.metrics() if not name.startswith("steps")), "")
    for pause in found:
        middle, reach = (pause.begin + pause.end) / 2, min(pause.seconds / 4, CHECK_S)
        yield Pause(begin=pause.begin, end=pause.end, sampled=not table or _has_samples(sources, table, job, middle - reach, middle + reach))


def _has_samples(sources: Sources, table: str, job: str, since: float, until: float) -> bool:
    found = sources.ask(table, "SELECT count(*) AS samples FROM {rows} WHERE job = $job", {"job": job}, since=since, until=until)
    return found is not None and int(found["samples"][0]) > 0

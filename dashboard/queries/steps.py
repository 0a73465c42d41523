"""Steps of jobs out of the history: one row for each step that all workers have completed, aggregated by DuckDB.

First each file by itself, which is done once a file, then what the files of a time answered: so a page that is asked for again, of
another job or a longer time, reads the history no more.
"""

from collections.abc import Mapping
from typing import Any

from dashboard.sources import Sources

PHASES = ("data_s", "forward_s", "backward_s", "communication_s", "optimizer_s", "evaluation_s", "checkpoint_s", "other_s")
_NEEDS = ("step_s", "tokens", "loss")
_OF_A_FILE = """
SELECT job, epoch, step, max(epoch(time)) AS done, max(step_s) AS seconds, sum(tokens) AS tokens, count(*) AS workers,
       sum(loss * tokens) FILTER (tokens > 0) AS weighed, sum(tokens) FILTER (tokens > 0 AND loss IS NOT NULL) AS weight, avg(loss) AS loss{phases}
FROM {{rows}} GROUP BY job, epoch, step
"""
"""A loss counts by its tokens, where they are told."""
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
step before (as eagle_eye/metrics/job_metrics.py counts). A step that some workers of its epoch have not completed is left out."""


def phases(sources: Sources) -> tuple[str, ...]:
    """Those of PHASES that anybody has told."""
    known = {name for names in sources.metrics("steps").values() for name in names}
    return tuple(name for name in PHASES if name in known)


def ask(sources: Sources, question: str, given: Mapping[str, Any] | None = None, *, job: str = "", since: float, until: float) -> dict[str, Any] | None:
    """Column → numpy array, the answer to SQL over `committed`: job, epoch, step, done, seconds (of the slowest worker), tokens, workers, loss,
    each of `phases` (mean over the workers), since_last, first_time, productive. None if there is no such step.

    job: of that one alone. Raises NoHistory, BrokenHistory.
    """  # fmt: skip
    spent = phases(sources)
    summed = "".join(f", avg({name}) AS {name}" for name in spent)
    whole = "".join(f", sum({name} * workers) / sum(workers) FILTER ({name} IS NOT NULL) AS {name}" for name in spent)
    committed = _COMMITTED.format(phases=whole, where="WHERE job = $job" if job else "")
    asked = {**(given or {}), **({"job": job} if job else {}), "since": since, "until": until}
    return sources.ask_summed("steps", _OF_A_FILE.format(phases=summed), committed + question, asked, needs=(*_NEEDS, *spent), since=since, until=until)

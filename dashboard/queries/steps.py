"""Steps of jobs out of the history: one row for each step that all workers have completed, aggregated by DuckDB."""

NEEDS = ("step_s", "tokens", "loss")
LOSS = ", coalesce(sum(loss * tokens) FILTER (tokens > 0) / sum(tokens) FILTER (loss IS NOT NULL AND tokens > 0), avg(loss)) AS loss"
"""Of a step, for `more`: each worker's by its tokens, where they are told."""
COMMITTED = """
    reported AS (
        SELECT job, epoch, step, max(epoch(time)) AS done, max(step_s) AS seconds, sum(tokens) AS tokens, count(*) AS workers{more}
        FROM {{rows}} {where} GROUP BY job, epoch, step),
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
step before (as eagle_eye/metrics/jobs.py counts). A step that some workers of its epoch have not completed is left out."""


def committed(*, of_job: bool, more: str = "") -> str:
    """The tables above, to follow WITH. of_job: of the job $job alone; more: further aggregates of a step, each with a comma before it."""
    return COMMITTED.format(where="WHERE job = $job" if of_job else "", more=more)

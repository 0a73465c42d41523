"""One job over time: its steps, its workers beside each other, and what happened to it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from dashboard import formatting
from dashboard.errors import NothingFound
from dashboard.sources import SPAN_S, Sources, quoted
from eagle_eye.types import Doubles, Floats

from . import printed_timeline, steps
from .names import unit_of
from .printed_timeline import PrintedTimeline
from .steps import GAP_RATIO, Pause, breaks, pauses

GOODPUT_S = 60.0
"""Goodput at a moment is that of so many seconds before it, or of a twentieth of the span if that is longer."""
WORKER_COLUMNS = 240
MOST_WORKERS = 256
"""Rows that a heat map can show; of a larger job FEW_WORKERS are, the slowest."""
FEW_WORKERS = 28
"""So many have a line each that can be seen, and a name beside it."""
PEERS = 250
"""Of a job with more workers, the median is that of about so many of them."""
COMPUTE = "compute_s"
"""Not logged itself: the time of a step less what the worker waited for others. In a step time all workers look alike, as they wait for the slowest."""
WORKER_METRICS = (COMPUTE, "step_s", "forward_s", "backward_s", "communication_s", "data_s", "optimizer_s")
FURTHER_METRICS = ("gpu_forward_s", "gpu_backward_s", "gpu_optimizer_s", "gpu_lag_s", "garbage_collection_s")
"""Shown where a worker tells them."""
PRINTED = ("loss", "grad_norm", "step_s", "tokens_per_s")
"""Of these what the script does not log is taken from what its workers print."""
MOST_INCIDENTS = 200
ASIDE = ("dump", "notify")
"""Actions that repair nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineMark:
    """Something that happened to the job."""

    time: float
    what: Literal["incident", "heal", "epoch"]
    text: str
    incident: str = ""
    """Its id; '' for an epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTimeline:
    """A job's numbers over time. Arrays of one length; where a line should break there is a row of NaN."""

    times: Doubles
    loss: Doubles
    step_s: Doubles
    """Of the slowest worker."""
    tokens_per_s: Doubles
    phases: Mapping[str, Doubles]
    """Phase without its unit (`forward`, …) → mean seconds a step over the workers; those that are never above zero are left out."""
    goodput: Doubles
    """Over the minute before, or a twentieth of the span; NaN only where nothing at all was written."""
    epochs: Doubles
    steps: Doubles
    """The newest step."""
    marks: tuple[TimelineMark, ...]
    pauses: tuple[Pause, ...] = ()
    """Where lines break, longest first."""
    grad_norm: Doubles | None = None
    """None: neither logged nor printed."""
    printed: tuple[str, ...] = ()
    """Which of these the script does not log: they are as its workers print them."""

    @property
    def empty(self) -> bool:
        """Without a single step."""
        return not len(self.times)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHeat:
    """Workers × time, in the order of their names: all, or the FEW_WORKERS slowest where there are more than MOST_WORKERS."""

    metric: str
    unit: str
    times: Doubles
    """Beginnings of intervals of `every` seconds."""
    workers: list[str]
    values: Floats
    """workers × times; NaN: nothing was done. A step counts for the whole time since the one before."""
    peers: Floats
    """times: the median of all workers, shown or not (of about PEERS of them); NaN: nothing was done."""
    every: float
    total: int
    """Workers that the job has, shown or not."""


def timeline(sources: Sources, job: str, *, since: float, until: float, points: int = 600) -> JobTimeline:
    """Loss, step time, throughput and goodput. Empty arrays where no step was done in that time. NothingFound: no such job."""
    return sources.remembered(("timeline", job, since, until, points), lambda: _timeline(sources, job, since, until, points), seconds=SPAN_S)


def worker_metrics(sources: Sources) -> tuple[str, ...]:
    """What workers can be compared by."""
    known = steps.told(sources)
    return (*WORKER_METRICS, *(name for name in FURTHER_METRICS if name in known))


def workers(sources: Sources, job: str, *, since: float, until: float, metric: str = COMPUTE) -> WorkerHeat:
    """Mean of a number of each worker's steps, interval by interval; no workers where no step was done in that time."""
    return sources.remembered(("workers", job, since, until, metric), lambda: _workers(sources, job, since, until, metric), seconds=SPAN_S)


# --- timeline ------------------------------------------------------------------------------------------------------------

_TIMELINE = """
SELECT floor((done - $since) / $every)::INTEGER AS bucket, max(done) AS time, avg(loss) AS loss, avg(seconds) AS step_s,
       sum(tokens) / nullif(sum(seconds), 0) AS tokens_per_s, sum(productive) AS productive, max(epoch) AS epoch, max(step) AS step{phases}
FROM committed GROUP BY bucket ORDER BY bucket
"""


def _timeline(sources: Sources, job: str, since: float, until: float, points: int) -> JobTimeline:
    averages = steps.averages(sources)
    every = (until - since) / points
    question = _TIMELINE.format(phases="".join(f", avg({name}) AS {name}" for name in averages))
    found = steps.ask(sources, question, {"every": every}, job=job, since=since, until=until)
    marks = _marks(sources, job, since, until)
    printed = printed_timeline.timeline(sources, job, since=since, until=until, every=every)
    if found is None:
        if printed is None:
            _check_known(sources, job)
        return _of_printed(printed, marks)
    goodput = _goodput(found, every, points, until - since)
    columns = with_gaps({name: np.asarray(column, float) for name, column in found.items()})
    begins = [TimelineMark(time=float(found["time"][row]), what="epoch", text=f"epoch {found['epoch'][row]:.0f} begins") for row in _changes(found["epoch"])]
    at = np.clip(((columns["time"] - since) / every).astype(np.int64), 0, points - 1)
    stood = pauses(sources, job, np.asarray(found["time"], float))
    spent = {name.removesuffix("_s"): columns[name] for name in averages if name in steps.PHASES and np.nanmax(columns[name], initial=0.0) > 0}
    timeline = JobTimeline(
        times=columns["time"], loss=columns["loss"], step_s=columns["step_s"], tokens_per_s=columns["tokens_per_s"], phases=spent,
        goodput=_without(goodput[at], columns["time"], stood), pauses=stood, epochs=columns["epoch"], steps=columns["step"], marks=tuple(sorted((*marks, *begins), key=lambda mark: mark.time)),
        grad_norm=columns.get(steps.GRAD_NORM),
    )  # fmt: skip
    return timeline if printed is None else _completed(timeline, printed)


def _of_printed(printed: PrintedTimeline | None, marks: tuple[TimelineMark, ...]) -> JobTimeline:
    """Of a job that has told no step: what its workers print. Goodput is of steps, and not known."""
    if printed is None:
        empty = np.empty(0)
        return JobTimeline(times=empty, loss=empty, step_s=empty, tokens_per_s=empty, phases={}, goodput=empty, epochs=empty, steps=empty, marks=marks)
    columns = {"time": printed.times, "loss": printed.loss, "grad_norm": printed.grad_norm, "step_s": printed.step_s, "tokens_per_s": printed.tokens_per_s, "step": printed.steps}
    columns = with_gaps(columns)
    unknown = np.full(len(columns["time"]), np.nan)
    return JobTimeline(
        times=columns["time"], loss=columns["loss"], step_s=columns["step_s"], tokens_per_s=columns["tokens_per_s"], phases={}, goodput=unknown, epochs=unknown,
        steps=columns["step"], marks=marks, grad_norm=columns["grad_norm"] if np.isfinite(columns["grad_norm"]).any() else None,
        printed=tuple(name for name in PRINTED if np.isfinite(columns[name]).any()),
    )  # fmt: skip


def _completed(timeline: JobTimeline, printed: PrintedTimeline) -> JobTimeline:
    """What the script logs stays; what it does not log is as its workers print it."""
    fields: dict[str, Doubles] = {}
    for name in PRINTED:
        logged, values = getattr(timeline, name), getattr(printed, name)
        if (logged is None or not np.isfinite(logged).any()) and np.isfinite(values).any():
            fields[name] = np.where(np.isnan(timeline.steps), np.nan, printed.at(timeline.times, values))  # a gap stays one
    return replace(timeline, printed=tuple(fields), **fields)  # type: ignore[arg-type]  # every one of them is an array


def _goodput(found: Mapping[str, Any], every: float, points: int, span: float) -> Doubles:
    """Of every bucket: productive seconds of the window that ends with it, by that window less what was before the first step."""
    productive = np.zeros(points)
    productive[np.clip(found["bucket"], 0, points - 1)] = found["productive"]
    width = max(1, min(points, round(max(GOODPUT_S, span / 20) / every)))
    total = np.cumsum(np.r_[np.zeros(width), productive])
    first = int(np.clip(found["bucket"][0], 0, points - 1))
    elapsed = np.minimum(np.maximum(np.arange(points) - first + 1, 1), width) * every
    share: Doubles = np.clip((total[width:] - total[:-width]) / elapsed, 0.0, 1.0)
    return share


def _without(goodput: Doubles, times: Doubles, stood: Iterable[Pause]) -> Doubles:
    """A stalled job had none; of a time of which nothing was written it is not known."""
    unknown = [(times > pause.begin) & (times < pause.end) for pause in stood if not pause.sampled]
    share: Doubles = np.where(np.any(unknown, axis=0), np.nan, goodput) if unknown else goodput
    return share


def with_gaps(columns: dict[str, Doubles]) -> dict[str, Doubles]:
    """A row of NaN in the middle of each pause."""
    times = columns["time"]
    after = breaks(times)
    broken = {name: np.insert(column, after, np.nan) for name, column in columns.items()}
    return broken | {"time": np.insert(times, after, (times[after] + times[after - 1]) / 2)}


def _changes(epochs: Any) -> list[int]:
    return [int(row) for row in np.flatnonzero(np.diff(epochs) > 0) + 1]


def _check_known(sources: Sources, job: str) -> None:
    ledger = sources.ledger
    if job not in ledger.jobs() and not ledger.incidents(job=job, limit=1):
        raise NothingFound(f"no job {job!r}, and no step of it in this time. Choose one of the cluster's, or a longer time.")


def _marks(sources: Sources, job: str, since: float, until: float) -> tuple[TimelineMark, ...]:
    return tuple(sorted(_told(sources, job, since, until), key=lambda mark: mark.time))


def _told(sources: Sources, job: str, since: float, until: float) -> Iterator[TimelineMark]:
    for record in sources.ledger.incidents(job=job, limit=MOST_INCIDENTS):
        incident = record.incident
        if since <= record.opened < until:
            culprits = formatting.listed(formatting.accused(str(culprit.entity) for culprit in incident.culprits), nothing="unknown")
            yield TimelineMark(time=record.opened, what="incident", text=f"{incident.cause}: {culprits}", incident=incident.id)
        if record.changed < since:
            continue
        for outcome in sources.ledger.outcomes(incident=incident.id):
            if outcome.state == "done" and outcome.action not in ASIDE and since <= outcome.time < until:
                yield TimelineMark(time=outcome.time, what="heal", text=f"{outcome.action} for {incident.cause}", incident=incident.id)


# --- workers -----------------------------------------------------------------------------------------------------------

_SLOWEST = """
WITH told AS (SELECT entity, avg({value}) + coalesce(stddev_pop({value}), 0) AS high FROM {{rows}} WHERE job = $job GROUP BY entity),
     ordered AS (SELECT entity, count(*) OVER () AS total, row_number() OVER (ORDER BY high DESC NULLS LAST, entity) AS place FROM told)
SELECT entity, total, place <= CASE WHEN total > $most THEN $few ELSE $most END AS shown
FROM ordered WHERE shown OR place % greatest(1, total // $peers) = 0
"""
"""By the mean and how far it varies, so that one who was slow for a while is among them; and some of all speeds, for the median."""
_WORKERS = """
WITH asked AS MATERIALIZED (SELECT unnest($workers) AS worker, unnest($shown) AS shown),
     told AS (
    SELECT CASE WHEN shown THEN entity ELSE '' END AS name, floor((epoch(time) - $begin) / $every)::INTEGER AS bucket, {value} AS value
    FROM {{rows}} JOIN asked ON entity = worker WHERE job = $job)
SELECT name, bucket, CASE WHEN name = '' THEN median(value) ELSE avg(value) END AS value FROM told GROUP BY name, bucket
"""
"""In one pass: each that is shown, and as '' the median of the others that were asked for."""


def _workers(sources: Sources, job: str, since: float, until: float, metric: str) -> WorkerHeat:
    needs = ("step_s", "communication_s") if metric == COMPUTE else (metric,)
    value = "step_s - coalesce(communication_s, 0)" if metric == COMPUTE else quoted(metric)
    every = (until - since) / WORKER_COLUMNS
    slowest = sources.ask("steps", _SLOWEST.format(value=value), {"job": job, "most": MOST_WORKERS, "few": FEW_WORKERS, "peers": PEERS}, needs=needs, since=since, until=until)
    given = {"job": job, "every": every, "begin": since, "workers": slowest["entity"].tolist() if slowest else [], "shown": slowest["shown"].tolist() if slowest else []}
    found = sources.ask("steps", _WORKERS.format(value=value), given, needs=needs, since=since, until=until) if slowest else None
    times: Doubles = since + np.arange(WORKER_COLUMNS, dtype=np.float64) * every
    if found is None or slowest is None:
        nobody = np.empty((0, WORKER_COLUMNS), np.float32)
        return WorkerHeat(metric=metric, unit=unit_of(metric), times=times, workers=[], values=nobody, peers=np.full(WORKER_COLUMNS, np.nan, np.float32), every=every, total=0)
    names = ["", *sorted({*found["name"]} - {""}, key=_natural)]
    place = {name: index for index, name in enumerate(names)}
    values = np.full((len(names), WORKER_COLUMNS), np.nan, np.float32)
    values[[place[name] for name in found["name"]], np.clip(found["bucket"], 0, WORKER_COLUMNS - 1)] = found["value"]
    others, shown = np.split(held_back(values), [1])
    total = int(slowest["total"][0])
    peers = others[0] if total > len(shown) else _median(shown)
    return WorkerHeat(metric=metric, unit=unit_of(metric), times=times, workers=names[1:], values=shown, peers=peers, every=every, total=total)


def _median(values: Floats) -> Floats:
    """rows × times → times; NaN where nothing is known."""
    known = np.isfinite(values).any(axis=0)
    middle = np.full(values.shape[1], np.nan, np.float32)
    middle[known] = np.nanmedian(values[:, known], axis=0)
    return middle


def held_back(values: Floats) -> Floats:
    """rows × times: what is empty takes the next number of its row, as a step has lasted since the one before; pauses stay empty."""
    return np.array([_row_held_back(row) for row in values], np.float32).reshape(values.shape)


def _row_held_back(row: Floats) -> Floats:
    told = np.flatnonzero(np.isfinite(row))
    if len(told) < 2:
        return row
    upcoming = np.searchsorted(told, np.arange(told[0], told[-1] + 1))
    distance = told[upcoming] - np.arange(told[0], told[-1] + 1)
    filled = row.copy()
    filled[told[0] : told[-1] + 1] = np.where(distance < GAP_RATIO * np.median(np.diff(told)), row[told[upcoming]], np.float32(np.nan))
    return filled


def _natural(name: str) -> list[tuple[int, int, str]]:
    """node-9 before node-10. Numbers are compared by their digits: a name may be one of thousands, which Python makes no integer of."""
    import re

    parts = ((part, part.lstrip("0")) for part in re.split(r"([0-9]+)", name) if part)
    return [(0, len(digits), digits) if part[0] in "0123456789" else (1, 0, part) for part, digits in parts]

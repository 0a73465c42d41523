"""The numbers behind an incident, as plots of the minutes around it: what the accused did beside what the others did."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from dashboard.sources import Sources, quoted
from eagle_eye.types import Doubles, Incident, Kind

from . import steps
from .job import COMPUTE, held_back, with_gaps
from .names import unit_of

BEFORE_S = 120.0
AFTER_S = 120.0
POINTS = 240
MOST_PLOTS = 4
"""Two rows: enough to see who differs, few enough for every browser."""
OTHERS = "others (mean)"
STEP_METRICS = {"loss": "Loss", "step_s": "Step time, slowest worker"}
OF_NODES = ("cpu_percent", "memory_percent", "load_1")
OF_GPUS = ("utilisation_percent", "power_watts", "temperature_celsius", "sm_clock_mhz", "memory_percent")
OF_WORKERS = ("progress_age_s", "cpu_percent", "memory_used_percent")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """One plot around the incident."""

    title: str
    unit: str
    times: Doubles
    series: Mapping[str, Doubles]
    """Name → one number for each time, NaN where none was read: the accused by name, and what the others did."""
    mark: float
    """When the fault began."""

    @property
    def broken(self) -> bool:
        """Whether a number is missing between others."""
        return any(_broken(values) for values in self.series.values())


def _broken(values: Doubles) -> bool:
    known = np.flatnonzero(np.isfinite(values))
    return len(known) > 0 and bool(np.isnan(values[known[0] : known[-1]]).any())


def plots_of(sources: Sources, incident: Incident, nodes: Sequence[str]) -> tuple[Plot, ...]:
    """At most MOST_PLOTS; those about the accused first, then what it did to the job, which is always among them."""
    if not sources.config.history.enabled:
        return ()
    since, until = incident.since - BEFORE_S, max(incident.since, incident.time) + AFTER_S
    job = tuple(_of_job(sources, incident, since, until))
    accused = tuple(islice(_of_accused(sources, incident, nodes, since, until), MOST_PLOTS - len(job[:1])))
    return (*accused, *job)[:MOST_PLOTS]


# --- the job -----------------------------------------------------------------------------------------------------------

_OF_JOB = "SELECT max(done) AS time, avg(loss) AS loss, max(seconds) AS step_s FROM committed GROUP BY floor((done - $since) / $every) ORDER BY 1"


def _of_job(sources: Sources, incident: Incident, since: float, until: float) -> Iterator[Plot]:
    found = steps.ask(sources, _OF_JOB, {"every": (until - since) / POINTS}, job=incident.job, since=since, until=until)
    if found is None:
        return
    columns = with_gaps({name: np.asarray(column, float) for name, column in found.items()})
    order = ("step_s", "loss") if not incident.cause.startswith("loss") else ("loss", "step_s")
    for name in order:
        if np.isfinite(columns[name]).any():
            yield Plot(title=STEP_METRICS[name], unit=unit_of(name), times=columns["time"], series={"job": columns[name]}, mark=incident.since)


# --- the accused -------------------------------------------------------------------------------------------------------


def _of_accused(sources: Sources, incident: Incident, nodes: Sequence[str], since: float, until: float) -> Iterator[Plot]:
    """Metrics that evidence names come first, then those that tell most of its kind of thing."""
    kinds = {culprit.entity.kind for culprit in incident.culprits}
    named = [proof.metric for proof in incident.evidence if proof.metric]
    accused = [culprit.entity.name for culprit in incident.culprits]
    if Kind.WORKER in kinds:
        yield from _beside(sources, incident, "steps", (COMPUTE,), accused, since, until)
        yield from _beside(sources, incident, "worker", (*named, *OF_WORKERS), accused, since, until)
    if Kind.GPU in kinds:
        yield from _beside(sources, incident, "gpu", (*named, *OF_GPUS), accused, since, until)
    if nodes:
        if Kind.NODE in kinds:
            yield from _beside(sources, incident, "steps", (COMPUTE,), nodes, since, until, by="node")
        yield from _beside(sources, incident, "node", (*named, *OF_NODES), nodes, since, until, by="node")


_BESIDE = """
SELECT CASE WHEN list_contains($accused, {by}) THEN {by} ELSE '' END AS name, floor((epoch(time) - $begin) / $every)::INTEGER AS bucket, avg({value}) AS value
FROM {{rows}} WHERE job = $job GROUP BY ALL ORDER BY name, bucket
"""
_COMPUTE = "step_s - coalesce(communication_s, 0)"


def _beside(sources: Sources, incident: Incident, kind: str, wanted: Sequence[str], accused: Sequence[str], since: float, until: float, *, by: str = "entity") -> Iterator[Plot]:
    known = {name: table for table, names in sources.metrics(kind).items() for name in names}
    every = max(1.0, (until - since) / POINTS)
    for metric in [name for name in dict.fromkeys(wanted) if name in known or (name == COMPUTE and "step_s" in known)][:3]:
        computed = metric == COMPUTE
        question = _BESIDE.format(by=by, value=_COMPUTE if computed else quoted(metric))
        needs = ("step_s", "communication_s") if computed else (metric,)
        given = {"job": incident.job, "every": every, "begin": since, "accused": list(accused)}
        found = sources.ask("steps" if computed else known[metric], question, given, needs=needs, since=since, until=until)
        if found is not None and any(found["name"]):
            yield _plot(found, metric, since, every, incident.since)


def _plot(found: Mapping[str, Any], metric: str, since: float, every: float, mark: float) -> Plot:
    buckets = np.arange(int(found["bucket"].max()) + 1)
    series: dict[str, Doubles] = {}
    for name in dict.fromkeys(found["name"]):
        values = np.full((1, len(buckets)), np.nan, np.float32)
        mine = found["name"] == name
        values[0, found["bucket"][mine]] = found["value"][mine]
        series[name or OTHERS] = held_back(values)[0].astype(np.float64)
    ordered = {name: series[name] for name in sorted(series, key=lambda name: (name == OTHERS, name))}
    plain = metric.rpartition("_")[0] if unit_of(metric) else metric
    title = "Compute time of a step" if metric == COMPUTE else plain.replace("_", " ").capitalize()
    times: Doubles = since + (buckets.astype(np.float64) + 0.5) * every
    return Plot(title=title, unit=unit_of(metric), times=times, series=ordered, mark=mark)

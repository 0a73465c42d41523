"""The cluster: jobs, nodes with their health, and any metric of any node as a heat map."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from dashboard.errors import NoHistory
from dashboard.sources import SPAN_S, Sources, quoted
from eagle_eye.ledger import Cordon, IncidentRecord, JobRecord, Ledger
from eagle_eye.types import Floats, IncidentState, Kind, Layout

from . import steps
from .incident_cost import costs_of
from .names import node_of, unit_of

Health = Literal["healthy", "suspect", "healing", "cordoned", "silent"]
HEALTHS: tuple[Health, ...] = ("suspect", "healing", "cordoned", "silent", "healthy")
"""In the order in which they want to be looked at."""
JobStatus = Literal["running", "healing", "stalled", "over"]
NOT_OVER = (IncidentState.OPEN, IncidentState.CONTAINED, IncidentState.HEALING, IncidentState.FAILED)
SILENT_S = 15.0
"""A node whose newest number is so much older than the newest of all is silent."""
HEARD_S, HEARD_WINDOWS = 90.0, 3.0
"""Nodes are asked for in so many last seconds, or windows of the history; whoever was silent for longer is known from the layouts alone."""
STALLED_S = 60.0
"""A job without a step for so long, and for ten steps, is stalled; metrics of a window of files are always missing."""
SPREAD = 0.02
"""Numbers that differ by less than this share of the largest are alike: a heat map of them shows nothing."""
HEAT_S = 10.0
"""A heat map of a moment shows the mean of so many seconds before it."""
MOST_INCIDENTS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """One job in the span. NaN: not known."""

    job: str
    state: JobStatus
    nodes: int
    workers: int
    epoch: int
    step: int
    """The highest that was committed; -1: none in the span."""
    step_s: float
    """Median; of the slowest worker."""
    tokens_per_s: float
    """Over the span; steps that were done again do not count."""
    goodput: float
    """Share of the span, or of what the job has run of it, in which steps were done for the first time."""
    mfu_percent: float
    """Model FLOPs utilisation, mean over the workers that tell it."""
    open_incidents: int
    last_step: float
    """When the newest step was completed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """One node."""

    node: str
    job: str
    """'' if it takes part in none."""
    health: Health
    why: str
    """'' for a healthy one."""
    incident: str = ""
    """Id of the incident that says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The whole cluster at a glance: what wants to be looked at comes first."""

    jobs: tuple[JobRow, ...]
    nodes: tuple[NodeRow, ...]
    counts: Mapping[str, int]
    """Health → nodes, every health there."""
    newest: float
    """Time of the newest number of the span; NaN without any. The history is written in windows, so it lags by one."""


@dataclass(frozen=True, slots=True, order=True)
class HeatMetric:
    """One metric that a heat map can show."""

    table: str
    """kind/source, e.g. gpu/gpu."""
    name: str
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat:
    """One number for each node and slot. A slot is a GPU or a worker within its node; '' where a node has one number."""

    metric: str
    unit: str
    nodes: list[str]
    slots: list[str]
    values: Floats
    """nodes × slots; NaN: none."""
    entities: list[list[str]]
    """nodes × slots: UUID of the GPU, name of the worker or node; '' where there is none."""

    @property
    def flat(self) -> bool:
        """All numbers are alike, or there is none."""
        known = self.values[np.isfinite(self.values)]
        return not known.size or float(np.ptp(known)) <= SPREAD * float(np.abs(known).max())


@dataclass(slots=True)
class _IncidentSubjects:
    """Nodes that open incidents are about: node → (how, why, incident)."""

    found: dict[str, tuple[Health, str, str]] = field(default_factory=dict)
    open: Counter[str] = field(default_factory=Counter)
    healing: set[str] = field(default_factory=set)


def overview(sources: Sources, *, since: float, until: float) -> Overview:
    """Jobs and nodes from `since` to `until`. Works without a history: then the numbers are NaN and no node is silent."""
    return sources.remembered(("overview", since, until), lambda: _overview(sources, since, until), seconds=SPAN_S)


def metrics(sources: Sources) -> tuple[HeatMetric, ...]:
    """What a heat map can show. Raises NoHistory before the first number was written."""
    found = [HeatMetric(table, name, unit_of(name)) for table, names in sources.metrics().items() if not table.startswith("steps") for name in names]
    if not found:
        raise NoHistory(f"no number has been written to {sources.config.history.location or sources.config.state / 'history'} yet. It is written every {sources.config.history.file_s:g} s once a job runs.")
    return tuple(sorted(found, key=lambda metric: (_KINDS.get(metric.table.partition("/")[0], 9), metric)))


def heat(sources: Sources, *, metric: str, table: str, at: float | None = None, since: float | None = None, until: float | None = None, job: str = "") -> Heat:
    """The mean of each entity from `since` to `until`, or over the HEAT_S before `at`. Raises NoHistory."""
    until = until if until is not None else (sources.now() if at is None else at)
    since = since if since is not None else until - HEAT_S
    return sources.remembered(("heat", metric, table, since, until, job), lambda: _heat(sources, metric, table, since, until, job), seconds=SPAN_S)


# --- overview ----------------------------------------------------------------------------------------------------------


def _overview(sources: Sources, since: float, until: float) -> Overview:
    ledger = sources.ledger
    facts, cordons = ledger.jobs(), ledger.cordoned()
    kept = _present(ledger)
    heard = _heard(sources, since, until)
    blamed = _blamed(kept, facts)
    workers_per_node = {job: each.layout.nodes for job, each in facts.items()}
    lines = tuple(sorted(_nodes(workers_per_node, cordons, heard, blamed), key=lambda line: (HEALTHS.index(line.health), line.node)))
    counted = Counter(line.health for line in lines)
    return Overview(
        jobs=tuple(_jobs(sources, facts, workers_per_node, blamed, heard, since, until)), nodes=lines, counts={health: counted[health] for health in HEALTHS},
        newest=max((time for _, time in heard.values()), default=float("nan")),
    )  # fmt: skip


def _present(ledger: Ledger) -> list[IncidentRecord]:
    """Incidents that are not over, without those that came back as another one: that one is looked at."""
    kept = [record for record in ledger.incidents(limit=MOST_INCIDENTS) if record.state in NOT_OVER]
    later = costs_of(ledger, [record for record in kept if record.state is IncidentState.FAILED])
    return [record for record in kept if not later.superseded_by(record)]


def heard_s(sources: Sources) -> float:
    """How far back nodes are asked for, seconds."""
    return max(HEARD_S, HEARD_WINDOWS * sources.config.history.file_s)


def _heard(sources: Sources, since: float, until: float) -> dict[str, tuple[str, float]]:
    """Node → (job, time of its newest number)."""
    if not sources.config.history.enabled:
        return {}
    known = sources.metrics()
    table = next((name for name in (*(name for name in known if name.startswith("node/")), *known) if not name.startswith("steps")), "")
    question = "SELECT node, any_value(job) AS job, epoch(max(time)) AS newest FROM {rows} GROUP BY node"
    found = sources.ask(table, question, since=max(since, until - heard_s(sources)), until=until) if table else None
    if found is None:
        return {}
    return {node: (job, time) for node, job, time in zip(found["node"], found["job"], found["newest"].tolist(), strict=True)}


def _blamed(kept: Iterable[IncidentRecord], facts: Mapping[str, JobRecord]) -> _IncidentSubjects:
    accused = {culprit.entity.kind for record in kept for culprit in record.incident.culprits}
    gpus = {place.gpu: place.node for each in facts.values() for place in each.layout.placements if place.gpu} if Kind.GPU in accused else {}
    blamed = _IncidentSubjects()
    for record in kept:
        incident = record.incident
        blamed.open[incident.job] += 1
        healing = record.state in (IncidentState.HEALING, IncidentState.CONTAINED)
        if healing:
            blamed.healing.add(incident.job)
        for culprit in incident.culprits:
            node = node_of(culprit.entity, gpus)
            if node and (node not in blamed.found or not healing):
                blamed.found[node] = ("healing" if healing else "suspect", f"{incident.cause} ({record.state})", incident.id)
    return blamed


def _nodes(workers_per_node: Mapping[str, Sequence[str]], cordons: Iterable[Cordon], heard: Mapping[str, tuple[str, float]], blamed: _IncidentSubjects) -> Iterator[NodeRow]:
    out = {cordon.node: cordon for cordon in cordons}
    taking_part = {node: job for job, nodes in workers_per_node.items() for node in nodes}
    newest = max((time for _, time in heard.values()), default=float("nan"))
    for node in dict.fromkeys((*taking_part, *heard, *out, *blamed.found)):
        told, time = heard.get(node, ("", float("-inf")))
        job = taking_part.get(node, "" if told.startswith("idle/") else told)
        health: Health
        if node in out:
            health, why, incident = "cordoned", out[node].reason or f"by plan {out[node].plan}", ""
        elif node in blamed.found:
            health, why, incident = blamed.found[node]
        elif heard and newest - time > SILENT_S:
            health, why, incident = "silent", f"no number for {newest - time:.0f} s" if time > 0 else "no number in this time", ""
        else:
            health, why, incident = "healthy", "", ""
        yield NodeRow(node=node, job=job, health=health, why=why, incident=incident)


# --- jobs --------------------------------------------------------------------------------------------------------------

_JOBS = """
SELECT job, max(step) AS step, max(epoch) AS epoch, arg_max(workers, done) AS workers, median(seconds) AS step_s,
       sum(tokens) FILTER (first_time) AS tokens, sum(productive) AS productive, min(done - coalesce(seconds, 0)) AS began, max(done) AS last_step{mfu}
FROM committed GROUP BY job ORDER BY job
"""


def _jobs(
    sources: Sources, facts: Mapping[str, JobRecord], workers_per_node: Mapping[str, Sequence[str]], blamed: _IncidentSubjects, heard: Mapping[str, tuple[str, float]], since: float, until: float
) -> Iterator[JobRow]:
    nodes = Counter(job for job, _ in heard.values())
    told = _stepped(sources, since, until)
    for job in sorted({*facts, *told}):
        layout = facts[job].layout if job in facts else None
        numbers = told.get(job, {})
        last = numbers.get("last_step", float("nan"))
        span = until - max(since, numbers.get("began", since))
        yield JobRow(
            job=job, state=_state(job, layout, blamed, numbers, until), nodes=len(workers_per_node[job]) if layout else nodes[job],
            workers=len(layout.placements) if layout else int(numbers.get("workers", 0)),
            epoch=layout.epoch if layout else int(numbers.get("epoch", 0)), step=int(numbers.get("step", -1)), step_s=numbers.get("step_s", float("nan")),
            tokens_per_s=numbers.get("tokens", float("nan")) / span if span > 0 else float("nan"),
            goodput=min(1.0, numbers["productive"] / span) if numbers and span > 0 else float("nan"), mfu_percent=numbers.get(steps.MFU, float("nan")), open_incidents=blamed.open[job], last_step=last,
        )  # fmt: skip


def _stepped(sources: Sources, since: float, until: float) -> dict[str, dict[str, float]]:
    if not sources.config.history.enabled:
        return {}
    mfu = f", avg({steps.MFU}) AS {steps.MFU}" if steps.MFU in steps.averages(sources) else ""
    found = steps.ask(sources, _JOBS.format(mfu=mfu), since=since, until=until)
    if found is None:
        return {}
    jobs = found.pop("job")
    return {job: {name: float(column[row]) for name, column in found.items()} for row, job in enumerate(jobs)}


def _state(job: str, layout: Layout | None, blamed: _IncidentSubjects, numbers: Mapping[str, float], until: float) -> JobStatus:
    if layout is None:
        return "over"
    if job in blamed.healing:
        return "healing"
    patience = max(STALLED_S, 10 * numbers.get("step_s", 0.0))
    return "running" if until - numbers.get("last_step", -np.inf) <= patience or until - layout.time <= patience else "stalled"


# --- heat map ----------------------------------------------------------------------------------------------------------

_KINDS = {"gpu": 0, "node": 1, "worker": 2}
_HEAT = """
SELECT node, entity, avg({metric}) AS value FROM {{rows}} {where} GROUP BY node, entity ORDER BY node, entity
"""


def _heat(sources: Sources, metric: str, table: str, since: float, until: float, job: str) -> Heat:
    if metric not in sources.metrics(table).get(table, ()):
        raise NoHistory(f"{table} has no metric {metric!r}: choose another one")
    question = _HEAT.format(metric=quoted(metric), where="WHERE job = $job" if job else "")
    found = sources.ask(table, question, {"job": job} if job else {}, needs=(metric,), since=since, until=until)
    if found is None:
        raise NoHistory(f"{table} has no metric of this time. Choose another time: metrics are written every {sources.config.history.file_s:g} s.")
    return _laid_out(found, metric, table)


def _laid_out(found: Mapping[str, Any], metric: str, table: str) -> Heat:
    """Rows in the order of node and entity → a matrix."""
    begins = np.flatnonzero(np.r_[True, found["node"][1:] != found["node"][:-1]])
    nodes = found["node"][begins]
    row = np.repeat(np.arange(len(nodes)), np.diff(np.r_[begins, len(found["node"])]))
    kind = table.partition("/")[0]
    place, slots = _slots(found["entity"], row, kind)
    values = np.full((len(nodes), len(slots)), np.nan, np.float32)
    values[row, place] = np.ma.filled(np.ma.asarray(found["value"], np.float32), np.nan)
    entities = np.full((len(nodes), len(slots)), "", object)
    entities[row, place] = found["entity"]
    return Heat(metric=metric, unit=unit_of(metric), nodes=nodes.tolist(), slots=slots, values=values, entities=entities.tolist())


def _slots(entities: Any, row: Any, kind: str) -> tuple[Any, list[str]]:
    """(slot of each row, names of the slots): workers, links and mounts say their own, GPUs count within their node."""
    if kind in ("worker", "link", "mount"):
        own = [name.rpartition("/")[2] if kind == "worker" else name.partition("/")[2] for name in entities]
        names, place = np.unique(own, return_inverse=True)
        order = sorted(range(len(names)), key=lambda index: (len(names[index]), names[index]))
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        return rank[place], [str(names[index]) for index in order]
    begins = np.flatnonzero(np.r_[True, row[1:] != row[:-1]])
    place = np.arange(len(row)) - np.repeat(begins, np.diff(np.r_[begins, len(row)]))
    most = int(place.max()) + 1 if len(place) else 0
    return place, [str(index) for index in range(most)] if kind == "gpu" else [""] * most

"""Exporters that a site runs already (dcgm-exporter, node_exporter, xpu_timer, any): their Prometheus pages become metrics of ours; the parts are in collectors/site/.

Which series becomes which metric is a table: site/exporter_metrics.toml, and a site's own rows. Endpoints are asked one after the other, each with limits
for time and bytes; one that fails is told, is asked less often and costs the others nothing but its time. What a collector of the agent measures
itself is not taken from an exporter: the agent leaves it out (agent/reading_precedence.py).
"""

import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

import msgspec
import numpy as np

from eagle_eye.clock import Clock, SystemClock
from eagle_eye.ranges import Count, Seconds
from eagle_eye.types import Event, Kind, Reading

from .agent.job_directory import JobDirectory, LocalJob
from .agent.unsigned_event import unsigned_event
from .site.exporter_client import ExporterAddress, PageError, fetch_page, parse_endpoint
from .site.exporter_page import NO_NUMBER, read_page
from .site.exporter_table import ExporterMetric, ExporterTable
from .site.scraped_metrics import Cell, ScrapedMetrics
from .site.source_health import SourceHealth

log = logging.getLogger(__name__)

RUN_S = 5.0
"""No further endpoint is asked in a run that has taken so long; the next run begins with it."""
NO_ENDPOINT = 'no endpoint is named; name some: [collectors.scrape] endpoints = ["http://127.0.0.1:9400/metrics"]'
REASONS_MOST = 20
"""That are remembered of one endpoint, so that each is told once."""
ORDINARY = frozenset({NO_NUMBER})
"""NaN is how exporters write that there is nothing to tell."""

Endpoints = Annotated[tuple[str, ...], msgspec.Meta(max_length=32)]


@dataclass
class ScrapedEndpoint:
    """One endpoint over time: whether it works, and what of its page cannot be used. No I/O."""

    endpoint: ExporterAddress
    cells: ScrapedMetrics
    asked: float = -math.inf
    """Monotonic time."""
    numbers: dict[Cell, float] = field(default_factory=dict)
    """Of the present run."""
    health: SourceHealth = field(default_factory=SourceHealth)
    left_out: Counter[str] = field(default_factory=Counter)
    """Why series were left out → how many, since the agent's start."""
    _reasons: set[str] = field(default_factory=set)

    def count(self, left_out: Counter[str]) -> list[str]:
        """Take in what could not be used; returns the reasons that are new here."""
        self.left_out.update(left_out)
        return list(self._new(reason for reason in left_out if reason not in ORDINARY))

    def _new(self, reasons: Iterable[str]) -> Iterable[str]:
        for reason in reasons:
            if reason not in self._reasons and len(self._reasons) < REASONS_MOST:
                self._reasons.add(reason)
                yield reason


@dataclass
class ScrapeCollector:
    """Metrics of GPUs, nodes, links, mounts and workers from exporters of this node; `scrape.left_out` events. Reads nothing unless endpoints are named."""

    endpoints: Endpoints = ()
    """Addresses of pages on this node, such as "http://127.0.0.1:9400/metrics". Where two have the same series, the first counts."""
    metrics: tuple[ExporterMetric, ...] = ()
    """Rows of your own, [[collectors.scrape.metrics]], in the form of site/exporter_metrics.toml; they stand for all rows of this release about the same series."""
    page_s: Annotated[float, msgspec.Meta(gt=0, le=60)] = 2.0
    """Seconds within which a whole page has to be there."""
    series: Count = 2000
    """Of one page, those of the table; further ones are left out."""
    node: str = ""
    """Name of this node; set by the agent."""
    run_dir: Path = Path("/run/eagle-eye")
    """Run directory with the launchers' job files; set by the agent."""
    clock: Clock = field(default_factory=SystemClock)

    interval_s: ClassVar[Seconds] = 15.0
    timeout_s: ClassVar[Seconds] = 10.0

    def __post_init__(self) -> None:
        """Raises ValueError for an endpoint or a row that cannot be used."""
        self._table = ExporterTable(self.metrics)
        self._jobs = JobDirectory(Path(self.run_dir))
        self._local_jobs: tuple[LocalJob, ...] = ()
        self._endpoints = [ScrapedEndpoint(parse_endpoint(url), ScrapedMetrics(self._table, self._entity)) for url in dict.fromkeys(self.endpoints)]
        self._seen: set[tuple[Kind, str]] = set()
        """Metrics that were there once: they keep their columns."""
        self.doing = ""

    @property
    def unavailable(self) -> str:
        """Which endpoints give nothing, and why."""
        if not self._endpoints:
            return NO_ENDPOINT
        failing = [f"{each.endpoint.name}: {each.health.failing}" for each in self._endpoints if each.health.failing]
        others = f" ({len(self._endpoints) - len(failing)} of {len(self._endpoints)} are read)" if len(failing) < len(self._endpoints) else ""
        return ", ".join(failing) + others if failing else ""

    def collect(self) -> list[Reading | Event]:
        if not self._endpoints:
            return []
        began = self.clock.monotonic()
        self._local_jobs = self._jobs.read()
        found: list[Reading | Event] = []
        for each in sorted(self._endpoints, key=lambda each: each.asked):
            each.numbers = {}
            if self.clock.monotonic() - began <= RUN_S and each.health.is_due(began):
                found += self._scrape(each)
        cells: dict[Cell, float] = {}
        for each in reversed(self._endpoints):  # the first counts
            cells |= each.numbers
        return [*found, *self._readings(cells)]

    def _scrape(self, each: ScrapedEndpoint) -> Iterator[Event]:
        """Ask one, and keep its numbers."""
        each.asked = self.clock.monotonic()
        self.doing = f"the page of {each.endpoint.name}"
        try:
            body = fetch_page(each.endpoint, self.page_s, self.clock)
            page = read_page(body, self._table.series, self.series, self.clock.now())
            if not page.values and not page.left_out:
                raise PageError(f"none of its {len(body)} bytes is a series of the table")
        except PageError as error:
            if each.health.failed(str(error), self.clock.monotonic()):
                yield self._health("collector.failing", each, str(error))
            return
        finally:
            self.doing = ""
        if each.health.worked():
            yield self._health("collector.recovered", each, "it gives its page again")
        each.numbers, left_out = each.cells.update(page.values, self.clock.monotonic())
        yield from self._left_out(each, page.left_out + left_out)

    def _entity(self, kind: Kind, labels: tuple[str, ...]) -> str:
        """The name of what these labels name on this node; '' for none."""
        if kind is Kind.NODE:
            return self.node
        if not all(labels):
            return ""
        if kind is Kind.LINK:
            return f"{self.node}/{':'.join(labels)}"
        if kind is Kind.MOUNT:
            return f"{self.node}{labels[0]}" if labels[0].startswith("/") else ""
        return labels[0] if kind is Kind.GPU else self._worker(labels[0])

    def _worker(self, rank: str) -> str:
        """With two jobs here, nobody can say whose rank it is."""
        jobs = [job for job in self._local_jobs if not job.stopped and job.workers]
        found = [worker.worker for job in jobs for worker in job.workers if str(worker.rank) == rank]
        return found[0] if len(jobs) == 1 and len(found) == 1 else ""

    # --- what is told

    def _readings(self, cells: dict[Cell, float]) -> Iterator[Reading]:
        """One of each kind, in the columns that it has had so far."""
        self._seen |= {(cell.kind, cell.name) for cell in cells}
        for kind in dict.fromkeys(cell.kind for cell in cells):
            entities = tuple(dict.fromkeys(cell.entity for cell in cells if cell.kind is kind))
            names = tuple(name for name in self._table.names[kind] if (kind, name) in self._seen)
            rows = [[cells.get(Cell(kind, entity, name), math.nan) for name in names] for entity in entities]
            yield Reading(source="scrape", kind=kind, entities=entities, names=names, matrix=np.array(rows, np.float32), time=self.clock.now())

    def _health(self, name: str, each: ScrapedEndpoint, reason: str) -> Event:
        """As the agent tells it of a collector: missing telemetry must not look like health."""
        collector = f"scrape {each.endpoint.name}"
        log.warning("%s: %s: %s", name, collector, reason)
        return unsigned_event(name, Kind.NODE, self.node, self.clock.now(), f"{collector}: {reason}", "", collector=collector, reason=reason)

    def _left_out(self, each: ScrapedEndpoint, left_out: Counter[str]) -> Iterator[Event]:
        """Once for each reason; the log has the counts so far."""
        if new := each.count(left_out):
            counts = ", ".join(f"{left_out[reason]} {reason}" for reason in new)
            message = f"series of {each.endpoint.name} are left out: {counts}"
            log.warning("%s", message)
            yield unsigned_event("scrape.left_out", Kind.NODE, self.node, self.clock.now(), message, "", endpoint=each.endpoint.name, reasons=counts)

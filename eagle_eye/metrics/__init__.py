"""Our own metrics, for Prometheus: aggregates and states, never raw telemetry.

    snapshots ──► JobMetrics ───────────────┐
    events ──► EventMetrics ─────────────┤
    ledger ──► HealingMetrics ───────────┼─► Metrics.collect() ─► /metrics
    process ─► ProcessMetrics (a value) ─┘

Names follow Prometheus' rules (prefix, base units, `_total` for counters); labels are bounded. docs/metrics.md lists all.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from eagle_eye import __version__
from eagle_eye.clock import Clock
from eagle_eye.types import Event
from eagle_eye.types.job_snapshot import JobSnapshot

from .event_metrics import EventMetrics
from .healing_metrics import HealingMetrics, LedgerView
from .job_metrics import JobMetrics
from .process_metrics import PartitionMetrics, ProcessMetrics, families_of

__all__ = ["LedgerView", "Metrics", "PartitionMetrics", "ProcessMetrics"]


class MetricSource(Protocol):
    """Anything that has metrics of its own to show at a scrape."""

    def collect(self) -> Iterable[Metric]: ...


class Metrics:
    """Everything that one process shows. Thread-safe: fed by its services, read by the HTTP port."""

    def __init__(self, process: Callable[[], ProcessMetrics], ledger: LedgerView, clock: Clock) -> None:
        """`process` is asked at each scrape. `ledger` is read while this process leads, so that nothing is counted twice."""
        self.registry = CollectorRegistry(auto_describe=False)
        self._process = process
        self._jobs = JobMetrics()
        self._events = EventMetrics()
        self._healing = HealingMetrics(ledger, clock)
        self._more: list[MetricSource] = []
        self._lock = threading.Lock()
        self.registry.register(self)  # our own `collect` is all that it asks for
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)

    def observe_job(self, snapshot: JobSnapshot) -> None:
        """Observe what a mark carries of a job; cheap enough for every tick of every job."""
        with self._lock:
            self._jobs.observe_job(snapshot)

    def observe_events(self, events: Sequence[Event]) -> None:
        """Events of the stream, each once."""
        if events:
            with self._lock:
                self._events.observe_events(events)

    def add(self, source: MetricSource) -> None:
        """Export the metrics of one more service."""
        self._more.append(source)

    def collect(self) -> Iterator[Metric]:
        """All families; asked by the registry at each scrape."""
        yield InfoMetricFamily("eagle_eye_build", "The running program.", value={"version": __version__})
        values = self._process()
        yield from families_of(values)
        with self._lock:
            families = [*self._jobs.collect(), *self._events.collect()]
        yield from families
        if values.leads:
            yield from self._healing.collect(values.leads_since)
        for source in self._more:
            yield from source.collect()

    def scrape(self, accept: str = "") -> tuple[bytes, str]:
        """(body, content type), in the format that the scraper asks for."""
        encode, content_type = choose_encoder(accept)
        body: Any = encode(self.registry)
        return body, content_type

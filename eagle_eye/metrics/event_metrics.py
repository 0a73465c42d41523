"""Metrics of events, of failing collectors, and of records that nodes had to drop."""

from collections import Counter
from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from eagle_eye.event_attributes import integer_attribute
from eagle_eye.types import Event

NAMES_KEPT = 64
"""Names of events and collectors come over the wire: those beyond count as `other`."""
FAILING_KEPT = 20_000
OTHER = "other"


class EventMetrics:
    """Counts events by name, failures of collectors and records that spools had to drop."""

    def __init__(self) -> None:
        self._events: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._failing: dict[tuple[str, str, str], None] = {}
        """Node, collector, and what alone it leaves out there."""
        """(node, collector) that fail now."""
        self._dropped = 0

    def observe_events(self, events: Sequence[Event]) -> None:
        """Take the events of one mark in."""
        for event in events:
            self._count(self._events, event.name, 1)
            if event.name in ("collector.failing", "collector.recovered"):
                self._collector(event)
            elif event.name == "spool.dropped":
                self._dropped += max(1, integer_attribute(event, "count"))

    def collect(self) -> Iterator[Metric]:
        """Four families."""
        events = CounterMetricFamily("eagle_eye_events", "Events that were read from the stream, by name.", labels=["event"])
        for name, count in sorted(self._events.items()):
            events.add_metric([name], count)
        failures = CounterMetricFamily("eagle_eye_collector_failures", "Failures of collectors on nodes.", labels=["collector"])
        for name, count in sorted(self._failures.items()):
            failures.add_metric([name], count)
        failing = GaugeMetricFamily("eagle_eye_collectors_failing", "Nodes on which a collector fails now.", labels=["collector"])
        now = Counter(self._label(self._failures, collector) for _, collector in {(node, collector) for node, collector, _ in self._failing})
        for name in sorted(self._failures):
            failing.add_metric([name], now[name])
        yield from (events, failures, failing)
        yield CounterMetricFamily("eagle_eye_node_dropped_records", "Events of agents that had to drop records, one or more each.", value=self._dropped)

    def _collector(self, event: Event) -> None:
        name = event.attributes.get("collector", OTHER)
        key = (event.node, name, event.attributes.get("about", ""))
        if event.name == "collector.recovered":
            self._failing.pop(key, None)
        elif key not in self._failing:
            self._count(self._failures, name, 1)
            if len(self._failing) < FAILING_KEPT:
                self._failing[key] = None

    def _count(self, counter: Counter[str], name: str, count: int) -> None:
        known = name in counter or len(counter) < NAMES_KEPT
        counter[name if known else OTHER] += count

    def _label(self, counter: Counter[str], name: str) -> str:
        return name if name in counter else OTHER

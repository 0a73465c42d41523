"""Metrics of incidents and of what was done about them, read from the ledger while this process leads.

Counters begin at zero when it begins to lead: each leader counts what came in its own time, so that sums over
processes are right.
"""

import logging
from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from eagle_eye.clock import Clock
from eagle_eye.errors import LedgerError
from eagle_eye.ledger.metric_queries import IncidentMetricRow, VerdictMetricRow
from eagle_eye.types import Breaker, Outcome

OVERLAP_S = 600.0
"""A row may be written so long after the time in it."""
BUCKETS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
ENDED = ("done", "failed", "stale")
KEPT = 10_000
log = logging.getLogger(__name__)


class LedgerView(Protocol):
    """What is read of the ledger."""

    def incidents_present(self, limit: int = ...) -> Sequence[IncidentMetricRow]: ...
    def incidents_opened(self, since: float, limit: int = ...) -> Sequence[IncidentMetricRow]: ...
    def outcomes_since(self, since: float, limit: int = ...) -> Sequence[Outcome]: ...
    def verdicts_since(self, since: float, *, after: int = ..., limit: int = ...) -> Sequence[VerdictMetricRow]: ...
    def breakers(self, *, at: float | None = ..., limit: int = ...) -> Sequence[Breaker]: ...


class _SeenKeys:
    """True the first time that it is asked for a key; the oldest keys are forgotten."""

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, None] = OrderedDict()

    def __call__(self, key: Hashable) -> bool:
        if key in self._known:
            return False
        self._known[key] = None
        if len(self._known) > KEPT:
            self._known.popitem(last=False)
        return True


@dataclass(slots=True)
class _Histogram:
    """Seconds, in buckets."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    total: float = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.total += seconds

    def family(self, name: str, text: str) -> Metric:
        labels = [*(str(bound) for bound in BUCKETS_S), "+Inf"]
        reached = [sum(self.counts[: place + 1]) for place in range(len(labels))]
        return HistogramMetricFamily(name, text, buckets=list(zip(labels, reached, strict=True)), sum_value=self.total)


class HealingMetrics:
    """Incidents now and so far, outcomes of actions, verdicts of guards, and how long it all took."""

    def __init__(self, ledger: LedgerView, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock
        self._present: Counter[tuple[str, str, str]] = Counter()
        self._opened: Counter[tuple[str, str]] = Counter()
        self._breakers: Counter[str] = Counter()
        self._actions: Counter[tuple[str, str]] = Counter()
        self._verdicts: Counter[tuple[str, str]] = Counter()
        self._detection, self._transition = _Histogram(), _Histogram()
        self._first_time = _SeenKeys()
        self._newest_incident = self._newest_outcome = 0.0
        self._last_verdict = 0

    def collect(self, since: float) -> Iterator[Metric]:
        """Read what is new since this process leads, and show everything; while the ledger is away, what was known."""
        try:
            self._read(since)
        except LedgerError as error:
            log.warning("the metrics of the ledger are those of an earlier scrape: %s", error)
        text = "Incidents that are not over. failed: no action helped, operator action needed."
        present = GaugeMetricFamily("eagle_eye_incidents", text, labels=["cause", "severity", "state"])
        for values, count in sorted(self._present.items()):
            present.add_metric(list(values), count)
        yield present
        breakers = GaugeMetricFamily("eagle_eye_breakers_open", "Open breakers: the action did not help and is not tried again until an operator closes it.", labels=["action"])
        for name, count in sorted(self._breakers.items()):
            breakers.add_metric([name], count)
        yield breakers
        for name, text, labels, counter in (
            ("eagle_eye_incidents_opened", "Incidents, with the cause that they were first seen with.", ["cause", "severity"], self._opened),
            ("eagle_eye_actions", "Actions that ended, by outcome: done, failed or stale.", ["action", "outcome"], self._actions),
            ("eagle_eye_guard_verdicts", "Guards' verdicts on plans: allow, hold or refuse.", ["guard", "verdict"], self._verdicts),
        ):
            family = CounterMetricFamily(name, text, labels=labels)
            for pair, count in sorted(counter.items()):
                family.add_metric(list(pair), count)
            yield family
        yield self._detection.family("eagle_eye_detection_seconds", "From the beginning of a fault to its incident.")
        yield self._transition.family("eagle_eye_transition_seconds", "From an incident to the first step after its repair.")

    # --- reading ---------------------------------------------------------------------------------------------------

    def _read(self, since: float) -> None:
        present = self._ledger.incidents_present()
        self._present = Counter((each.cause, each.severity, each.state) for each in present)
        self._breakers = Counter(each.action for each in self._ledger.breakers(at=self._clock.now()))
        for line in self._ledger.incidents_opened(max(since, self._newest_incident - OVERLAP_S)):
            self._newest_incident = max(self._newest_incident, line.opened)
            if self._first_time(("incident", line.id)):
                self._opened[line.cause, line.severity] += 1
        for outcome in self._ledger.outcomes_since(max(since, self._newest_outcome - OVERLAP_S)):
            self._newest_outcome = max(self._newest_outcome, outcome.time)
            self._take(outcome)
        for verdict in self._ledger.verdicts_since(since, after=self._last_verdict):
            self._last_verdict = verdict.number
            self._verdicts[verdict.guard, verdict.verdict] += 1

    def _take(self, outcome: Outcome) -> None:
        """The same plan may be reported again when more is known about it."""
        if outcome.state in ENDED and self._first_time(("action", outcome.plan)):
            self._actions[outcome.action, outcome.state] += 1
        if outcome.detection_s is not None and self._first_time(("detection", outcome.incident)):
            self._detection.observe(outcome.detection_s)
        if outcome.transition_s is not None and self._first_time(("transition", outcome.plan)):
            self._transition.observe(outcome.transition_s)

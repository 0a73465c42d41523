"""Answers events at once, from the forecast for the cluster as it now stands, while the next forecast is being made."""

import logging
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass

from .allocation import Allocation, solve
from .forecast import Forecast
from .next_events import Event, situation_after
from .tasks import Cluster

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Answer:
    """The plan after an event."""

    allocation: Allocation
    foreseen: bool
    """False: it was solved afresh, for it was no single next event, or the forecast was not ready yet."""


@dataclass(frozen=True, slots=True)
class _Known:
    """The cluster and its forecast, replaced as one: who reads it can never see the one without the other."""

    cluster: Cluster
    forecast: Forecast | None


class Standby:
    """Keeps a forecast ready. `answer` takes no lock and waits for nothing; `change` returns at once.

    `executor` makes the forecasts, one thread is enough. It is the caller's, who ends it.
    """

    def __init__(self, cluster: Cluster, executor: Executor) -> None:
        self._executor = executor
        self._known = _Known(cluster, None)
        self.change(cluster)

    @property
    def ready(self) -> bool:
        """Whether the forecast for the present cluster is there."""
        return self._known.forecast is not None

    def change(self, cluster: Cluster) -> "Future[None]":
        """The cluster is another one from now on (a plan was carried out, T was measured anew)."""
        self._known = _Known(cluster, None)
        return self._executor.submit(self._prepare, cluster)

    def answer(self, events: Sequence[Event]) -> Answer:
        """The plan after these events, which happened together; ConfigError if they cannot have."""
        known = self._known
        foreseen = known.forecast.plan(events) if known.forecast is not None else None
        if foreseen is not None:
            return Answer(foreseen, foreseen=True)
        return Answer(solve(situation_after(known.cluster, events)), foreseen=False)

    def _prepare(self, cluster: Cluster) -> None:
        if self._known.cluster is not cluster:
            return  # overtaken by a later change before it began
        try:
            forecast = Forecast(cluster)
        except Exception:  # what failed in a thread nobody waits for would be lost; answers are solved afresh meanwhile
            log.exception("no forecast for a cluster of %d workers and %d tasks", cluster.workers, len(cluster.tasks))
            raise
        known = self._known
        if known.cluster is cluster:
            self._known = _Known(cluster, forecast)

"""Answers events at once, from the event_table for the cluster as it now stands, while the next event_table is being made."""

import logging
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass

from .allocation import Allocation, solve
from .event_table import EventTable
from .next_events import NextEvent, problem_after
from .tasks import TaskCluster

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TableLookup:
    """The plan after an event."""

    allocation: Allocation
    precomputed: bool
    """False: it was solved afresh, for it was no single next event, or the event_table was not ready yet."""


@dataclass(frozen=True, slots=True)
class _Known:
    """The cluster and its event_table, replaced as one: who reads it can never see the one without the other."""

    cluster: TaskCluster
    event_table: EventTable | None


class StandbyTable:
    """Keeps a event_table ready. `answer` takes no lock and waits for nothing; `change` returns at once.

    `executor` makes the event tables, one thread is enough. It is the caller's, who ends it.
    """

    def __init__(self, cluster: TaskCluster, executor: Executor) -> None:
        self._executor = executor
        self._known = _Known(cluster, None)
        self.change(cluster)

    @property
    def ready(self) -> bool:
        """Whether the event_table for the present cluster is there."""
        return self._known.event_table is not None

    def change(self, cluster: TaskCluster) -> "Future[None]":
        """The cluster is another one from now on (a plan was carried out, T was measured anew)."""
        self._known = _Known(cluster, None)
        return self._executor.submit(self._prepare, cluster)

    def answer(self, events: Sequence[NextEvent]) -> TableLookup:
        """The plan after these events, which happened together; ConfigError if they cannot have."""
        known = self._known
        precomputed = known.event_table.allocation_after(events) if known.event_table is not None else None
        if precomputed is not None:
            return TableLookup(precomputed, precomputed=True)
        return TableLookup(solve(problem_after(known.cluster, events)), precomputed=False)

    def _prepare(self, cluster: TaskCluster) -> None:
        if self._known.cluster is not cluster:
            return  # overtaken by a later change before it began
        try:
            event_table = EventTable(cluster)
        except Exception:  # what failed in a thread nobody waits for would be lost; answers are solved afresh meanwhile
            log.exception("no event_table for a cluster of %d workers and %d tasks", cluster.workers, len(cluster.tasks))
            raise
        known = self._known
        if known.cluster is cluster:
            self._known = _Known(cluster, event_table)

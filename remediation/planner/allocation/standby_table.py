"""The event table of the present cluster, rebuilt in the background after each change."""

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
    """The allocation after an event."""

    allocation: Allocation
    precomputed: bool
    """False: solved on request, because it was not a single next event or the table was not ready yet."""


@dataclass(frozen=True, slots=True)
class _TableOfCluster:
    """The cluster and its table, replaced together: a reader never sees one without the other."""

    cluster: TaskCluster
    event_table: EventTable | None


class StandbyTable:
    """`answer` takes no lock and never waits; `change` returns at once.

    `executor` builds the tables, one thread is enough. The caller owns it and shuts it down.
    """

    def __init__(self, cluster: TaskCluster, executor: Executor) -> None:
        self._executor = executor
        self._known = _TableOfCluster(cluster, None)
        self.change(cluster)

    @property
    def ready(self) -> bool:
        """Whether the table of the present cluster is built."""
        return self._known.event_table is not None

    def change(self, cluster: TaskCluster) -> "Future[None]":
        """Replace the cluster (an allocation was carried out, T was measured again) and start to rebuild the table."""
        self._known = _TableOfCluster(cluster, None)
        return self._executor.submit(self._prepare, cluster)

    def answer(self, events: Sequence[NextEvent]) -> TableLookup:
        """The allocation after these simultaneous events. Raises ConfigError for events that cannot happen."""
        known = self._known
        precomputed = known.event_table.allocation_after(events) if known.event_table is not None else None
        if precomputed is not None:
            return TableLookup(precomputed, precomputed=True)
        return TableLookup(solve(problem_after(known.cluster, events)), precomputed=False)

    def _prepare(self, cluster: TaskCluster) -> None:
        if self._known.cluster is not cluster:
            return  # a later change came first
        try:
            event_table = EventTable(cluster)
        except Exception:  # nobody waits for this thread's result; until the next change answers are solved on request
            log.exception("no event table for a cluster of %d workers and %d tasks", cluster.workers, len(cluster.tasks))
            raise
        known = self._known
        if known.cluster is cluster:
            self._known = _TableOfCluster(cluster, event_table)

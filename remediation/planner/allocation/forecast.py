"""The answer to every single next event, worked out before it comes.

Three sets of shared tables, one for each number of usable workers that the next event can leave: fewer (a loss: one
row per task, whose switch is then forced), the same (a task finishes: its gains are none; one is launched: its gains
replace none), more (a join). About six solutions from scratch for all 2·tasks + 2 events. A forecast never changes.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from .allocation import Allocation, Grid, solve
from .convolution import Choices
from .dynamic_program import one_changed
from .next_events import Event, EventKind, situation_after
from .tasks import Cluster

NOTHING = Choices(np.zeros(1, dtype=np.intp), np.zeros(1, dtype=np.int64))
"""What a task can be given that is not there."""


class Forecast:
    """The plan after each next event of one cluster; building it takes time, asking it takes a look-up."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._plans: dict[Event, Allocation] = dict(_all_plans(cluster))

    def __len__(self) -> int:
        return len(self._plans)

    def plan(self, events: Sequence[Event]) -> Allocation | None:
        """None: not foreseen (two at once, or a task that nobody named before)."""
        return self._plans.get(events[0]) if len(events) == 1 else None


def _all_plans(cluster: Cluster) -> Iterator[tuple[Event, Allocation]]:
    if cluster.workers >= cluster.granularity:
        yield from _after_losses(cluster)
    joined = Event(EventKind.JOINED)
    yield joined, solve(situation_after(cluster, [joined]))
    yield from _after_task_changes(cluster)


def _after_losses(cluster: Cluster) -> Iterator[tuple[Event, Allocation]]:
    situation = situation_after(cluster, [Event(EventKind.LOST)])
    grid, usable = Grid.of(situation), situation.usable
    base = [grid.choices(index, row) for index, row in enumerate(grid.gains)]
    holders = [index for index, task in enumerate(cluster.tasks) if task.current]
    rows = [grid.forced(index) for index in holders]
    changes = [(index, grid.choices(index, row)) for index, row in zip(holders, rows, strict=True)]
    plans = one_changed(base, changes, grid.units)
    everyone = range(len(cluster.tasks))
    for index, row, units in zip(holders, rows, plans[:-1], strict=True):
        yield Event(EventKind.LOST, cluster.tasks[index].name), grid.allocation(units, usable, everyone, {index: row})
    yield Event(EventKind.LOST), grid.allocation(plans[-1], usable, everyone, {})


def _after_task_changes(cluster: Cluster) -> Iterator[tuple[Event, Allocation]]:
    running = len(cluster.tasks)
    grid = Grid.of(situation_after(cluster, [Event(EventKind.LAUNCHED, task.name) for task in cluster.queue]))
    real = [grid.choices(index, row) for index, row in enumerate(grid.gains)]
    base = [*real[:running], *[NOTHING] * len(cluster.queue)]
    changes = [(index, NOTHING if index < running else real[index]) for index in range(len(real))]
    plans = one_changed(base, changes, grid.units)
    for index, units in enumerate(plans[:-1]):
        finished = index < running
        there = [each for each in range(running) if each != index] + ([] if finished else [index])
        kind = EventKind.FINISHED if finished else EventKind.LAUNCHED
        yield Event(kind, grid.tasks[index].name), grid.allocation(units, cluster.usable, there, {})

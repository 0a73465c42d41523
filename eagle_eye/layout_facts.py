"""What workers and agents say of themselves, folded into the layout of their job: parallel ranks, where the nodes are, and the ports of
their GPUs."""

from collections.abc import Mapping

from .event_attributes import integer_attribute
from .node_devices import NODE_DEVICES
from .node_places import NODE_PLACE, NodePlaces
from .parallel_ranks import WORKER_GROUPS, told_ranks, with_parallel_ranks
from .types import Event, Layout


class LayoutFacts:
    """Of one job."""

    def __init__(self) -> None:
        self._ranks: dict[str, dict[str, int]] = {}
        """Worker → its parallel ranks in the newest epoch, as its process groups say."""
        self._ranks_changed = False
        self._places = NodePlaces()

    def take(self, event: Event, epoch: int, workers: Mapping[str, str]) -> None:
        """Any event of the job; `epoch`: the newest, `workers`: worker → node in it."""
        if event.name == WORKER_GROUPS:
            self._take_groups(event, epoch, workers)
        elif event.name == NODE_PLACE:
            self._places.take(event)
        elif event.name == NODE_DEVICES:
            self._places.take_devices(event)

    def _take_groups(self, event: Event, epoch: int, workers: Mapping[str, str]) -> None:
        """Of a worker of the newest epoch, by the agent of its own node: nobody else knows."""
        worker, ranks = event.entity.name, told_ranks(event)
        if ranks and integer_attribute(event, "epoch") == epoch and workers.get(worker) == event.node and self._ranks.get(worker) != ranks:
            self._ranks[worker], self._ranks_changed = ranks, True

    def begin(self, layout: Layout, before: int) -> Layout:
        """A layout that was read, with the places; its ranks follow with `add`. `before`: the epoch before it, which may be the same."""
        if layout.epoch != before:
            self._ranks.clear()
        self._ranks_changed = bool(self._ranks)
        self._places.recall(layout)
        return self._places.on(layout)

    def add(self, layout: Layout) -> Layout:
        """The layout with what was said since; the very same if nothing was."""
        if self._ranks_changed:
            layout, self._ranks_changed = with_parallel_ranks(layout, self._ranks), False
        return self._places.on(layout) if self._places.changed else layout

"""Which job gets which nodes after a fault or a return: three rules (wait for a node, shrink the job, reallocate the cluster)."""

from collections.abc import Sequence
from typing import Protocol

from .allocation_cache import AllocationCache
from .simulated_job import SimulatedJob, SimulatedPhase


class NodePool:
    """Which job holds which node. Free nodes are last in, first out."""

    def __init__(self, nodes: Sequence[int]) -> None:
        self._free = dict.fromkeys(reversed(nodes))
        self._holder: dict[int, SimulatedJob] = {}

    def __len__(self) -> int:
        return len(self._free)

    def holder(self, node: int) -> SimulatedJob | None:
        """The job that holds it; None: the node is free or out."""
        return self._holder.get(node)

    def give(self, node: int) -> None:
        """Add a free node."""
        self._free[node] = None

    def lose(self, node: int) -> SimulatedJob | None:
        """Remove a node. Returns the job that held it: the caller removes the node there too."""
        self._free.pop(node, None)
        return self._holder.pop(node, None)

    @property
    def held(self) -> int:
        """Nodes that jobs hold."""
        return len(self._holder)

    def fill(self, run: SimulatedJob, nodes: int) -> bool:
        """Grow a job to so many nodes as far as there are free ones, or shrink it from its end. Returns whether its nodes changed."""
        before = len(run.nodes)
        while len(run.nodes) < nodes and self._free:
            node = self._free.popitem()[0]
            run.add_node(node)
            self._holder[node] = run
        while len(run.nodes) > nodes:
            node = run.give_up_node()
            del self._holder[node]
            self._free[node] = None
        return len(run.nodes) != before


class CapacityRule(Protocol):
    """Moves nodes between the pool and the jobs."""

    def after_fault(self, hit: SimulatedJob) -> list[SimulatedJob]:
        """A job lost nodes or must restart. Returns the other jobs whose nodes changed."""
        ...

    def after_join(self) -> list[SimulatedJob]:
        """Nodes came into the pool. Returns the jobs whose nodes changed."""
        ...

    def enough(self, run: SimulatedJob) -> bool:
        """Whether a job can run with what it has."""
        ...


class WaitForNode:
    """A fixed size: a lost node is replaced from the pool, or waited for."""

    def __init__(self, runs: Sequence[SimulatedJob], pool: NodePool) -> None:
        self._runs, self._pool = runs, pool

    def after_fault(self, hit: SimulatedJob) -> list[SimulatedJob]:
        self._pool.fill(hit, hit.target_nodes)
        return []

    def after_join(self) -> list[SimulatedJob]:
        """The job that misses fewest nodes comes first: it can start soonest."""
        waiting = sorted((run for run in self._runs if run.phase is SimulatedPhase.WAITING), key=lambda run: run.target_nodes - len(run.nodes))
        return [run for run in waiting if self._pool.fill(run, run.target_nodes)]

    def enough(self, run: SimulatedJob) -> bool:
        return len(run.nodes) == run.target_nodes > 0


class ShrinkJob(WaitForNode):
    """The job continues on the nodes that are left, and grows when a node returns."""

    def after_join(self) -> list[SimulatedJob]:
        """Waiting jobs first, then the one that misses the largest share; a node that brings nothing idles in its job."""
        short = sorted(
            (run for run in self._runs if len(run.nodes) < run.target_nodes),
            key=lambda run: (run.phase is not SimulatedPhase.WAITING, len(run.nodes) / run.target_nodes),
        )
        changed = []
        for run in short:
            before = run.rate
            if self._pool.fill(run, run.target_nodes) and (run.rate > before or run.phase is SimulatedPhase.WAITING):
                changed.append(run)
        return changed

    def enough(self, run: SimulatedJob) -> bool:
        return len(run.nodes) >= max(run.job.minimum, run.job.replica) and run.rate > 0


class ReallocateCluster:
    """The planner allocates the whole cluster again."""

    def __init__(self, runs: Sequence[SimulatedJob], pool: NodePool, plans: AllocationCache) -> None:
        self._runs, self._pool, self._allocations = runs, pool, plans

    def after_fault(self, hit: SimulatedJob) -> list[SimulatedJob]:
        return [run for run in self._reallocate(frozenset([self._runs.index(hit)])) if run is not hit]

    def after_join(self) -> list[SimulatedJob]:
        return self._reallocate(frozenset())

    def enough(self, run: SimulatedJob) -> bool:
        return len(run.nodes) == run.target_nodes > 0

    def _reallocate(self, failed: frozenset[int]) -> list[SimulatedJob]:
        usable = len(self._pool) + self._pool.held
        plan = self._allocations.allocate([run.target_nodes for run in self._runs], usable, failed)
        before = [len(run.nodes) for run in self._runs]
        for step in (min, max):  # donors before recipients
            for run, count in zip(self._runs, plan, strict=True):
                self._pool.fill(run, step(count, len(run.nodes)))
        for run, count in zip(self._runs, plan, strict=True):
            run.target_nodes = count
        return [run for run, count in zip(self._runs, before, strict=True) if len(run.nodes) != count]

"""Who had the processors: other processes, the hypervisor, the CPU quota of a worker's cgroup. Smoothed over about two ticks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from eagle_eye.frames import Frame
from eagle_eye.topology import node_of_worker
from eagle_eye.types import Claim, Entity, Evidence, Floats, Integers, Kind

from .step_time import lower_quartile, zero_if_unknown

QUEUED = 0.15
"""Share of the time that a worker must stand in the run queue to have a share worth a word."""
OTHERS = 0.5
"""Processors that processes other than the job's workers use at least where they are said to have the processor ..."""
STOLEN = 0.05
"""... or this share of all processors that the hypervisor gave to other machines."""
FULL = 0.9
"""Share of a node's processors in use above which each takes longer for the same work: caches, memory and the two threads of a core are shared, and no run queue shows it."""
THROTTLED = 0.2
"""Share of the periods of its CPU quota in which a cgroup had used it up."""
_NEWEST = 0.5
"""Weight of the newest reading."""
_REMEMBERED = 60
"""What a node is used to is the mean of about so many ticks."""

Truths = NDArray[np.bool_]


def _none() -> Floats:
    return np.zeros(0, dtype=np.float32)


@dataclass
class ProcessorSignals:
    """The signals of all workers and nodes of one job, in the columns of the newest tick. NaN = not known."""

    workers: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    queued: Floats = field(default_factory=_none)
    """Worker: share of the time that its main thread stood in the run queue."""
    throttled: Floats = field(default_factory=_none)
    """Worker: share of the periods in which its cgroup had used up its CPU quota."""
    quota: Floats = field(default_factory=_none)
    """Worker: processors that the quota allows."""
    others: Floats = field(default_factory=_none)
    """Node: processors that processes other than the job's workers use."""
    stolen: Floats = field(default_factory=_none)
    """Node: share of its processors that the hypervisor gave to other machines."""
    used: Floats = field(default_factory=_none)
    """Node: share of its processors that are in use, by anybody."""
    _node_of: Integers = field(default_factory=lambda: np.zeros(0, np.int64), repr=False)
    """Worker → column of its node, -1 if that does not report."""

    def update(self, frame: Frame) -> None:
        """Take a tick in."""
        read, moved = frame.metrics.get(Kind.WORKER, {}), frame.moved.get(Kind.WORKER)
        host, moved_nodes = frame.metrics.get(Kind.NODE, {}), frame.moved.get(Kind.NODE)
        self._place(frame.entities.get(Kind.WORKER, ()), frame.entities.get(Kind.NODE, ()))
        workers, nodes = len(self.workers), len(self.nodes)
        queued, throttled, quota = _share(read, "runqueue_percent", workers), _share(read, "throttled_percent", workers), _column(read, "cpu_quota", workers)
        used, others, stolen = _share(host, "cpu_percent", nodes), self._others(_column(read, "cpu_percent", workers) / 100.0, host), _share(host, "cpu_steal_percent", nodes)
        self.queued, self.throttled, self.quota = _smoothed((self.queued, self.throttled, self.quota), (queued, throttled, quota), moved)
        self.others, self.stolen, self.used = _smoothed((self.others, self.stolen, self.used), (others, stolen, used), moved_nodes)

    def _place(self, workers: tuple[str, ...], nodes: tuple[str, ...]) -> None:
        if workers != self.workers or nodes != self.nodes:
            column_of = {node: index for index, node in enumerate(nodes)}
            self._node_of = np.array([column_of.get(node_of_worker(worker), -1) for worker in workers], dtype=np.int64)
            self.workers, self.nodes = workers, nodes

    def _others(self, own: Floats, host: Mapping[str, Floats]) -> Floats:
        """Processors in use on each node, less those that the job's workers use there."""
        used = _share(host, "cpu_percent", len(self.nodes)) * _column(host, "processors", len(self.nodes))
        here = self._node_of >= 0
        ours = np.bincount(self._node_of[here], zero_if_unknown(own[here]), len(self.nodes))
        others: Floats = np.maximum(used - ours, 0.0).astype(np.float32)
        return others

    # --- what follows ------------------------------------------------------------------------------------------------

    def node_columns(self, workers: tuple[str, ...]) -> Integers:
        """Column of the node of each of these workers, -1 if that does not report."""
        if workers == self.workers:
            return self._node_of
        column_of = {node: index for index, node in enumerate(self.nodes)}
        return np.array([column_of.get(node_of_worker(worker), -1) for worker in workers], dtype=np.int64)

    def of_workers(self, values: Floats, workers: tuple[str, ...]) -> Floats:
        """A worker's signal in the order of these workers; NaN for one that does not report."""
        if workers == self.workers:
            return values
        column = {name: index for index, name in enumerate(self.workers)}
        return np.array([values[column[name]] if name in column else np.nan for name in workers], dtype=np.float32)

    def on_full_nodes(self, workers: tuple[str, ...]) -> Truths:
        """Of these workers, whose node has no processor to spare since others than the job's workers use them, too."""
        return self._of_their_nodes((self.used >= FULL) & (self.others >= OTHERS), workers)

    def held_back(self, workers: tuple[str, ...]) -> Truths:
        """Of these workers, whose cgroup used up its CPU quota again and again, unlike that of most: what all have makes nobody slower."""
        throttled = zero_if_unknown(self.of_workers(self.throttled, workers))
        usual = lower_quartile(throttled) if len(throttled) else 0.0
        held_back: Truths = (throttled >= THROTTLED) & (throttled >= usual + THROTTLED / 2)
        return held_back

    def crowded(self, workers: tuple[str, ...]) -> Truths:
        """Of these workers, which waited for a processor while others than the job's workers had it: the host says so itself."""
        waits = self.of_workers(self.queued, workers) >= QUEUED
        crowded: Truths = waits & self._of_their_nodes((self.others >= OTHERS) | (self.stolen >= STOLEN), workers)
        return crowded

    def _of_their_nodes(self, nodes: Truths, workers: tuple[str, ...]) -> Truths:
        """What is true of each worker's node; False where that does not report."""
        mine: Truths = np.append(nodes, False)[self.node_columns(workers)]  # -1: the last
        return mine

    def by_node(self, values: Floats) -> Floats:
        """A worker's signal as the highest of each node."""
        highest = np.full(len(self.nodes), -np.inf, dtype=np.float32)
        known = (self._node_of >= 0) & ~np.isnan(values)
        np.maximum.at(highest, self._node_of[known], values[known])
        highest[np.isinf(highest)] = np.nan
        return highest

    # --- as claims ---------------------------------------------------------------------------------------------------

    def quota_claim(self, node: str, since: float, cost: str) -> Claim:
        """`cpu.throttled` of a node. `cost`: what it does to the job."""
        mine = np.array([node_of_worker(worker) == node for worker in self.workers])
        share, quota = float(np.nanmax(self.throttled[mine])), float(np.nanmin(self.quota[mine]))
        allowed = f" of {quota:.2f} processors" if np.isfinite(quota) else ""
        text = f"{cost}: the cgroup of its workers on {node} has a CPU quota{allowed}, and used it up in {share:.0%} of its periods"
        proof = Evidence(text=text, metric="throttled_share", value=share, threshold=THROTTLED)
        limit = (Evidence(text=f"the quota allows {quota:.2f} processors", metric="cpu_quota", value=quota),) if np.isfinite(quota) else ()
        return Claim(entity=Entity(kind=Kind.NODE, name=node), kind="cpu.throttled", score=0.9, since=since, evidence=(proof, *limit))

    def contention_claim(self, node: str, since: float, cost: str) -> Claim:
        """`host.contended` of a node."""
        mine = np.array([node_of_worker(worker) == node for worker in self.workers])
        column = self.nodes.index(node)
        queued, others, stolen = float(np.nanmax(self.queued[mine])), float(self.others[column]), float(self.stolen[column])
        who = f"processes other than its workers use {others:.1f} processors" if others >= OTHERS else f"the hypervisor gave {stolen:.0%} of its processors to others"
        text = f"{cost}: on {node} {who}, and its workers wait in the run queue for {queued:.0%} of the time"
        proof = Evidence(text=text, metric="runqueue_share", value=queued, threshold=QUEUED)
        return Claim(entity=Entity(kind=Kind.NODE, name=node), kind="host.contended", score=0.7, since=since, evidence=(proof,))


@dataclass
class UsualSignals:
    """What the nodes of a job are used to while nothing is wrong: whoever is always throttled a little is not throttled now."""

    queued: Floats = field(default_factory=_none)
    throttled: Floats = field(default_factory=_none)
    others: Floats = field(default_factory=_none)
    stolen: Floats = field(default_factory=_none)
    """All by node."""
    _ticks: int = 0

    def update(self, signals: ProcessorSignals, moved: Integers | None, *, learn: bool) -> None:
        """Follow the columns of a tick; `learn`: nothing is wrong."""
        self._ticks += learn
        weight = 1.0 / min(self._ticks, _REMEMBERED) if learn else 0.0
        nothing = np.full(len(signals.nodes), np.nan, dtype=np.float32)
        now = (signals.by_node(signals.queued), signals.by_node(signals.throttled), signals.others, signals.stolen) if learn else (nothing,) * 4
        mine = (self.queued, self.throttled, self.others, self.stolen)
        self.queued, self.throttled, self.others, self.stolen = _smoothed(mine, now, moved, weight)

    def quota_bites(self, signals: ProcessorSignals) -> tuple[str, ...]:
        """Nodes whose workers use up their CPU quota far more often than usual."""
        now = signals.by_node(signals.throttled)
        return _names(signals.nodes, (now >= THROTTLED) & (now >= zero_if_unknown(self.throttled) + THROTTLED / 2))

    def contended(self, signals: ProcessorSignals) -> tuple[str, ...]:
        """Nodes on which others than the job's workers use far more of the processors than usual, and the workers wait."""
        queued = signals.by_node(signals.queued)
        waits = (queued >= QUEUED) & (queued >= zero_if_unknown(self.queued) + QUEUED / 2)
        taken = (signals.others >= OTHERS) & (signals.others >= zero_if_unknown(self.others) + OTHERS / 2)
        stolen = (signals.stolen >= STOLEN) & (signals.stolen >= zero_if_unknown(self.stolen) + STOLEN / 2)
        return _names(signals.nodes, waits & (taken | stolen))


def _names(nodes: tuple[str, ...], chosen: Truths) -> tuple[str, ...]:
    return tuple(nodes[index] for index in np.flatnonzero(chosen).tolist())


def _column(values: Mapping[str, Floats], name: str, count: int) -> Floats:
    """A metric; NaN where nobody reads it."""
    return values[name] if name in values else np.full(count, np.nan, dtype=np.float32)


def _share(values: Mapping[str, Floats], name: str, count: int) -> Floats:
    share: Floats = np.clip(_column(values, name, count) / 100.0, 0.0, 1.0).astype(np.float32)
    return share


def _smoothed(before: Sequence[Floats], read: Sequence[Floats], moved: Integers | None, weight: float = _NEWEST) -> Floats:
    """Signals × columns. `weight`: of what is read now; what was not known before is taken as it is."""
    now, past = np.array(read, dtype=np.float32), np.array(before, dtype=np.float32)
    known = np.full_like(now, np.nan)
    if moved is not None and past.size:
        known = np.where(moved >= 0, past[:, np.minimum(moved, past.shape[1] - 1)], np.float32(np.nan))
    newest = np.where(np.isnan(now), known, now)
    smoothed: Floats = np.where(np.isnan(known), newest, np.float32(1.0 - weight) * known + np.float32(weight) * newest)
    return smoothed

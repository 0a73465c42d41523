"""How long a step takes by what its workers do themselves, and how much shorter it had been, had some of them done it as the others.

The model is that of "Understanding Stragglers in Large Model Training Using What-if Analysis" (Lin et al., OSDI 2025), less what is not measured here: workers that compute
one layer together are as fast as the slowest of them; a replica is a pipeline, in which the longest stage sets the pace and all stages are passed once while it fills and
empties (1F1B: longest + (sum - longest) / micro-batches; where the number of micro-batches is not logged as `micro_batches`, the longest alone, which makes no
saving larger than it is); the step ends with the slowest replica. What the job does besides, as its collectives, is taken to stay as long as it was.

A step that is shorter than the model says has workers that do not wait for one another: nothing is said of it.
"""

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eagle_eye.types import Doubles, Evidence, Floats, Layout, Step

from .own_compute import COMPUTE
from .peer_roles import PeerRoles, peer_roles
from .step_time import phases, zero_if_unknown

OPERATIONS = ("data_s", *COMPUTE)
"""What a worker does itself in a step; the rest is waits, and pauses."""
WORDS = ("waited for data", "computed forward", "computed backward", "run the optimizer")
NOT_SYNCHRONOUS = 1.05
"""Times as long as the step, that some worker is at work in it: the others did not wait for it."""
NOTICEABLE = 0.03
"""Share of a step: what saves less is not worth a repair."""

Truths = NDArray[np.bool_]


class StepWork(NamedTuple):
    """One step."""

    seconds: Floats
    """OPERATIONS × workers; one row where they are kept together."""
    step_s: float
    micro_batches: float
    """Of one replica; infinite where they are not known."""


class Shortened(NamedTuple):
    """What-if: how long a step was, and how long it had been."""

    step_s: float
    saved_s: float

    @property
    def share(self) -> float:
        """Of each step."""
        return self.saved_s / max(self.step_s, 1e-9)

    def text(self, had: str) -> str:
        """In words; `had`: what had been otherwise.

        >>> Shortened(1.02, 0.21).text("had worker a computed as its peers")
        'had worker a computed as its peers, a step had taken 0.810 s in place of 1.020 s (21% of each step)'
        """
        return f"{had}, a step had taken {self.step_s - self.saved_s:.3f} s in place of {self.step_s:.3f} s ({self.share:.0%} of each step)"

    def evidence(self, had: str) -> Evidence:
        """The same as a line of evidence."""
        return Evidence(text=self.text(had), metric="saved_share", value=self.share)


class _WhatIf(NamedTuple):
    saved: Shortened
    had: str


def _what_if(saved: Shortened | None, had: str) -> _WhatIf | None:
    return _WhatIf(saved, had) if saved is not None else None


def step_work(step: Step) -> StepWork | None:
    """None where no worker reported the step or its script marks no phases. Where all GPUs were timed and were behind their hosts, their time counts, their waits in collectives among it: a best guess, which clears nobody."""
    reported = step.values.get("step_s")
    if reported is None or not np.isfinite(reported).any():
        return None
    seconds = zero_if_unknown(phases(step, OPERATIONS))
    lag = step.values.get("gpu_lag_s")
    if lag is not None and (zero_if_unknown(lag) > 0.0).all():
        seconds = zero_if_unknown(phases(step, [f"gpu_{name}" for name in OPERATIONS]))
    if not seconds[1:].any():
        return None
    return StepWork(seconds, float(np.nanmedian(reported)), micro_batches_of(step))


def micro_batches_of(step: Step) -> float:
    """Of one replica; infinite where the script does not log them."""
    logged = step.values.get("micro_batches")
    counts = logged[logged >= 1.0] if logged is not None else ()
    return float(np.median(counts)) if len(counts) else math.inf


@dataclass(frozen=True, slots=True)
class PipelineGrid:
    """Which workers make which stage of which replica. A cell is a stage of a replica."""

    order: NDArray[np.int32]
    """Workers, cell by cell."""
    begins: NDArray[np.int32]
    """Where each cell begins in that order."""
    replicas: NDArray[np.int32]
    """Where each replica begins among the cells."""
    stages: int
    """Of each replica; 0 where they differ."""
    stage_of: NDArray[np.int32]
    """Of each worker."""

    def cells(self, seconds: Floats) -> Floats:
        """Of each cell the seconds of its slowest worker; the last axis is the workers, then the cells."""
        slowest: Floats = np.maximum.reduceat(seconds[..., self.order], self.begins, axis=-1)
        return slowest

    def length(self, seconds: Floats, micro_batches: float = math.inf) -> Floats:
        """Seconds that the slowest replica takes; the last axis is the workers."""
        slowest: Floats = self.lengths(self.cells(seconds), micro_batches).max(axis=-1)
        return slowest

    def lengths(self, cells: Floats, micro_batches: float = math.inf) -> Floats:
        """Seconds that each replica takes; the last axis is the cells, then the replicas."""
        return pipeline_seconds(np.maximum.reduceat(cells, self.replicas, axis=-1), np.add.reduceat(cells, self.replicas, axis=-1), micro_batches)

    def place_of(self, worker: int) -> tuple[int, int]:
        """Its cell and its replica, by their numbers."""
        cell = int(np.searchsorted(self.begins, np.flatnonzero(self.order == worker)[0], side="right")) - 1
        return cell, int(np.searchsorted(self.replicas, cell, side="right")) - 1

    def workers_of(self, cell: int) -> NDArray[np.int32]:
        """Those that make it together."""
        within: NDArray[np.int32] = self.order[self.begins[cell] : self.begins[cell + 1] if cell + 1 < len(self.begins) else None]
        return within

    def cells_of(self, replica: int) -> slice:
        """Where they are among all."""
        return slice(int(self.replicas[replica]), int(self.replicas[replica + 1]) if replica + 1 < len(self.replicas) else len(self.begins))


def pipeline_seconds(longest: Floats, total: Floats, micro_batches: float) -> Floats:
    """Of a pipeline whose longest stage, and all of them together, take so long for one step."""
    seconds: Floats = longest + (total - longest) / np.float32(micro_batches)
    return seconds


def pipeline_grid(workers: tuple[str, ...], layout: Layout | None) -> PipelineGrid:
    """By the layout; who is not in it is a replica of its own, in the first stage."""
    places = {place.worker: (place.dp, place.pp) for place in (layout.placements if layout is not None else ())}
    unknown = 1 + max((dp for dp, _ in places.values()), default=-1)
    at = np.array([places.get(worker, (unknown + index, 0)) for index, worker in enumerate(workers)], dtype=np.int64).reshape(-1, 2)
    if len(at) and not at.any():  # nothing is known of any of them: each by itself
        at[:, 0] = np.arange(len(at))
    order = np.lexsort((at[:, 1], at[:, 0]))
    ordered = at[order]
    new_replica = np.r_[True, ordered[1:, 0] != ordered[:-1, 0]][: len(at)]
    begins = np.flatnonzero(new_replica | np.r_[True, ordered[1:, 1] != ordered[:-1, 1]][: len(at)])
    replicas = np.flatnonzero(new_replica[begins])
    counts = np.diff(np.r_[replicas, len(begins)])
    alike = len(counts) > 0 and bool((counts == counts[0]).all())
    same = alike and bool((ordered[begins, 1].reshape(-1, counts[0]) == ordered[begins[: counts[0]], 1]).all())
    stages = int(counts[0]) if same else 0
    return PipelineGrid(order.astype(np.int32), begins.astype(np.int32), replicas.astype(np.int32), stages, at[:, 1].astype(np.int32))  # small: detectors keep and pickle them


@dataclass
class RecentWork:
    """The newest steps of one job, for a what-if of some of its workers."""

    steps: int = 5
    """How many are kept."""
    peers: int = 3
    """Fewer workers of a role cannot be compared."""
    _workers: tuple[str, ...] = ()
    _layout: Layout | None = None
    _of: tuple[int, float] = (-1, 0.0)
    """Epoch and time of the layout."""
    _grid: PipelineGrid = field(default_factory=lambda: pipeline_grid((), None))
    _peers: PeerRoles | None = None
    _kept: deque[StepWork] = field(default_factory=deque)

    def add(self, step: Step, layout: Layout | None) -> None:
        """Take a step in; other workers, or another layout, begin anew."""
        of = (layout.epoch, layout.time) if layout is not None else (-1, 0.0)
        if step.workers != self._workers or of != self._of:
            self.forget()
            self._workers, self._of, self._grid = step.workers, of, pipeline_grid(step.workers, layout)
        self._layout = layout
        if (work := step_work(step)) is not None:
            self._kept.append(work)
            while len(self._kept) > self.steps:
                self._kept.popleft()

    def forget(self) -> None:
        """Another epoch."""
        self._kept.clear()
        self._peers = None

    def had(self, members: Truths, roles: PeerRoles) -> Shortened | None:
        """Had these workers computed as the median of their peers that are not among them; None where that cannot be said."""
        if not self._kept or not members.any():
            return None
        seconds = np.array([work.seconds for work in self._kept])
        typical = typical_seconds(seconds, members, roles)
        known = members & np.isfinite(typical[0, 0])
        return self._shortened(seconds, np.where(known, np.minimum(seconds, typical), seconds)) if known.any() else None

    def best(self) -> Evidence | None:
        """The one worker, node, stage or operation whose being as the others had shortened the steps most; None where nothing of it is noticeable."""
        if not self._kept:
            return None
        candidates = (each for each in (*self._workers_and_nodes(), *self._operations(), *self._stages()) if each is not None)
        best = max(candidates, key=lambda each: each.saved.share, default=None)
        return best.saved.evidence(best.had) if best is not None and best.saved.share >= NOTICEABLE else None

    # --- candidates

    def _workers_and_nodes(self) -> Iterator[_WhatIf | None]:
        """The worker that was at work longest, and its node where that has others."""
        longest = int(np.median([work.seconds.sum(axis=0) for work in self._kept], axis=0).argmax())
        yield _what_if(self.had(np.arange(len(self._workers)) == longest, self._roles), f"had worker {self._workers[longest]} been at work for as long as its peers")
        nodes = np.array(self._roles.nodes)
        here = nodes == nodes[longest]
        if here.sum() > 1 and not here.all():
            yield _what_if(self.had(here, self._roles), f"had the workers of node {nodes[longest]} been at work for as long as their peers")

    def _operations(self) -> Iterator[_WhatIf | None]:
        """Each operation, had all workers of a role taken the same time for it."""
        seconds = np.array([work.seconds for work in self._kept])
        typical = typical_seconds(seconds, np.zeros(len(self._workers), np.bool_), self._roles)
        for index, words in enumerate(WORDS):
            replaced = seconds.copy()
            replaced[:, index] = np.fmin(seconds[:, index], typical[:, index])
            yield _what_if(self._shortened(seconds, replaced), f"had nobody {words} for longer than its peers")

    def _stages(self) -> Iterator[_WhatIf | None]:
        """Had the stages of each replica the same work."""
        grid = self._grid
        if grid.stages < 2:
            return
        seconds = np.array([work.seconds for work in self._kept]).sum(axis=1)
        of_stage = stage_seconds(grid, seconds)
        longest = int(np.median(of_stage, axis=0).argmax())
        yield _what_if(self._lasted(seconds, even_stages(grid, seconds, of_stage)), f"had all pipeline stages the same work (stage {longest} has most)")

    # --- the model

    @property
    def _roles(self) -> PeerRoles:
        if self._peers is None:
            self._peers = peer_roles(self._workers, self._layout, self.peers)
        return self._peers

    def _shortened(self, seconds: Floats, replaced: Floats) -> Shortened | None:
        """Steps × operations × workers, as they were and as they had been."""
        return self._lasted(seconds.sum(axis=1), replaced.sum(axis=1))

    def _lasted(self, seconds: Floats, replaced: Floats) -> Shortened | None:
        grid, counts = self._grid, self._kept[-1].micro_batches
        lasted, had = grid.length(seconds, counts), grid.length(replaced, counts)
        step_s = np.array([work.step_s for work in self._kept])
        if np.median(lasted / np.maximum(step_s, 1e-9)) > NOT_SYNCHRONOUS:
            return None
        return Shortened(float(np.median(step_s)), float(np.median(np.clip(lasted - had, 0.0, step_s))))


def stage_seconds(grid: PipelineGrid, seconds: Floats) -> Floats:
    """Of each stage the median over its replicas, so that one slow worker makes no long stage; steps × workers → steps × stages."""
    cells = grid.cells(seconds)
    median: Floats = np.median(cells.reshape(*cells.shape[:-1], -1, grid.stages), axis=-2)
    return median


def even_stages(grid: PipelineGrid, seconds: Floats, of_stage: Floats) -> Floats:
    """Seconds of the workers, had each stage an equal share of what all have; steps × workers."""
    scale = of_stage.mean(axis=-1, keepdims=True) / np.maximum(of_stage, 1e-9)
    number = np.searchsorted(np.unique(grid.stage_of), grid.stage_of)
    even: Floats = seconds * scale[..., number]
    return even


def typical_seconds(seconds: Floats, members: Truths, roles: PeerRoles) -> Floats:
    """Of each worker with a role of a member the median of its peers that are none (of all, where there is no member); NaN of the others. Steps × operations × workers."""
    typical = np.full_like(seconds, np.nan)
    asked = set(roles.role[members].tolist()) if members.any() else set(roles.role.tolist())
    for number in asked - {0}:
        group = np.flatnonzero(roles.role == number)
        others = group[~members[group]]
        if len(others):
            typical[..., group] = np.median(seconds[..., others], axis=-1, keepdims=True)
    return typical


def saved_alone(own: Doubles, step_s: float, index: int, slower: float, peers: Truths) -> Shortened | None:
    """Of one step: had this worker, which computes `slower` times as long as usual, been as its peers. What is not known is NaN."""
    others = np.delete(own, index)
    beside = own[peers & np.isfinite(own) & (np.arange(len(own)) != index)]
    if not len(beside) or not np.isfinite(others).any() or np.nanmax(own) > NOT_SYNCHRONOUS * step_s:
        return None
    usual = float(np.median(beside))
    return Shortened(step_s, min(max(slower * usual - max(float(np.nanmax(others)), usual), 0.0), step_s))

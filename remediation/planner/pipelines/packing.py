"""The exact best cut for nodes of several GPUs, where a stage has 1, 2, 4 .. GPUs of one node, at fixed micro-batches.

With the slowest latency w, T = m·w + (sum of the stages before it) + (2·latency - w of every stage behind it). Both
sums are shortest paths over (GPUs used, layers done), the first over stages of at most w, the second below w. The
candidates for w are the latencies of all possible stages. Both sums can only fall when w grows, so for a < w <= b

    T(w) >= (m - 1)·a + (best sums at b, the slowest stage among them)

bounds a whole interval of candidates: intervals are halved and dropped until none can hold a better cut. The tables of
the largest node count serve all smaller ones, for node borders lie at multiples of a node's GPUs seen from both ends.

The formula is meant for at least as many micro-batches as stages. Below that it counts less than the pipeline takes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from eagle_eye.errors import ConfigError

from .layer_profile import LayerChain
from .pipeline_template import TIE, PipelineStage, PipelineTemplate, template

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Mask = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
Rule = Callable[[int, int, int], bool]
"""(GPUs of the node used so far, GPUs of the stage, GPUs of a node) -> may the stage be there?"""
BATCH_CELLS = 4_000_000
"""So many numbers are handled at once: large enough for vectors, small enough for the cache."""


def halves(used: int, gpus: int, per_node: int) -> bool:
    """A node's GPUs are split into equal halves again and again: a stage starts at a multiple of its size."""
    return used % gpus == 0 and used + gpus <= per_node


def any_order(used: int, gpus: int, per_node: int) -> bool:
    """Stages of one node may be in any order."""
    return used + gpus <= per_node


@dataclass(frozen=True, slots=True)
class PackedTemplates:
    """The best cuts, and how far from the best they can be at most."""

    templates: dict[int, PipelineTemplate]
    gaps: dict[int, float]
    """Proved: (time - lower bound) / time; 0 is exact."""


def pack(
    layers: LayerChain,
    nodes: Sequence[int],
    per_node: int,
    micro_batches: int,
    gpu_bytes: float = np.inf,
    in_flight: int = 1,
    rule: Rule | None = None,
    gap: float = 0.0,
) -> PackedTemplates:
    """Templates for these node counts; a count is absent where no cut fits.

    rule: default `halves` where a node's GPUs are a power of two, else `any_order`. gap: stop when this share is proved.
    """
    if micro_batches < 1 or per_node < 1 or min(nodes, default=1) < 1:
        raise ConfigError("micro-batches, GPUs per node and nodes are positive whole numbers")
    rule = rule or (halves if per_node & (per_node - 1) == 0 else any_order)
    space = _space(layers, max(nodes, default=0) * per_node, per_node, gpu_bytes, in_flight, rule)
    search = _Search(space, {count: count * per_node for count in nodes}, micro_batches)
    search.run(gap)
    found = {count: _rebuild(space, search, count) for count in nodes if np.isfinite(search.best[count])}
    return PackedTemplates(found, {count: search.gap(count) for count in found})


@dataclass(frozen=True, slots=True)
class _Space:
    """All stages that may exist."""

    sizes: tuple[int, ...]
    latency: Array
    """(sizes, layers + 1, layers + 1): of [first, end); infinite where it is empty or does not fit."""
    gpus: int
    steps: tuple[tuple[tuple[int, int], ...], ...]
    """Per number of GPUs used: the (index of size, size) that a stage ending there may have."""
    candidates: Array
    """Ascending; latencies that are equal within TIE are one."""


def _space(layers: LayerChain, gpus: int, per_node: int, gpu_bytes: float, in_flight: int, rule: Rule) -> _Space:
    sizes = tuple(2**power for power in range(per_node.bit_length()))
    times = np.stack([_sums(layers.latencies(size)) for size in sizes])
    memory = _sums(layers.memory(in_flight))
    for index, size in enumerate(sizes):
        times[index][memory > size * gpu_bytes] = np.inf
    steps: list[tuple[tuple[int, int], ...]] = [()]
    for used in range(1, gpus + 1):
        starts = [(index, size) for index, size in enumerate(sizes) if size <= used]
        steps.append(tuple((index, size) for index, size in starts if rule((used - size) % per_node, size, per_node)))
    values = np.unique(times[np.isfinite(times)])
    last = np.append(np.diff(values) > TIE, True) if len(values) else np.zeros(0, dtype=bool)
    return _Space(sizes, times, gpus, tuple(steps), values[last])


def _sums(values: Array) -> Array:
    total = np.concatenate(([0.0], np.cumsum(values)))
    sums = total[None, :] - total[:, None]
    sums[np.tril_indices(len(total))] = np.inf
    return np.asarray(sums)


@dataclass(slots=True)
class _Tables:
    """Shortest sums for a batch of w; (batch, GPUs + 1, layers + 1)."""

    before: Array
    """Layers [0, l) on so many GPUs."""
    behind: Array
    """Layers [l, L) on so many GPUs."""
    through: Array
    """The same as behind, with one stage of at most w in front."""


def _tables(space: _Space, widths: Array) -> _Tables:
    limit = widths[:, None, None, None]
    first = np.where(space.latency <= limit + TIE, space.latency, np.inf)
    later = np.where(space.latency < limit - TIE, 2 * space.latency - limit, np.inf)
    before = _paths(space, first)
    mirrored = np.flip(later.swapaxes(2, 3), axis=(2, 3))
    behind = _paths(space, np.ascontiguousarray(mirrored))
    back = np.ascontiguousarray(np.flip(first.swapaxes(2, 3), axis=(2, 3)))
    through = np.full_like(behind, np.inf)
    for used in range(1, space.gpus + 1):
        for index, size in space.steps[used]:
            found = np.min(behind[:, used - size, :, None] + back[:, index], axis=1)
            np.minimum(through[:, used], found, out=through[:, used])
    return _Tables(before, behind[:, :, ::-1], through[:, :, ::-1])


def _paths(space: _Space, cost: Array) -> Array:
    batch, _, points, _ = cost.shape
    least = np.full((batch, space.gpus + 1, points), np.inf)
    least[:, 0, 0] = 0.0
    for used in range(1, space.gpus + 1):
        for index, size in space.steps[used]:
            found = np.min(least[:, used - size, :, None] + cost[:, index], axis=1)
            np.minimum(least[:, used], found, out=least[:, used])
    return least


@dataclass(slots=True)
class _Search:
    """Halving of intervals of candidates, for all node counts together."""

    space: _Space
    gpus: dict[int, int]
    micro_batches: int
    best: dict[int, float] = field(default_factory=dict)
    width: dict[int, float] = field(default_factory=dict)
    bound: dict[int, float] = field(default_factory=dict)
    """Least lower bound of what was dropped without being looked into."""

    def run(self, gap: float) -> None:
        """Until every interval is dropped."""
        self.best = dict.fromkeys(self.gpus, np.inf)
        self.bound = dict.fromkeys(self.gpus, np.inf)
        intervals = [(0, len(self.space.candidates) - 1)] if len(self.space.candidates) else []
        size = max(1, BATCH_CELLS // (len(self.space.sizes) * self.space.latency.shape[1] ** 2 * 8))
        while intervals:
            batch, intervals = intervals[:size], intervals[size:]
            intervals.extend(self._look(batch, gap))
            intervals.sort(key=lambda interval: interval[0] - interval[1])

    def gap(self, count: int) -> float:
        """What is proved."""
        return max(0.0, 1 - self.bound[count] / self.best[count]) if self.best[count] > 0 else 0.0

    def _look(self, batch: list[tuple[int, int]], gap: float) -> list[tuple[int, int]]:
        tables = _tables(self.space, self.space.candidates[[high for _, high in batch]])
        sums = []
        for row, (_, high) in enumerate(batch):
            self._take(tables, row, float(self.space.candidates[high]))
            sums.append({count: self._least_sums(tables, row, gpus) for count, gpus in self.gpus.items()})
        return [
            part
            for (low, high), least in zip(batch, sums, strict=True)
            for part in _halves(low, high - 1)
            if self._worth(part[0], least, gap)
        ]

    def _least_sums(self, tables: _Tables, row: int, gpus: int) -> float:
        return float(np.min(tables.before[row, :gpus] + tables.through[row, gpus:0:-1]))

    def _worth(self, low: int, sums: dict[int, float], gap: float) -> bool:
        bounds = {count: (self.micro_batches - 1) * float(self.space.candidates[low]) + least for count, least in sums.items()}
        if any(bound < self.best[count] * (1 - gap) - TIE for count, bound in bounds.items()):
            return True
        for count, bound in bounds.items():
            self.bound[count] = min(self.bound[count], bound)
        return False

    def _take(self, tables: _Tables, row: int, width: float) -> None:
        slowest = np.argwhere(np.abs(self.space.latency - width) <= TIE)
        for count, gpus in self.gpus.items():
            for index, first, end in slowest:
                size = self.space.sizes[index]
                used = np.array([at for at in range(gpus - size + 1) if (index, size) in self.space.steps[at + size]])
                if not len(used):
                    continue
                sums = tables.before[row, used, first] + tables.behind[row, gpus - size - used, end]
                total = self.micro_batches * width + float(sums.min())
                if total < self.best[count]:
                    self.best[count], self.width[count] = total, width


def _halves(low: int, high: int) -> list[tuple[int, int]]:
    if low > high:
        return []
    middle = (low + high) // 2
    return [(low, middle)] + ([(middle + 1, high)] if middle < high else [])


def _rebuild(space: _Space, search: _Search, count: int) -> PipelineTemplate:
    """The stages, from the tables of the best w."""
    gpus, width = search.gpus[count], search.width[count]
    tables = _tables(space, np.array([width]))
    best: tuple[float, int, int, int, int] = (np.inf, 0, 0, 0, 0)
    for index, first, end in np.argwhere(np.abs(space.latency - width) <= TIE):
        size = space.sizes[index]
        for used in range(gpus - size + 1):
            if (index, size) in space.steps[used + size]:
                total = float(tables.before[0, used, first] + tables.behind[0, gpus - size - used, end])
                best = min(best, (total, used, int(first), int(end), size))
    _, used, first, end, size = best
    head = _walk(space, tables.before[0], used, first, space.latency <= width + TIE, 0.0, 1)
    mirrored = tables.behind[0][:, ::-1]
    last = space.latency.shape[1] - 1
    allowed = space.latency < width - TIE
    mirrored_allowed = np.flip(allowed.swapaxes(1, 2), axis=(1, 2))
    tail = [
        PipelineStage(last - stage.end, last - stage.first, stage.gpus)
        for stage in _walk(_mirror(space), mirrored, gpus - size - used, last - end, mirrored_allowed, width, 2)
    ]
    stages = [*reversed(head), PipelineStage(first, end, size), *tail]
    latencies = [float(space.latency[space.sizes.index(stage.gpus), stage.first, stage.end]) for stage in stages]
    return template(count, stages, latencies, search.micro_batches)


def _mirror(space: _Space) -> _Space:
    flipped = np.flip(space.latency.swapaxes(1, 2), axis=(1, 2))
    return _Space(space.sizes, flipped, space.gpus, space.steps, space.candidates)


def _walk(space: _Space, least: Array, used: int, end: int, allowed: Mask, width: float, factor: int) -> list[PipelineStage]:
    """The stages of a shortest path, from its end to its start."""
    stages = []
    while used:
        costs = [
            (np.where(allowed[index, :, end], least[used - size] + factor * space.latency[index, :, end] - width, np.inf), size)
            for index, size in space.steps[used]
        ]
        cost, size = min(costs, key=lambda pair: float(pair[0].min()))
        first = int(np.argmin(cost))
        stages.append(PipelineStage(first, end, size))
        used, end = used - size, first
    return stages

"""The exact best cut with one stage per node, for every number of nodes at once.

With the slowest stage [i, j) at index k of S stages and latency w, T is a constant of (i, j, S) plus k·w. Such a cut
exists if and only if [0, i) splits into k parts of at most w and [j, L) into S - k - 1 parts below w. A part can
always be split further, so the least numbers of parts, counted greedily, say which k are possible, and the least is
the best. O(L² (S + L log L)) for all S together, in vectors; nothing is compiled.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .layer_profile import LayerChain
from .pipeline_template import TIE, MicroBatchRule, PipelineStage, PipelineTemplate, template

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]
Integers = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class _Chain:
    latency: Floats
    """(layers + 1,) cumulative."""
    memory: Floats
    room: float

    def __len__(self) -> int:
        return len(self.latency) - 1

    def reach(self, starts: Integers, limits: Floats) -> Integers:
        """Ends of the longest parts from `starts` whose latency and memory are within the limits."""
        by_time = np.searchsorted(self.latency, self.latency[starts] + limits, side="right") - 1
        by_memory = np.searchsorted(self.memory, self.memory[starts] + self.room, side="right") - 1
        return np.asarray(np.minimum(by_time, by_memory))

    def parts(self, starts: Integers, ends: Integers, limits: Floats) -> Integers:
        """Least number of parts of [start, end) within the limits; more than the layers: impossible."""
        never = len(self) + 1
        counts = np.zeros(len(starts), dtype=np.int64)
        position = starts.copy()
        open_ = np.flatnonzero(position < ends)
        while len(open_):
            further = self.reach(position[open_], limits[open_])
            stuck = further <= position[open_]
            counts[open_] = np.where(stuck, never, counts[open_] + 1)
            position[open_] = np.where(stuck, ends[open_], further)
            open_ = open_[position[open_] < ends[open_]]
        return counts


def one_stage_per_node(
    layers: LayerChain,
    nodes: Sequence[int],
    micro_batches: MicroBatchRule,
    gpus: int = 1,
    gpu_bytes: float = np.inf,
    in_flight: int = 1,
) -> dict[int, PipelineTemplate]:
    """The best template per node count; a count is absent if no cut fits (more nodes than layers, memory).

    gpus: of each node, all in its stage. gpu_bytes: memory of one. in_flight: micro-batches whose activations a
    stage holds at once. Micro-batches at least as many as stages are assumed; the cut is exact then.
    """
    times, sizes = layers.latencies(gpus), layers.memory(in_flight)
    chain = _Chain(np.concatenate(([0.0], np.cumsum(times))), np.concatenate(([0.0], np.cumsum(sizes))), gpus * gpu_bytes)
    length = len(chain)
    firsts, ends = (index.astype(np.int64) for index in np.triu_indices(length + 1, 1))
    fits = chain.memory[ends] - chain.memory[firsts] <= chain.room
    firsts, ends = firsts[fits], ends[fits]
    widths = chain.latency[ends] - chain.latency[firsts]
    before = chain.parts(np.zeros_like(firsts), firsts, widths + TIE)
    after = chain.parts(ends, np.full_like(ends, length), widths - TIE)
    found = {}
    for count in nodes:
        index = np.maximum(before, count - 1 - (length - ends))
        possible = (index <= firsts) & (index <= count - 1 - after)
        if not possible.any():
            continue
        rounds = micro_batches(count) - count + index - 1
        total = np.where(possible, rounds * widths + 2 * chain.latency[-1] - chain.latency[firsts], np.inf)
        best = int(np.argmin(total))
        head = _cut(chain, 0, int(firsts[best]), int(index[best]), float(widths[best]) + TIE)
        tail = _cut(chain, int(ends[best]), length, count - 1 - int(index[best]), float(widths[best]) - TIE)
        bounds = [*head, (int(firsts[best]), int(ends[best])), *tail]
        stages = [PipelineStage(first, end, gpus) for first, end in bounds]
        found[count] = template(count, stages, [float(times[first:end].sum()) for first, end in bounds], micro_batches(count))
    return found


def _cut(chain: _Chain, first: int, end: int, parts: int, limit: float) -> list[tuple[int, int]]:
    """[first, end) in exactly so many parts within the limit; the greedy parts leave a layer for each later one."""
    bounds = []
    limits = np.array([limit])
    for left in range(parts, 0, -1):
        reach = int(chain.reach(np.array([first]), limits)[0])
        stop = min(reach, end - (left - 1))
        bounds.append((first, stop))
        first = stop
    return bounds

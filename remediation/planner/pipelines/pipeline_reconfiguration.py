"""Reconfiguration of pipelines after nodes were lost, joined or became slow: the next pipelines, which state moves, and from where.

Least iteration time first, then least bytes of state moved, then fewest nodes that change their layers. By default
never more bytes than Oobleck's rules would move (oobleck_rules.py): then it is no worse than these in time nor in copies.
Among nodes of equal speed the answer is exact as long as all multisets of pipeline sizes were looked into (`exact`).
Slow nodes are tried where they are and gathered in one pipeline; which of all placements is best is not proved.
"""

import contextlib
import heapq
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from eagle_eye.errors import ConfigError

from .hungarian_assignment import CostMatrix, assign
from .instantiation import instantiate
from .micro_batch_distribution import GroupPace, MicroBatchDistribution, distribute, lower_bound
from .oobleck_rules import Pipelines, oobleck_pipelines
from .pipeline_template import PipelineTemplate, iteration_time, slowest_stage

COMBINATIONS = 3000
"""Multisets of sizes that are looked into at most."""
PLACEMENTS = 200
"""Assignments that are solved at most, beyond the baseline's."""
SLOW_COMBINATIONS = 8
RELATIVE_TOLERANCE = 1e-9
"""Times that are relatively as close are equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconfigurationProblem:
    """The pipelines as they ran, and what happened to their nodes."""

    templates: Mapping[int, PipelineTemplate]
    state: Sequence[float]
    """Bytes of each layer's state."""
    pipelines: Pipelines
    """As they ran: the nodes of each in the order of its template's nodes."""
    micro_batches: int
    """Of the job, over all pipelines."""
    faults: int = 0
    lost: frozenset[str] = frozenset()
    joined: tuple[str, ...] = ()
    speeds: Mapping[str, float] = field(default_factory=dict)
    """Of slow nodes; 1 where not named."""
    reduce: Mapping[int, float] = field(default_factory=dict)
    """Pipelines -> time of their all-reduce."""


@dataclass(frozen=True, slots=True)
class CannotReconfigure:
    """The survivors do not hold enough to continue."""

    why: str
    fallback: str = "checkpoint"


@dataclass(frozen=True, slots=True)
class LayerCopy:
    """A layer's state that a node needs and another one holds."""

    layer: int
    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Reconfiguration:
    """The next pipelines."""

    pipelines: Pipelines
    batches: MicroBatchDistribution
    time: float
    """Of an iteration, with the all-reduce between pipelines."""
    moved_bytes: float
    moved_nodes: int
    """Survivors with other layers than before, and new ones."""
    copies: tuple[LayerCopy, ...]
    exact: bool

    @property
    def key(self) -> tuple[float, float, int]:
        """What is minimised, in this order."""
        return self.time, self.moved_bytes, self.moved_nodes


def reconfigure(problem: ReconfigurationProblem, within_oobleck: bool = True) -> Reconfiguration | CannotReconfigure:
    """The next pipelines. within_oobleck: never move more bytes than Oobleck's rules, even for a shorter iteration.

    Raises ConfigError for a pipeline that no template describes and for a speed that is not above zero.
    """
    _check(problem)
    search = _Search(problem)
    cannot = search.cannot()
    if cannot is not None:
        return cannot
    baseline = search.by_oobleck_rules()
    limit = baseline.moved_bytes if baseline is not None and within_oobleck else math.inf
    found = search.best_within(limit)
    best = min((plan for plan in (found, baseline) if plan is not None), key=lambda plan: plan.key, default=None)
    if best is None:
        return CannotReconfigure(f"no templates of {sorted(problem.templates)} nodes use all {len(search.nodes)} nodes that are left")
    return best


def _check(problem: ReconfigurationProblem) -> None:
    unknown = {len(pipeline) for pipeline in problem.pipelines} - set(problem.templates)
    if unknown:
        raise ConfigError(f"no template for the running pipelines of {sorted(unknown)} nodes: keep the templates that they were made from")
    still = [node for node, speed in problem.speeds.items() if not speed > 0]
    if still:
        raise ConfigError(f"the speed of {still[0]} is not above zero: name it among the lost nodes")


def node_layers(template: PipelineTemplate) -> tuple[range, ...]:
    """Layers of each node of the pipeline."""
    per_node = sum(stage.gpus for stage in template.stages) // template.nodes
    bounds, used = [0], 0
    for stage in template.stages:
        used += stage.gpus
        if used % per_node == 0:
            bounds.append(stage.end)
    return tuple(range(first, end) for first, end in itertools.pairwise(bounds))


def pace_of(template: PipelineTemplate, speeds: Sequence[float]) -> GroupPace:
    """Of a pipeline whose nodes have these speeds, in pipeline order."""
    ends = [layers.stop for layers in node_layers(template)]
    slowed = [
        latency / speeds[next(index for index, end in enumerate(ends) if stage.end <= end)]
        for stage, latency in zip(template.stages, template.latencies, strict=True)
    ]
    return GroupPace(slowed[slowest_stage(slowed)], iteration_time(slowed, 0))


class _Search:
    """The survivors, the layers that they hold, and the layers that they could get."""

    def __init__(self, problem: ReconfigurationProblem) -> None:
        self.problem = problem
        self._node_layers = {size: node_layers(plan) for size, plan in problem.templates.items()}
        self.held: dict[str, range] = {
            node: layers
            for pipeline in problem.pipelines
            for node, layers in zip(pipeline, self._node_layers[len(pipeline)], strict=True)
            if node not in problem.lost
        }
        self.nodes = (*self.held, *problem.joined)
        self._sums = np.concatenate(([0], np.cumsum(np.rint(problem.state)))).astype(np.int64)
        self._costs = {size: self._cost(layers) for size, layers in self._node_layers.items()}
        self._paces = {size: GroupPace(plan.pace, plan.fill) for size, plan in problem.templates.items()}

    def cannot(self) -> CannotReconfigure | None:
        least = (self.problem.faults + 1) * min(self.problem.templates)
        if len(self.nodes) < least:
            return CannotReconfigure(f"{len(self.nodes)} nodes are left, {self.problem.faults + 1} pipelines need {least}")
        missing = set(range(len(self.problem.state))).difference(*self.held.values())
        if missing:
            return CannotReconfigure(f"no survivor holds layer {min(missing)}" + (f" nor {len(missing) - 1} others" if len(missing) > 1 else ""))
        return None

    def by_oobleck_rules(self) -> Reconfiguration | None:
        """What Oobleck's rules give, if there are templates for it."""
        if self.problem.joined:
            return None
        pipelines = oobleck_pipelines(self.problem.pipelines, self.problem.lost, min(self.problem.templates))
        sizes = [len(pipeline) for pipeline in pipelines]
        fits = len(sizes) > self.problem.faults and all(size in self._node_layers for size in sizes)
        return self.plan(pipelines, exact=False) if fits and len(sizes) <= self.problem.micro_batches else None

    def best_within(self, limit: float) -> Reconfiguration | None:
        """Sizes by rising iteration time; of equal ones the fewest bytes, then nodes; none beyond the limit."""
        best: Reconfiguration | None = None
        slow = {node for node in self.nodes if self.problem.speeds.get(node, 1.0) != 1.0}
        sizes = list(itertools.islice(self._sizes(len(self.nodes), min(self._node_layers)), COMBINATIONS + 1))
        exact = len(sizes) <= COMBINATIONS and not slow
        if len(sizes) > COMBINATIONS:
            sizes = sorted({*sizes, *self._always_considered()})
        for looked, (time, chosen) in enumerate(self._by_time(sizes)):
            worse = best is not None and time > best.time * (1 + RELATIVE_TOLERANCE)
            if worse and (not slow or looked >= SLOW_COMBINATIONS):
                break
            if looked >= PLACEMENTS:
                exact = False
                break
            if self._least_bytes(chosen) > limit:
                continue
            for pipelines in self._placements(chosen, slow):
                plan = self.plan(pipelines, exact)
                if plan.moved_bytes <= limit and (best is None or plan.key < best.key):
                    best = plan
        return best

    def plan(self, pipelines: Pipelines, exact: bool) -> Reconfiguration:
        """The figures of a layout."""
        batches = distribute([self._pace(pipeline) for pipeline in pipelines], self.problem.micro_batches)
        wanted = {node: layers for pipeline in pipelines for node, layers in zip(pipeline, self._node_layers[len(pipeline)], strict=True)}
        moved = sum(self._moved(node, layers) for node, layers in wanted.items())
        changed = sum(self.held.get(node) != layers for node, layers in wanted.items())
        return Reconfiguration(pipelines, batches, batches.makespan + self._reduce(len(pipelines)), float(moved), changed, self._copies(wanted), exact)

    def _sizes(self, nodes: int, least: int) -> Iterator[tuple[int, ...]]:
        top = max(self._node_layers)
        if nodes == 0:
            yield ()
        for size in range(least, min(nodes, top) + 1):
            if size in self._node_layers and (nodes == size or nodes - size >= size):
                for rest in self._sizes(nodes - size, size):
                    yield (size, *rest)

    def _always_considered(self) -> Iterator[tuple[int, ...]]:
        """Where there are too many combinations: the one with the shortest iteration, and that of Oobleck's rules."""
        problem = self.problem
        with contextlib.suppress(ConfigError):
            yield instantiate(self._paces, len(self.nodes), problem.micro_batches, problem.faults + 1, problem.reduce).sizes
        if not problem.joined:
            sizes = tuple(sorted(map(len, oobleck_pipelines(problem.pipelines, problem.lost, min(problem.templates)))))
            if all(size in self._node_layers for size in sizes):
                yield sizes

    def _by_time(self, sizes: list[tuple[int, ...]]) -> Iterator[tuple[float, tuple[int, ...]]]:
        """The time of a combination is only worked out once its lower bound is the least of all."""
        fitting = [chosen for chosen in sizes if self.problem.faults < len(chosen) <= self.problem.micro_batches]
        heap = [(self._bound(chosen), False, chosen) for chosen in fitting]
        heapq.heapify(heap)
        while heap:
            time, known, chosen = heapq.heappop(heap)
            if known:
                yield time, chosen
                continue
            makespan = distribute([self._paces[size] for size in chosen], self.problem.micro_batches).makespan
            heapq.heappush(heap, (makespan + self._reduce(len(chosen)), True, chosen))

    def _bound(self, chosen: tuple[int, ...]) -> float:
        bound = lower_bound([self._paces[size] for size in chosen], self.problem.micro_batches)
        return bound * (1 - RELATIVE_TOLERANCE) + self._reduce(len(chosen))

    def _reduce(self, pipelines: int) -> float:
        table = self.problem.reduce
        return table.get(pipelines, table[max(table)]) if table else 0.0

    def _pace(self, pipeline: Sequence[str]) -> GroupPace:
        speeds = [self.problem.speeds.get(node, 1.0) for node in pipeline]
        return self._paces[len(pipeline)] if all(speed == 1.0 for speed in speeds) else pace_of(self.problem.templates[len(pipeline)], speeds)

    def _moved(self, node: str, layers: range) -> int:
        held = self.held.get(node, range(0))
        both = range(max(held.start, layers.start), min(held.stop, layers.stop))
        kept = int(self._sums[both.stop] - self._sums[both.start]) if both else 0
        return int(self._sums[layers.stop] - self._sums[layers.start]) - kept

    def _cost(self, layers: tuple[range, ...]) -> CostMatrix:
        """(places, nodes): bytes, then whether the node's layers change, in one number."""
        scale = len(self.nodes) + 1
        return np.array(
            [[self._moved(node, place) * scale + (self.held.get(node) != place) for node in self.nodes] for place in layers], dtype=np.int64
        )

    def _least_bytes(self, chosen: tuple[int, ...]) -> float:
        """No assignment moves less: each place takes the node that suits it best."""
        return sum(int(self._costs[size].min(axis=1).sum()) for size in chosen) // (len(self.nodes) + 1)

    def _placements(self, chosen: tuple[int, ...], slow: set[str]) -> Iterator[Pipelines]:
        costs = np.concatenate([self._costs[size] for size in chosen])
        yield self._pipelines(chosen, costs)
        starts = [0, *itertools.accumulate(chosen)]
        for size, start in dict(zip(chosen, starts, strict=False)).items():
            if slow and len(slow) <= size:
                yield self._pipelines(chosen, self._gathered(costs, start, size, slow))

    def _gathered(self, costs: CostMatrix, start: int, size: int, slow: set[str]) -> CostMatrix:
        """The slowest node on the lightest place of one pipeline, and so on."""
        bound = costs.copy()
        dear = int(costs.max()) * len(costs) + 1
        template = self.problem.templates[size]
        loads = [sum(lat for stage, lat in zip(template.stages, template.latencies, strict=True) if stage.first in place) for place in self._node_layers[size]]
        light = sorted(range(size), key=loads.__getitem__)
        for place, node in zip(light, sorted(slow, key=lambda one: self.problem.speeds[one]), strict=False):
            bound[:, self.nodes.index(node)] += dear
            bound[start + place, self.nodes.index(node)] -= dear
        return bound

    def _pipelines(self, chosen: tuple[int, ...], costs: CostMatrix) -> Pipelines:
        order = [self.nodes[index] for index in assign(costs)]
        ends = list(itertools.accumulate(chosen))
        return tuple(tuple(order[end - size : end]) for size, end in zip(chosen, ends, strict=True))

    def _copies(self, wanted: Mapping[str, range]) -> tuple[LayerCopy, ...]:
        """Each missing layer from the holder that has sent the least so far."""
        sent = dict.fromkeys(self.held, 0.0)
        copies = []
        for node, layers in wanted.items():
            for layer in layers:
                if layer in self.held.get(node, range(0)):
                    continue
                source = min((holder for holder, held in self.held.items() if layer in held), key=sent.__getitem__)
                sent[source] += self.problem.state[layer]
                copies.append(LayerCopy(layer, source, node))
        return tuple(copies)

"""What the simulators of Oobleck's SOSP'23 artifact do, quirks included, so that their figures can be met one to one.

Known oddities, kept here and nowhere else: nodes below 12 make no pipeline; every removal starts a rendezvous of all,
also while one is under way, and a rendezvous that ends twice stops the job until a node joins; added nodes wait for the
next removal (Oobleck, Varuna); a checkpoint of Varuna fails if a removal stands before it in the array of the event
heap, whatever its time; a roll-back voids ten iterations. Times are whole milliseconds.
"""

import dataclasses
import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

READY_MS = 45_000
PIPELINE_NODES = 12
NEVER_MS = 10**12
"""Iteration of a model that does not run on so few nodes."""


class Kind(IntEnum):
    """Of equal time the lower goes first."""

    ADD = 1
    REMOVE = 2
    READY = 4
    GATHERED = 5
    REBALANCED = 6
    STEP = 7
    SAVED = 8


@dataclass(order=True)
class Event:
    """Order is by time and kind alone: where both are equal the heap decides, as there."""

    time_ms: int
    kind: Kind
    node: str = dataclasses.field(default="", compare=False)
    version: int = dataclasses.field(default=0, compare=False)


@dataclass(frozen=True)
class Case:
    """One model on one system."""

    samples: float
    """Of an iteration."""
    throughput: Mapping[int, float]
    """Nodes → samples/s; counts beyond the table take its nearest end."""
    gather_ms: int
    """Rendezvous of all after a removal."""

    def step_ms(self, nodes: int) -> int:
        """An iteration on so many nodes."""
        rate = self.throughput[min(max(nodes, min(self.throughput)), max(self.throughput))]
        return int(self.samples / rate * 1000) if rate else NEVER_MS


class Oobleck:
    """Loses the running iteration and a fixed time."""

    def __init__(self, case: Case, trace: Sequence[tuple[int, str, str]]) -> None:
        """trace: (milliseconds, add or remove, node), by time."""
        self.case = case
        self.events: list[Event] = []
        for time_ms, event, node in trace:
            heapq.heappush(self.events, Event(time_ms, Kind.ADD if event == "add" else Kind.REMOVE, node))
        heapq.heapify(self.events)  # shuffles events of equal time, and with them the places of nodes
        self.end_ms = self.events[-1].time_ms
        self.nodes: dict[str, bool] = {}
        """Those that are there, and whether they are ready."""
        self.listed: list[str] = []
        self.gathering = self.training = False
        self.version = self.steps = self.step_ms = self.before_ms = 0
        self.start_ms: int | None = None
        self.edges: list[tuple[int, int]] = []
        """(from, to) of each iteration that ended."""
        self.rates: list[float] = []
        """Samples/ms of each; voided ones have 0. May be longer than `edges`: see Varuna."""

    def average(self) -> float:
        """Samples/s from the first rendezvous to the last iteration that ended before the trace does."""
        handle = {
            Kind.ADD: self._add, Kind.REMOVE: self._remove, Kind.READY: self._ready, Kind.GATHERED: self._gathered,
            Kind.REBALANCED: self._gathered, Kind.STEP: self._step, Kind.SAVED: self._saved,
        }  # fmt: skip
        while self.events:
            event = heapq.heappop(self.events)
            if event.time_ms >= self.end_ms:
                break
            handle[event.kind](event)
        if not self.edges or self.start_ms is None:
            return 0.0
        done = sum((to - begun) * rate for (begun, to), rate in zip(self.edges, self.rates, strict=False))
        return done / (self.edges[-1][1] - self.start_ms) * 1000

    def push(self, time_ms: int, kind: Kind, node: str = "", version: int = 0) -> None:
        heapq.heappush(self.events, Event(time_ms, kind, node, version))

    def _add(self, event: Event) -> None:
        self.nodes[event.node] = False
        self.push(event.time_ms + READY_MS, Kind.READY, event.node)

    def _ready(self, event: Event) -> None:
        if event.node not in self.nodes:
            return
        self.nodes[event.node] = True
        if self.gathering:
            self.listed.append(event.node)
        elif self.training:
            self.waits(event.node)
        else:
            self.gather(event.time_ms, Kind.GATHERED)

    def waits(self, node: str) -> None:
        """A node came while the job trains."""

    def _remove(self, event: Event) -> None:
        del self.nodes[event.node]
        self.removed(event)

    def removed(self, event: Event) -> None:
        """A node is gone."""
        self.gather(event.time_ms, Kind.GATHERED)

    def gather(self, time_ms: int, kind: Kind) -> None:
        """Start a rendezvous."""
        self.gathering, self.training = True, False
        self._list(time_ms, kind)

    def _list(self, time_ms: int, kind: Kind) -> None:
        self.listed = [node for node, ready in self.nodes.items() if ready]
        self.push(time_ms + self.gather_ms(kind), kind)

    def gather_ms(self, kind: Kind) -> int:  # noqa: ARG002 - Bamboo tells two kinds apart
        return self.case.gather_ms

    def _gathered(self, event: Event) -> None:
        if any(node not in self.nodes for node in self.listed):
            self._list(event.time_ms, event.kind)
            return
        self.placed(self.listed)
        self.version += 1
        self.training = len(self.listed) >= PIPELINE_NODES
        self.gathering, self.listed = False, []
        if self.training:
            self.set_step()
            self.push(event.time_ms + self.step_ms, Kind.STEP, version=self.version)
            if self.start_ms is None:
                self.start_ms = self.before_ms = event.time_ms

    def placed(self, nodes: Sequence[str]) -> None:
        """Who takes part is known."""

    def _saved(self, event: Event) -> None:
        """A checkpoint is whole; only that it waits in the heap matters."""

    def set_step(self) -> None:
        self.step_ms = self.case.step_ms(sum(self.nodes.values()))

    def _step(self, event: Event) -> None:
        if event.version == self.version and not self.delayed(event):
            self.steps += 1
            self.edges.append((self.before_ms, event.time_ms))
            self.rates.append(self.case.samples / (event.time_ms - self.before_ms))
            self.before_ms = self.ended(event.time_ms)
            self.next(self.before_ms)

    def delayed(self, event: Event) -> bool:  # noqa: ARG002 - Bamboo may
        return False

    def ended(self, time_ms: int) -> int:
        """When the next iteration may begin."""
        return time_ms

    def next(self, time_ms: int) -> None:
        self.push(time_ms + self.step_ms, Kind.STEP, version=self.version)


class Varuna(Oobleck):
    """Goes back to the last checkpoint, of each tenth iteration and of the first after a removal."""

    every = 10

    def __init__(self, case: Case, trace: Sequence[tuple[int, str, str]], save_ms: int, restart_ms: Mapping[int, int], rolls_back: bool) -> None:
        """restart_ms: nodes → time, where it depends on them. rolls_back: the artifact's spot runs of small models do not."""
        super().__init__(case, trace)
        self._save_ms, self._restart_ms, self._rolls_back = save_ms, restart_ms, rolls_back
        self._now_restart_ms = case.gather_ms
        self._saved_ms: int | None = None
        self._removed = False

    def gather_ms(self, kind: Kind) -> int:  # noqa: ARG002 - Bamboo tells two kinds apart
        return self._now_restart_ms - self._save_ms

    def set_step(self) -> None:
        super().set_step()
        if self._restart_ms:
            count = min(max(sum(self.nodes.values()), min(self._restart_ms)), max(self._restart_ms))
            self._now_restart_ms = self._restart_ms[count]

    def removed(self, event: Event) -> None:
        self._removed = True
        if self._rolls_back:
            self._void_since_checkpoint()
        self.gather(event.time_ms, Kind.GATHERED)

    def _void_since_checkpoint(self) -> None:
        first = 0
        if self._saved_ms is not None:
            first = next((index for index, (begun, _) in enumerate(self.edges) if begun == self._saved_ms), len(self.edges))
        self.rates[first:] = [0.0] * len(self.rates[first:])

    def ended(self, time_ms: int) -> int:
        if self.steps % self.every and not self._removed:
            return time_ms
        self._removed = False
        time_ms += self._save_ms
        self.push(time_ms + self._save_ms, Kind.SAVED)
        heapq.heapify(self.events)
        if self._rolls_back and self._save_fails():
            self.steps = max(0, self.steps - self.every)
            self.rates[-self.every :] = [0.0] * self.every  # of fewer than ten it makes ten: all later rates are out of step
        else:
            self._saved_ms = time_ms
        return time_ms

    def _save_fails(self) -> bool:
        kinds = [event.kind for event in self.events]
        return Kind.REMOVE in kinds[: kinds.index(Kind.SAVED)]


class Bamboo(Oobleck):
    """The predecessor takes the lost node's stage over, slower; a second loss beside it starts all anew."""

    fallback_percent = 50

    def __init__(self, case: Case, trace: Sequence[tuple[int, str, str]], rebalance_ms: int) -> None:
        super().__init__(case, trace)
        self._rebalance_ms = rebalance_ms
        self._stages: dict[str, list[tuple[int, int]]] = {}
        self._pipelines = self._waiting = 0
        self._fallback: tuple[int, int] | None = None
        self._handled = False

    def waits(self, node: str) -> None:  # noqa: ARG002 - a hook
        self._waiting += 1

    def gather_ms(self, kind: Kind) -> int:
        return self._rebalance_ms if kind is Kind.REBALANCED else self.case.gather_ms

    def placed(self, nodes: Sequence[str]) -> None:
        self._pipelines = len(nodes) // PIPELINE_NODES
        places = [divmod(place, PIPELINE_NODES) for place in range(self._pipelines * PIPELINE_NODES)]
        self._stages.update({node: [] for node in nodes})
        self._stages.update({node: [place] for node, place in zip(nodes, places, strict=False)})
        self._waiting = len(nodes) - len(places)
        self._fallback, self._handled = None, False

    def removed(self, event: Event) -> None:
        held = self._stages.pop(event.node, [])
        if held and (len(held) > 1 or not self._taken_over(held[0])):
            self.gather(event.time_ms, Kind.GATHERED)
        elif self.training and self._fallback is None:
            self._fallback, self._handled = (self.steps, event.time_ms), False
            self.step_ms += self.step_ms * self.fallback_percent // 100

    def _taken_over(self, place: tuple[int, int]) -> bool:
        before = (place[0], (place[1] - 1) % PIPELINE_NODES)
        holder = next((node for node in self.nodes if before in self._stages.get(node, [])), None)
        if holder is not None:
            if len(self._stages[holder]) > 1:
                return False
            self._stages[holder].append(place)
        return True

    def delayed(self, event: Event) -> bool:
        if self._fallback is None or self._handled or self._fallback[0] != self.steps:
            return False
        late_ms = (event.time_ms - self._fallback[1]) * self.fallback_percent // 100
        self.push(event.time_ms + late_ms, Kind.STEP, version=event.version)
        self._handled = True
        return True

    def next(self, time_ms: int) -> None:
        if self._should_rebalance():
            self.gather(time_ms, Kind.REBALANCED)
        else:
            super().next(time_ms)

    def _should_rebalance(self) -> bool:
        overloaded = sum(len(held) == 2 for held in self._stages.values())
        active = self._pipelines * PIPELINE_NODES - overloaded
        unsafe = overloaded > 0 and (self._waiting >= overloaded or 2 * overloaded / active > 0.05)
        return unsafe or (active + self._waiting) // PIPELINE_NODES > self._pipelines

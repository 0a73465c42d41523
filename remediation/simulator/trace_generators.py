"""Fault traces generated from a seed: the same seed gives the same trace, whatever the policy.

| name | what | source |
|---|---|---|
| trace-a | 8 weeks, 10 node faults, 33 others; a node is back after 1 to 7 days | Unicron, evaluation (from memory of the paper) |
| trace-b | 7 days, 26 node faults, 80 others; a node is back after 6 h to 1 day | the same, frequency × 20 |
| llama3 | 419 in 54 days on 16,384 GPUs, by cause, for clusters of any size | Llama 3 report, table 5 |
| poisson | node faults alone, by the mean time between failures of a GPU | textbook |
| switches | all nodes under one switch lost at once, back after 10 minutes to 2 hours | assumed |
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from eagle_eye.errors import ConfigError

from .fault_trace import ASSUMED_NODE_MTBF_S, FaultKind, FaultSymptom, FaultTrace, TraceEvent, observed_mtbf_s

HOUR_S, DAY_S = 3600.0, 86_400.0
OUT_HOURS = (24.0, 168.0)
"""How long a node with a broken part is out, unless its cause names a time: 1 to 7 days, Unicron's trace-a."""
SWITCH_MTBF_S = 5 * 365 * DAY_S
SWITCH_NODES = 16
SWITCH_OUT_HOURS = (1 / 6, 2.0)


class FaultCause(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of a table of faults."""

    name: str
    count: float
    kind: str
    symptom: str
    speed: float = 1.0
    out_hours: tuple[float, float] = OUT_HOURS


class FaultMix(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A published table of faults."""

    name: str
    source: str
    cause: tuple[FaultCause, ...]
    gpu_days: float = 0.0
    """In how many days of one GPU they were counted; 0: only their shares are known."""


@dataclass(frozen=True, slots=True)
class ClusterSize:
    """The cluster that a trace is made for."""

    nodes: int
    days: float
    gpus_per_node: int = 8

    def __post_init__(self) -> None:
        for field, value in (("nodes", self.nodes), ("days", self.days), ("gpus per node", self.gpus_per_node)):
            if not value > 0:
                raise ConfigError(f"{field} is {value}; it must be above 0")


@cache
def fault_mix(name: str) -> FaultMix:
    """A table of the package by its name."""
    return msgspec.toml.decode((Path(__file__).with_name("fault_mixes") / f"{name}.toml").read_bytes(), type=FaultMix)


def trace_a(size: ClusterSize, seed: int) -> FaultTrace:
    """Unicron's first trace for its cluster; its counts grow with nodes and days."""
    return _like_unicron("trace-a", size, seed, node_faults=10 * size.days / 56 * size.nodes / 16, others=33 * size.days / 56 * size.nodes / 16, out_hours=(24, 168))


def trace_b(size: ClusterSize, seed: int) -> FaultTrace:
    """Unicron's second trace, twenty times as dense."""
    return _like_unicron("trace-b", size, seed, node_faults=26 * size.days / 7 * size.nodes / 16, others=80 * size.days / 7 * size.nodes / 16, out_hours=(6, 24))


def llama3(size: ClusterSize, seed: int) -> FaultTrace:
    """Poisson at the rate of the report, for each GPU of the cluster."""
    table = fault_mix("llama3")
    random = np.random.default_rng([seed, 3])
    expected = sum(each.count for each in table.cause) / table.gpu_days * size.nodes * size.gpus_per_node * size.days
    times = random.uniform(0, size.days * DAY_S, random.poisson(expected))
    return _trace("llama3", size, _suffered(_drawn(random, times, table.cause), size))


def poisson(size: ClusterSize, seed: int, gpu_mtbf_s: float = ASSUMED_NODE_MTBF_S * 8) -> FaultTrace:
    """Node faults alone."""
    random = np.random.default_rng([seed, 4])
    rate = size.nodes * size.gpus_per_node / gpu_mtbf_s
    times = random.uniform(0, size.days * DAY_S, random.poisson(rate * size.days * DAY_S))
    return _trace("poisson", size, _suffered(_drawn(random, times, [FaultCause("node fault", 1, FaultKind.LOST, FaultSymptom.LOST)]), size))


def switches(size: ClusterSize, seed: int) -> FaultTrace:
    """Nodes under one switch are lost and come back together; nothing else happens."""
    random = np.random.default_rng([seed, 5])
    groups = [tuple(range(first, min(first + SWITCH_NODES, size.nodes))) for first in range(0, size.nodes, SWITCH_NODES)]
    times = np.sort(random.uniform(0, size.days * DAY_S, random.poisson(len(groups) * size.days * DAY_S / SWITCH_MTBF_S)))
    outages = _Outages(size)
    for time in times.tolist():
        outages.lose(time, groups[random.integers(len(groups))], random.uniform(*SWITCH_OUT_HOURS) * HOUR_S, "switch", FaultSymptom.LOST)
    return _trace("switches", size, outages.events)


Generator = Callable[[ClusterSize, int], FaultTrace]
GENERATORS: dict[str, tuple[Generator, ClusterSize]] = {
    "trace-a": (trace_a, ClusterSize(16, 56)),
    "trace-b": (trace_b, ClusterSize(16, 7)),
    "llama3": (llama3, ClusterSize(10_000, 30)),
    "poisson": (poisson, ClusterSize(10_000, 30)),
    "switches": (switches, ClusterSize(10_000, 365)),
    "llama3+switches": (lambda size, seed: llama3(size, seed).joined_with(switches(size, seed)), ClusterSize(10_000, 30)),
}
"""Name → how it is made, and for which cluster if nothing else is asked for."""


def generate(name: str, seed: int, nodes: int | None = None, days: float | None = None, gpus_per_node: int = 8) -> FaultTrace:
    """A trace by its name. Raises ConfigError for an unknown one."""
    if name not in GENERATORS:
        raise ConfigError(f"no trace is called {name!r}; there are {', '.join(GENERATORS)}, or give a CSV file")
    make, usual = GENERATORS[name]
    return make(ClusterSize(usual.nodes if nodes is None else nodes, usual.days if days is None else days, gpus_per_node), seed)


def _like_unicron(name: str, size: ClusterSize, seed: int, node_faults: float, others: float, out_hours: tuple[float, float]) -> FaultTrace:
    """Exactly so many faults at uniform times: what a Poisson process is once its counts are known."""
    random = np.random.default_rng([seed, 1])
    causes = fault_mix("unicron").cause
    hard = [each for each in causes if each.kind == FaultKind.LOST]
    soft = [each for each in causes if each.kind != FaultKind.LOST]
    drawn = []
    for some, number in ((hard, node_faults), (soft, others)):
        times = random.uniform(0, size.days * DAY_S, round(number))
        drawn += _drawn(random, times, [msgspec.structs.replace(each, out_hours=out_hours) for each in some])
    return _trace(name, size, _suffered(drawn, size))


class _Fault(NamedTuple):
    """Drawn, but not assigned to a node yet."""

    time_s: float
    cause: FaultCause
    place: float
    """Of the nodes, from 0 to 1."""
    out: float
    """Of the range of the cause's time out, from 0 to 1."""


def _drawn(random: np.random.Generator, times: NDArray[np.float64], causes: Sequence[FaultCause]) -> list[_Fault]:
    """A cause for each time by its share."""
    shares = np.array([each.count for each in causes])
    chosen = random.choice(len(causes), len(times), p=shares / shares.sum())
    rows = zip(times.tolist(), chosen.tolist(), random.random(len(times)).tolist(), random.random(len(times)).tolist(), strict=True)
    return [_Fault(time_s, causes[index], place, out) for time_s, index, place, out in rows]


def _suffered(faults: Sequence[_Fault], size: ClusterSize) -> list[TraceEvent]:
    """By nodes that are there at the time."""
    outages = _Outages(size)
    for fault in sorted(faults, key=lambda each: each.time_s):
        low, high = fault.cause.out_hours
        outages.add(fault.time_s, fault.cause, int(fault.place * size.nodes), (low + (high - low) * fault.out) * HOUR_S)
    return outages.events


class _Outages:
    """Which nodes are out until when: nothing happens to a node that is not there."""

    def __init__(self, size: ClusterSize) -> None:
        self._back_s = np.zeros(size.nodes)
        self._end_s = size.days * DAY_S
        self.events: list[TraceEvent] = []

    def add(self, time: float, cause: FaultCause, node: int, out_s: float) -> None:
        """The next node that is there takes it."""
        for step in range(len(self._back_s)):
            at = (node + step) % len(self._back_s)
            if self._back_s[at] <= time:
                break
        else:
            return
        if cause.kind == FaultKind.LOST:
            self.lose(time, (at,), out_s, cause.name, FaultSymptom(cause.symptom))
        elif cause.kind == FaultKind.SLOW:
            self._back_s[at] = time + out_s
            self._note(TraceEvent(time, FaultKind.SLOW, (at,), FaultSymptom.HANG, cause.speed, cause.name))
            self._note(TraceEvent(time + out_s, FaultKind.HEALTHY, (at,)))
        else:
            self._note(TraceEvent(time, FaultKind(cause.kind), (at,), FaultSymptom(cause.symptom), 1.0, cause.name))

    def lose(self, time: float, nodes: tuple[int, ...], out_s: float, cause: str, symptom: FaultSymptom) -> None:
        """Those of the nodes that are there."""
        there = tuple(node for node in nodes if self._back_s[node] <= time)
        if there:
            self._back_s[list(there)] = time + out_s
            self._note(TraceEvent(time, FaultKind.LOST, there, symptom, 1.0, cause))
            self._note(TraceEvent(time + out_s, FaultKind.JOINED, there))

    def _note(self, event: TraceEvent) -> None:
        if event.time_s < self._end_s:
            self.events.append(event)


def _trace(name: str, size: ClusterSize, events: Sequence[TraceEvent]) -> FaultTrace:
    ordered = tuple(sorted(events, key=lambda each: each.time_s))
    duration_s = size.days * DAY_S
    return FaultTrace(name, size.nodes, duration_s, ordered, node_mtbf_s=observed_mtbf_s(size.nodes, duration_s, ordered))

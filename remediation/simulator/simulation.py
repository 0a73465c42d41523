"""One policy through one trace: discrete events with simpy.

Events of the trace, ends of detections and of switches are events of simpy; all between them is in closed form.
"""

import dataclasses
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import simpy

from eagle_eye.errors import ConfigError
from remediation.planner.decision.decision import AlternativeKind, IncidentCase, TransitionCosts, decide

from .allocation_cache import AllocationCache
from .capacity import CapacityRule, NodePool, ReallocateCluster, ShrinkJob, WaitForNode
from .fault_trace import FaultKind, FaultSymptom, FaultTrace, TraceEvent
from .job_mix import JobMixEntry
from .recovery_policy import REPAIRS, RecoveryPolicy, Repair
from .simulated_job import MICRO_BATCHES, SimulatedJob, SimulatedPhase, StateSource
from .time_accounting import TimeAccounting, TimeCategory

Process = Generator[Any, None, None]
SLOW_HORIZON_S = 3600.0
"""How long a node is expected to stay slow: the horizon of the decision (assumed; the traces do not tell the policy)."""
EVICTING = frozenset({AlternativeKind.SHRINK, AlternativeKind.SPARE, AlternativeKind.RELAYOUT, AlternativeKind.RESTART})
"""Alternatives that take the slow node out of its job."""
ROUNDING_S = 1e-6
"""What rounding may leave of work to do again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """The jobs and the cluster, the same for every policy."""

    jobs: Sequence[JobMixEntry]
    gpus_per_node: int = 8
    unit: int = 1
    """Nodes are allocated in groups of so many."""
    spares: int = 0
    """Nodes that policies of fixed size hold back at the start; the others need none."""
    start: Sequence[int] | None = None
    """Nodes of each job at the start; None: as the planner allocates them."""

    def __post_init__(self) -> None:
        for name, value, least in (("gpus_per_node", self.gpus_per_node, 1), ("unit", self.unit, 1), ("spares", self.spares, 0)):
            if value < least:
                raise ConfigError(f"{name} is {value}; it must be {least} or more")
        if not self.jobs:
            raise ConfigError("there is no job to simulate")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """Outcome of one policy on one trace."""

    policy: str
    trace: str
    duration_s: float
    gpus: int
    waf_s: float
    """WAF·seconds of all jobs together: weighted FLOP that count."""
    time_shares: dict[str, float]
    """Share of all GPU-seconds by category; sums to 1."""
    jobs: dict[str, float]
    """WAF·seconds by job."""
    trace_events: int
    events: int
    """Of simpy: events of the trace, ends of detections and switches."""
    allocations_asked: int
    allocations_solved: int
    allocations_s: float
    intervals: Sequence[tuple[float, float, float]] = field(default=(), repr=False)
    """(from, to, WAF·seconds) of all jobs, where asked for."""

    @property
    def mean_waf(self) -> float:
        """Weighted FLOP/s over the whole time."""
        return self.waf_s / self.duration_s if self.duration_s else 0.0


def simulate(scenario: Scenario, policy: RecoveryPolicy, trace: FaultTrace, timeline: bool = False, timer: Callable[[], float] = time.process_time) -> SimulationResult:
    """Run it. Raises ConfigError where the jobs do not fit at the start."""
    return _Simulation(scenario, policy, trace, timer).run(timeline)


def initial_allocation(scenario: Scenario, nodes: int, node_mtbf_s: float, policy: RecoveryPolicy) -> tuple[int, ...]:
    """Nodes of each job at the start: as given, else the planner's allocation for Megatron's throughput, the same for all policies."""
    if scenario.start is not None:
        if len(scenario.start) != len(scenario.jobs) or min(scenario.start) < 0 or sum(scenario.start) > nodes:
            raise ConfigError(f"start is {tuple(scenario.start)}; it must be {len(scenario.jobs)} counts of 0 or more, together at most {nodes}")
        return tuple(scenario.start)
    neutral = policy.with_constants(efficiency=1.0, templates=False).costs
    plans = AllocationCache(scenario.jobs, neutral, scenario.unit, node_mtbf_s, scenario.gpus_per_node)
    return plans.allocate([0] * len(scenario.jobs), nodes)


def decide_slow_node(run: SimulatedJob, speeds: Mapping[int, float], spares: int) -> AlternativeKind:
    """The cheapest for this job, whose slow nodes are those of `speeds`."""
    costs = run.costs
    case = IncidentCase(
        task=run.job.name, gpus=run.gpus, gpus_per_node=run.gpus_per_node, healthy=max(run.rate / run.speed / run.job.weight, 1e-12),
        iteration_s=run.job.iteration_s, repair_s=SLOW_HORIZON_S, weight=run.job.weight, slow={str(node): speed for node, speed in speeds.items()},
        spares=spares, replicas=max(1, len(run.nodes) // run.job.replica), stages=run.job.replica, micro_batches=MICRO_BATCHES,
    )  # fmt: skip
    switch_s = costs.switch_s("reconfigure", run.gpus) + costs.load_replica_s
    seconds = TransitionCosts(regroup_s=switch_s, spare_start_s=0.0, restart_s=costs.restart_s + costs.load_storage_s, lost_iterations=0.0)
    return decide(case, seconds).best.kind


class _Simulation:
    def __init__(self, scenario: Scenario, policy: RecoveryPolicy, trace: FaultTrace, timer: Callable[[], float]) -> None:
        self._scenario, self._policy, self._trace = scenario, policy, trace
        self._costs = policy.costs
        self._env = simpy.Environment()
        self._events = 0
        self._runs = [SimulatedJob(job, policy.costs, scenario.gpus_per_node, self._time) for job in scenario.jobs]
        self._allocations = AllocationCache(scenario.jobs, policy.costs, scenario.unit, trace.node_mtbf_s, scenario.gpus_per_node, timer)
        self._out = [0] * trace.nodes
        """How many outages keep each node away."""
        for node in trace.missing:
            self._out[node] = 1
        self._pool = NodePool([node for node in range(trace.nodes) if not self._out[node]])
        self._capacity = self._chosen_capacity()
        self._slow: dict[int, float] = {}
        self._known_slow: set[int] = set()
        self._slowed_down = False
        self._evicted: set[int] = set()
        """Slow nodes that a decision evicted from their jobs."""
        self._unassigned = TimeAccounting()
        """Of nodes that no job holds."""
        self._accounted_until = 0.0

    def _time(self) -> float:
        return float(self._env.now)

    def _chosen_capacity(self) -> CapacityRule:
        if self._costs.capacity == "reallocate":
            return ReallocateCluster(self._runs, self._pool, self._allocations)
        return (WaitForNode if self._costs.capacity == "wait" else ShrinkJob)(self._runs, self._pool)

    def run(self, timeline: bool) -> SimulationResult:
        self._start()
        self._env.process(self._replay_trace())
        if self._trace.duration_s > 0:
            self._env.run(until=self._trace.duration_s)
        self._account_time()
        for run in self._runs:
            run.account_time()
        accounting = self._whole_accounting()
        return SimulationResult(
            policy=self._policy.label, trace=self._trace.name, duration_s=self._trace.duration_s, gpus=self._trace.nodes * self._scenario.gpus_per_node,
            waf_s=sum(run.waf_s for run in self._runs), time_shares=dict(accounting.shares()), jobs={run.job.name: run.waf_s for run in self._runs},
            trace_events=len(self._trace.events), events=self._events, allocations_asked=self._allocations.asked, allocations_solved=self._allocations.solved,
            allocations_s=self._allocations.seconds, intervals=[each for run in self._runs for each in run.intervals] if timeline else (),
        )  # fmt: skip

    def _whole_accounting(self) -> TimeAccounting:
        accounting = TimeAccounting()
        for each in (self._unassigned, *(run.accounting for run in self._runs)):
            accounting.add(each)
        accounting.check_total(self._trace.nodes * self._scenario.gpus_per_node * self._trace.duration_s)
        return accounting

    def _start(self) -> None:
        counts = self._counts_at_start()
        for run, count in zip(self._runs, counts, strict=True):
            run.target_nodes = count
            self._pool.fill(run, count)
        for run in self._runs:
            run.enter(SimulatedPhase.RUNNING if self._capacity.enough(run) else SimulatedPhase.WAITING)

    def _counts_at_start(self) -> tuple[int, ...]:
        """A policy of fixed size keeps it while nodes are missing; one that reallocates uses the nodes that are present."""
        mtbf_s = self._trace.node_mtbf_s
        if self._costs.capacity == "reallocate" and self._trace.missing:
            return initial_allocation(dataclasses.replace(self._scenario, start=None), len(self._pool), mtbf_s, self._policy)
        spares = self._scenario.spares if self._costs.capacity == "wait" else 0
        return initial_allocation(self._scenario, max(0, self._trace.nodes - spares), mtbf_s, self._policy)

    def _replay_trace(self) -> Process:
        handle = {
            FaultKind.LOST: self._lost, FaultKind.JOINED: self._joined, FaultKind.RESTART: self._failed, FaultKind.TRANSIENT: self._failed,
            FaultKind.SLOW: self._slowed, FaultKind.HEALTHY: self._healthy,
        }  # fmt: skip
        for event in self._trace.events:
            if event.time_s > self._env.now:
                yield self._env.timeout(event.time_s - self._env.now)
            self._events += 1
            self._account_time()
            handle[event.kind](event)

    def _account_time(self) -> None:
        """Account the nodes that no job holds, until now; jobs account their own."""
        now = self._time()
        passed = (now - self._accounted_until) * self._scenario.gpus_per_node
        self._unassigned.add_time(TimeCategory.IDLE, passed * len(self._pool))
        self._unassigned.add_time(TimeCategory.SUB_HEALTHY, passed * (self._trace.nodes - self._pool.held - len(self._pool)))
        self._accounted_until = now

    def _lost(self, event: TraceEvent) -> None:
        hit: dict[int, list[int]] = {}
        for node in event.nodes:
            self._out[node] += 1
            self._forget_slow(node)
            run = self._pool.lose(node)
            if run is not None:
                hit.setdefault(self._runs.index(run), []).append(node)
        for index, nodes in hit.items():
            self._lose_nodes(self._runs[index], nodes, event.symptom)

    def _lose_nodes(self, run: SimulatedJob, nodes: list[int], symptom: FaultSymptom) -> None:
        run.lose_nodes(nodes)
        self._update_speeds()
        if run.phase is not SimulatedPhase.WAITING:
            self._env.process(self._heal(run, symptom, "reconfigure", self._costs.drain_s))

    def _failed(self, event: TraceEvent) -> None:
        run = self._pool.holder(event.nodes[0])
        if run is None or run.phase is SimulatedPhase.WAITING:
            return
        repair = self._costs.repair(event.kind)
        source = StateSource.KEPT
        if repair != "reattempt":
            source = run.source_after(event.nodes)
            if source is StateSource.STORAGE and self._costs.memory:
                source = StateSource.MEMORY  # the node is alive, and so is its memory
        run.fail(source, 1 / max(1, run.gpus))
        self._env.process(self._heal(run, event.symptom, repair, 0.0))

    def _joined(self, event: TraceEvent) -> None:
        came = False
        for node in event.nodes:
            self._out[node] -= 1
            if not self._out[node]:
                self._pool.give(node)
                came = True
        if came:
            self._apply_allocation(self._capacity.after_join())

    def _slowed(self, event: TraceEvent) -> None:
        node = event.nodes[0]
        if self._out[node]:
            return
        self._slow[node] = event.speed
        self._update_speeds()
        if self._costs.detection_slow_s >= 0:
            self._env.process(self._notice_slow(node))

    def _notice_slow(self, node: int) -> Process:
        yield self._env.timeout(self._costs.detection_slow_s)
        self._events += 1
        run = self._pool.holder(node)
        if node not in self._slow or run is None or not run.runs:
            return
        self._account_time()
        slow = {each: speed for each, speed in self._slow.items() if self._pool.holder(each) is run}
        best = decide_slow_node(run, slow, len(self._pool)) if self._costs.decides else AlternativeKind.REBALANCE
        if best in EVICTING:
            self._evict_slow_node(run, node)
        elif best is not AlternativeKind.NOTHING:
            self._known_slow.add(node)
            self._update_speeds()

    def _evict_slow_node(self, run: SimulatedJob, node: int) -> None:
        """A slow node is evicted until it is healthy: a planned transition, nothing is lost."""
        self._out[node] += 1
        self._evicted.add(node)
        self._pool.lose(node)
        run.remove_node(node)
        self._update_speeds()
        self._apply_allocation([*self._capacity.after_fault(run), run])

    def _healthy(self, event: TraceEvent) -> None:
        node = event.nodes[0]
        self._forget_slow(node)
        self._update_speeds()
        if node in self._evicted:
            self._evicted.remove(node)
            self._joined(event)

    def _forget_slow(self, node: int) -> None:
        self._slow.pop(node, None)
        self._known_slow.discard(node)

    def _update_speeds(self) -> None:
        """Slow nodes, or who holds them, have changed."""
        if self._slow or self._slowed_down:
            self._slowed_down = bool(self._slow)
            for run in self._runs:
                slow = {node: speed for node, speed in self._slow.items() if self._pool.holder(node) is run}
                if slow or run.speed < 1:
                    run.slow_down(slow, balanced=slow.keys() <= self._known_slow)

    def _heal(self, run: SimulatedJob, symptom: FaultSymptom, repair: Repair, drain_s: float) -> Process:
        if not run.runs:
            repair = max(repair, run.repair, key=REPAIRS.index)  # what was under way is still needed
        run.repair = repair
        version = run.enter(SimulatedPhase.DETECTION)
        yield self._env.timeout(self._costs.detection_s(symptom, run.job.iteration_s) + drain_s)
        self._events += 1
        if run.version != version:
            return
        self._account_time()
        if repair == "reconfigure":
            self._apply_allocation(self._capacity.after_fault(run))
        self._switch(run, repair)

    def _apply_allocation(self, runs: Sequence[SimulatedJob]) -> None:
        """Jobs whose nodes an allocation changed: their state is whole."""
        self._update_speeds()
        for run in runs:
            if run.phase is not SimulatedPhase.DETECTION:
                self._switch(run, "reconfigure")

    def _switch(self, run: SimulatedJob, repair: Repair) -> None:
        if not self._capacity.enough(run):
            if run.phase is not SimulatedPhase.WAITING:
                run.enter(SimulatedPhase.WAITING)
                run.source = max(run.source, StateSource.MEMORY if self._costs.memory else StateSource.STORAGE, key=list(StateSource).index)
            return
        self._env.process(self._transition_and_recompute(run, repair))

    def _transition_and_recompute(self, run: SimulatedJob, repair: Repair) -> Process:
        version = run.enter(SimulatedPhase.TRANSITION)
        yield self._env.timeout(self._costs.switch_s(repair, run.gpus) + self._load_state_s(run, repair))
        self._events += 1
        if run.version != version:
            return
        while (again_s := run.recomputation_s()) > ROUNDING_S:  # again, where a slow node made it take longer
            version = run.enter(SimulatedPhase.RECOMPUTATION)
            yield self._env.timeout(again_s)
            self._events += 1
            if run.version != version:
                return
            run.account_time()
        run.enter(SimulatedPhase.RUNNING)

    def _load_state_s(self, run: SimulatedJob, repair: Repair) -> float:
        costs, source = self._costs, run.source if repair != "reattempt" else StateSource.KEPT
        if source is StateSource.STORAGE:
            return costs.load_storage_s
        if source is StateSource.MEMORY:
            return costs.load_memory_s
        return costs.load_replica_s * run.load_share() if costs.replica else 0.0

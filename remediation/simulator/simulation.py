"""One policy through one trace: discrete events with simpy.

Events of the trace, ends of detections and of switches are events of simpy; all between them is in closed form.
"""

import dataclasses
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import simpy

from eagle_eye.errors import ConfigError
from remediation.planner.decision.decision import AlternativeKind as Choice

from .capacity import Capacity, Pool, Share, Shrink, Wait
from .fault_trace import Happening, Kind, Shows, Trace
from .job_mix import Job
from .plan_cache import Plans
from .recovery_policy import REPAIRS, Policy, Repair
from .simulated_job import JobRun, Phase, Source
from .slow_node_choice import LEFT_OUT, about_slow
from .time_accounting import Account, Books

Process = Generator[Any, None, None]
INSTANT_S = 1e-6
"""What rounding may leave of work to do again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What every policy gets alike."""

    jobs: Sequence[Job]
    gpus_per_node: int = 8
    unit: int = 1
    """Nodes are handed out by so many."""
    spares: int = 0
    """Nodes that policies of fixed size hold back at the start; the others need none."""
    start: Sequence[int] | None = None
    """Nodes of each job at the start; None: as the planner shares them out."""

    def __post_init__(self) -> None:
        for name, value, least in (("gpus_per_node", self.gpus_per_node, 1), ("unit", self.unit, 1), ("spares", self.spares, 0)):
            if value < least:
                raise ConfigError(f"{name} is {value}; it must be {least} or more")
        if not self.jobs:
            raise ConfigError("there is no job to simulate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came out."""

    policy: str
    trace: str
    duration_s: float
    gpus: int
    waf_s: float
    """WAF·seconds of all jobs together: weighted FLOP that count."""
    books: dict[str, float]
    """Share of all GPU-seconds by account; sums to 1."""
    jobs: dict[str, float]
    """WAF·seconds by job."""
    happenings: int
    events: int
    """Of simpy: happenings, ends of detections and switches."""
    plans_asked: int
    plans_solved: int
    plans_s: float
    stretches: Sequence[tuple[float, float, float]] = field(default=(), repr=False)
    """(from, to, WAF·seconds) of all jobs, where asked for."""

    @property
    def mean_waf(self) -> float:
        """Weighted FLOP/s over the whole time."""
        return self.waf_s / self.duration_s if self.duration_s else 0.0


def simulate(scenario: Scenario, policy: Policy, trace: Trace, timeline: bool = False, timer: Callable[[], float] = time.process_time) -> Result:
    """Run it. Raises ConfigError where the jobs do not fit at the start."""
    return _Simulation(scenario, policy, trace, timer).run(timeline)


def start_of(scenario: Scenario, nodes: int, node_mtbf_s: float, policy: Policy) -> tuple[int, ...]:
    """Nodes of each job at the start: as given, else the planner's plan for Megatron's throughput, the same for all policies."""
    if scenario.start is not None:
        if len(scenario.start) != len(scenario.jobs) or min(scenario.start) < 0 or sum(scenario.start) > nodes:
            raise ConfigError(f"start is {tuple(scenario.start)}; it must be {len(scenario.jobs)} counts of 0 or more, together at most {nodes}")
        return tuple(scenario.start)
    neutral = policy.but(efficiency=1.0, templates=False).costs
    plans = Plans(scenario.jobs, neutral, scenario.unit, node_mtbf_s, scenario.gpus_per_node)
    return plans.share([0] * len(scenario.jobs), nodes)


class _Simulation:
    def __init__(self, scenario: Scenario, policy: Policy, trace: Trace, timer: Callable[[], float]) -> None:
        self._scenario, self._policy, self._trace = scenario, policy, trace
        self._costs = policy.costs
        self._env = simpy.Environment()
        self._events = 0
        self._runs = [JobRun(job, policy.costs, scenario.gpus_per_node, self._time) for job in scenario.jobs]
        self._plans = Plans(scenario.jobs, policy.costs, scenario.unit, trace.node_mtbf_s, scenario.gpus_per_node, timer)
        self._out = [0] * trace.nodes
        """How many outages keep each node away."""
        for node in trace.missing:
            self._out[node] = 1
        self._pool = Pool([node for node in range(trace.nodes) if not self._out[node]])
        self._capacity = self._chosen_capacity()
        self._slow: dict[int, float] = {}
        self._known_slow: set[int] = set()
        self._slowed_down = False
        self._left_out: set[int] = set()
        """Slow nodes that a decision took out of their jobs."""
        self._beside = Books()
        """Of nodes that no job holds."""
        self._settled = 0.0

    def _time(self) -> float:
        return float(self._env.now)

    def _chosen_capacity(self) -> Capacity:
        if self._costs.capacity == "share":
            return Share(self._runs, self._pool, self._plans)
        return (Wait if self._costs.capacity == "wait" else Shrink)(self._runs, self._pool)

    def run(self, timeline: bool) -> Result:
        self._start()
        self._env.process(self._live())
        if self._trace.duration_s > 0:
            self._env.run(until=self._trace.duration_s)
        self._settle()
        for run in self._runs:
            run.settle()
        books = self._closed_books()
        return Result(
            policy=self._policy.label, trace=self._trace.name, duration_s=self._trace.duration_s, gpus=self._trace.nodes * self._scenario.gpus_per_node,
            waf_s=sum(run.waf_s for run in self._runs), books=dict(books.shares()), jobs={run.job.name: run.waf_s for run in self._runs},
            happenings=len(self._trace.happenings), events=self._events, plans_asked=self._plans.asked, plans_solved=self._plans.solved,
            plans_s=self._plans.seconds, stretches=[each for run in self._runs for each in run.stretches] if timeline else (),
        )  # fmt: skip

    def _closed_books(self) -> Books:
        books = Books()
        for each in (self._beside, *(run.books for run in self._runs)):
            books.add(each)
        books.close(self._trace.nodes * self._scenario.gpus_per_node * self._trace.duration_s)
        return books

    def _start(self) -> None:
        counts = self._counts_at_start()
        for run, count in zip(self._runs, counts, strict=True):
            run.wanted = count
            self._pool.fill(run, count)
        for run in self._runs:
            run.enter(Phase.RUNNING if self._capacity.enough(run) else Phase.WAITING)

    def _counts_at_start(self) -> tuple[int, ...]:
        """Who has a size of his own has it also while nodes are missing; who shares, shares what is there."""
        mtbf_s = self._trace.node_mtbf_s
        if self._costs.capacity == "share" and self._trace.missing:
            return start_of(dataclasses.replace(self._scenario, start=None), len(self._pool), mtbf_s, self._policy)
        spares = self._scenario.spares if self._costs.capacity == "wait" else 0
        return start_of(self._scenario, max(0, self._trace.nodes - spares), mtbf_s, self._policy)

    def _live(self) -> Process:
        handle = {
            Kind.LOST: self._lost, Kind.JOINED: self._joined, Kind.RESTART: self._failed, Kind.TRANSIENT: self._failed,
            Kind.SLOW: self._slowed, Kind.HEALTHY: self._healthy,
        }  # fmt: skip
        for happening in self._trace.happenings:
            if happening.time_s > self._env.now:
                yield self._env.timeout(happening.time_s - self._env.now)
            self._events += 1
            self._settle()
            handle[happening.kind](happening)

    def _settle(self) -> None:
        """Book the nodes that no job holds, until now; jobs settle themselves."""
        now = self._time()
        passed = (now - self._settled) * self._scenario.gpus_per_node
        self._beside.book(Account.IDLE, passed * len(self._pool))
        self._beside.book(Account.SUB_HEALTHY, passed * (self._trace.nodes - self._pool.held - len(self._pool)))
        self._settled = now

    def _lost(self, happening: Happening) -> None:
        hit: dict[int, list[int]] = {}
        for node in happening.nodes:
            self._out[node] += 1
            self._forget_slow(node)
            run = self._pool.lose(node)
            if run is not None:
                hit.setdefault(self._runs.index(run), []).append(node)
        for index, nodes in hit.items():
            self._bereave(self._runs[index], nodes, happening.shows)

    def _bereave(self, run: JobRun, nodes: list[int], shows: Shows) -> None:
        run.bereave(nodes)
        self._refresh()
        if run.phase is not Phase.WAITING:
            self._env.process(self._heal(run, shows, "reconfigure", self._costs.drain_s))

    def _failed(self, happening: Happening) -> None:
        run = self._pool.holder(happening.nodes[0])
        if run is None or run.phase is Phase.WAITING:
            return
        repair = self._costs.repair(happening.kind)
        source = Source.KEPT
        if repair != "reattempt":
            source = run.source_after(happening.nodes)
            if source is Source.STORAGE and self._costs.memory:
                source = Source.MEMORY  # the node lives, and with it what is in its memory
        run.fail(source, 1 / max(1, run.gpus))
        self._env.process(self._heal(run, happening.shows, repair, 0.0))

    def _joined(self, happening: Happening) -> None:
        came = False
        for node in happening.nodes:
            self._out[node] -= 1
            if not self._out[node]:
                self._pool.give(node)
                came = True
        if came:
            self._carry_out(self._capacity.after_join())

    def _slowed(self, happening: Happening) -> None:
        node = happening.nodes[0]
        if self._out[node]:
            return
        self._slow[node] = happening.speed
        self._refresh()
        if self._costs.detection_slow_s >= 0:
            self._env.process(self._notice_slow(node))

    def _notice_slow(self, node: int) -> Process:
        yield self._env.timeout(self._costs.detection_slow_s)
        self._events += 1
        run = self._pool.holder(node)
        if node not in self._slow or run is None or not run.runs:
            return
        self._settle()
        slow = {each: speed for each, speed in self._slow.items() if self._pool.holder(each) is run}
        best = about_slow(run, slow, len(self._pool)) if self._costs.decides else Choice.REBALANCE
        if best in LEFT_OUT:
            self._leave_out(run, node)
        elif best is not Choice.NOTHING:
            self._known_slow.add(node)
            self._refresh()

    def _leave_out(self, run: JobRun, node: int) -> None:
        """A slow node works no more until it is healthy: a planned switch, nothing is lost."""
        self._out[node] += 1
        self._left_out.add(node)
        self._pool.lose(node)
        run.lose(node)
        self._refresh()
        self._carry_out([*self._capacity.after_fault(run), run])

    def _healthy(self, happening: Happening) -> None:
        node = happening.nodes[0]
        self._forget_slow(node)
        self._refresh()
        if node in self._left_out:
            self._left_out.remove(node)
            self._joined(happening)

    def _forget_slow(self, node: int) -> None:
        self._slow.pop(node, None)
        self._known_slow.discard(node)

    def _refresh(self) -> None:
        """Slow nodes, or who holds them, have changed."""
        if self._slow or self._slowed_down:
            self._slowed_down = bool(self._slow)
            for run in self._runs:
                slow = {node: speed for node, speed in self._slow.items() if self._pool.holder(node) is run}
                if slow or run.speed < 1:
                    run.slow_down(slow, balanced=slow.keys() <= self._known_slow)

    def _heal(self, run: JobRun, shows: Shows, repair: Repair, drain_s: float) -> Process:
        if not run.runs:
            repair = max(repair, run.repair, key=REPAIRS.index)  # what was under way is still needed
        run.repair = repair
        version = run.enter(Phase.DETECTION)
        yield self._env.timeout(self._costs.detection_s(shows, run.job.iteration_s) + drain_s)
        self._events += 1
        if run.version != version:
            return
        self._settle()
        if repair == "reconfigure":
            self._carry_out(self._capacity.after_fault(run))
        self._switch(run, repair)

    def _carry_out(self, runs: Sequence[JobRun]) -> None:
        """Jobs whose nodes changed by a plan: their state is whole."""
        self._refresh()
        for run in runs:
            if run.phase is not Phase.DETECTION:
                self._switch(run, "reconfigure")

    def _switch(self, run: JobRun, repair: Repair) -> None:
        if not self._capacity.enough(run):
            if run.phase is not Phase.WAITING:
                run.enter(Phase.WAITING)
                run.source = max(run.source, Source.MEMORY if self._costs.memory else Source.STORAGE, key=list(Source).index)
            return
        self._env.process(self._go_on(run, repair))

    def _go_on(self, run: JobRun, repair: Repair) -> Process:
        version = run.enter(Phase.TRANSITION)
        yield self._env.timeout(self._costs.switch_s(repair, run.gpus) + self._load_s(run, repair))
        self._events += 1
        if run.version != version:
            return
        while (again_s := run.recomputation_s()) > INSTANT_S:  # again, where a slow node made it take longer
            version = run.enter(Phase.RECOMPUTATION)
            yield self._env.timeout(again_s)
            self._events += 1
            if run.version != version:
                return
            run.settle()
        run.enter(Phase.RUNNING)

    def _load_s(self, run: JobRun, repair: Repair) -> float:
        costs, source = self._costs, run.source if repair != "reattempt" else Source.KEPT
        if source is Source.STORAGE:
            return costs.load_storage_s
        if source is Source.MEMORY:
            return costs.load_memory_s
        return costs.load_replica_s * run.load_share() if costs.replica else 0.0

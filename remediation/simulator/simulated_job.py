"""One simulated job: its nodes, its phase, its WAF and time accounting so far.

Between two events everything is in closed form: checkpoints come at a fixed interval of work, so how much of a stretch
was work, and how much would be lost now, needs no event of its own.
"""

from collections.abc import Callable, Collection, Mapping
from enum import StrEnum

from remediation.planner.pipelines.micro_batch_distribution import GroupPace, lower_bound

from .in_place_transition import TransitionShares, transition_shares
from .job_mix import JobMixEntry
from .recovery_policy import RecoveryConstants, Repair
from .time_accounting import TimeAccounting, TimeCategory

MICRO_BATCHES = 8
"""Of each replica; what the bubble of a pipeline and the balance of slow replicas depend on (assumed)."""


class SimulatedPhase(StrEnum):
    """What a job is doing."""

    RUNNING = "running"
    DETECTION = "detection"
    TRANSITION = "transition"
    RECOMPUTATION = "recomputation"
    WAITING = "waiting"


class StateSource(StrEnum):
    """Where state comes from, nearest first."""

    KEPT = "kept"
    REPLICA = "replica"
    MEMORY = "memory"
    STORAGE = "storage"


CATEGORIES = {SimulatedPhase.DETECTION: TimeCategory.DETECTION, SimulatedPhase.TRANSITION: TimeCategory.TRANSITION, SimulatedPhase.WAITING: TimeCategory.IDLE}


class SimulatedJob:
    """Mutable: whatever changes it first accounts the time until now."""

    def __init__(self, job: JobMixEntry, costs: RecoveryConstants, gpus_per_node: int, now: Callable[[], float]) -> None:
        self.job, self.costs, self.gpus_per_node, self._now = job, costs, gpus_per_node, now
        self.rates = job.template_rates if costs.templates else job.rates
        self.nodes: list[int] = []
        """By position: node i is stage i % replica of pipeline i // replica."""
        self.target_nodes = 0
        """Nodes that the allocation gives it."""
        self.phase = SimulatedPhase.WAITING
        self.version = 0
        """Rises whenever something supersedes what is under way."""
        self.accounting = TimeAccounting()
        self.waf_s = 0.0
        """WAF·seconds: weighted FLOP that count."""
        self.intervals: list[tuple[float, float, float]] = []
        """(from, to, WAF·seconds), of running alone."""
        self.source = StateSource.KEPT
        self.repair: Repair = "reattempt"
        """What is under way, or was last."""
        self.redo = self.redo_since_checkpoint = 0.0
        """Weighted FLOP to do again: now, and if the state should be lost again."""
        self.speed = 1.0
        self.lost: dict[int, int] = {}
        """Replica → nodes that it lost since the job last ran."""
        self.survivors = 0
        """Nodes that have state since the last of these losses."""
        self._since = 0.0
        self._entered = 0.0
        self._cycle = 0.0
        """Seconds since the end of the last checkpoint."""
        self._checkpoints = 0

    @property
    def gpus(self) -> int:
        """That it holds."""
        return len(self.nodes) * self.gpus_per_node

    @property
    def rate(self) -> float:
        """F, weighted FLOP/s with the nodes that it holds, were it running."""
        return self.job.weight * self.costs.efficiency * self.speed * self._flops()

    @property
    def runs(self) -> bool:
        """Whether it works now, be it for the second time."""
        return self.phase in (SimulatedPhase.RUNNING, SimulatedPhase.RECOMPUTATION)

    def _flops(self) -> float:
        held, missing = len(self.nodes), self.target_nodes - len(self.nodes)
        if held < max(self.job.minimum, 1):
            return 0.0
        if not self.costs.reroute or missing <= 0:
            return float(self.rates[min(held, self.job.maximum)])
        pipelines = self.target_nodes // self.job.replica
        lost = -(-missing // self.job.replica)  # of the stage that lost most, when losses are spread
        if pipelines <= lost:
            return 0.0
        slots = MICRO_BATCHES + self.job.replica - 1
        return float(self.rates[self.target_nodes]) * slots / max(slots, MICRO_BATCHES * pipelines / (pipelines - lost))

    @property
    def used(self) -> int:
        """Nodes that work; the others are left over from whole replicas."""
        if self.costs.templates or self.costs.reroute:
            return len(self.nodes)
        return len(self.nodes) // self.job.replica * self.job.replica

    def add_node(self, node: int) -> None:
        """Another node."""
        self.account_time()
        self.nodes.append(node)

    def remove_node(self, node: int) -> None:
        """One of its nodes is out."""
        self.account_time()
        self.nodes.remove(node)

    def give_up_node(self) -> int:
        """Its last node goes to another job."""
        self.account_time()
        return self.nodes.pop()

    def lose_nodes(self, nodes: Collection[int]) -> None:
        """Some of its nodes are lost, with the state on them."""
        for node in nodes:
            replica = self.nodes.index(node) // self.job.replica
            self.lost[replica] = min(self.job.replica, self.lost.get(replica, 0) + 1)
        self.survivors = len(self.nodes) - len(nodes)
        source = self.source_after(nodes)
        planned = self._planned_shares(len(self.nodes) // self.job.replica, new_nodes=0) if source is StateSource.REPLICA else None
        self.fail(source, planned.lost_share if planned else len(nodes) / len(self.nodes))
        for node in nodes:
            self.remove_node(node)

    def load_share(self) -> float:
        """Of a node's state: what the busiest node has to move before the job goes on."""
        replicas = (self.survivors + sum(self.lost.values())) // self.job.replica
        planned = self._planned_shares(replicas, new_nodes=max(0, len(self.nodes) - self.survivors))
        return planned.load_share if planned else 1.0

    def _planned_shares(self, replicas: int, new_nodes: int) -> TransitionShares | None:
        """Of a transition in place; None where there is nothing to plan or no whole replica is left to plan with."""
        if not self.costs.transitions or not self.lost or len(self.lost) >= replicas:
            return None
        return transition_shares(replicas, self.job.replica, tuple(sorted(self.lost.values())), new_nodes, MICRO_BATCHES)

    def account_time(self) -> None:
        """Account the time until now."""
        now = self._now()
        passed = now - self._since
        if passed <= 0:
            return
        account = CATEGORIES.get(self.phase)
        if account is not None:
            self.accounting.add_time(account, passed * self.gpus)
        else:
            self._account_work(passed, now)
        self._since = now

    def _account_work(self, passed: float, now: float) -> None:
        gpus = self.used * self.gpus_per_node
        self.accounting.add_time(TimeCategory.IDLE, passed * (self.gpus - gpus))
        if self.phase is SimulatedPhase.RECOMPUTATION:
            self.accounting.add_time(TimeCategory.RECOMPUTATION, passed * gpus)
            self.redo = max(0.0, self.redo - passed * self.rate)
            return
        work = self._work(passed)
        self.accounting.add_time(TimeCategory.CHECKPOINT, (passed - work) * gpus)
        self.accounting.add_time(TimeCategory.SUB_HEALTHY, work * gpus * (1 - self.speed))
        self.accounting.add_time(TimeCategory.REDUNDANT, work * gpus * self.speed * self.costs.redundant_share)
        self.accounting.add_time(TimeCategory.EFFECTIVE, work * gpus * self.speed * (1 - self.costs.redundant_share))
        earned = work * self.rate
        self.waf_s += earned
        self.intervals.append((self._since, now, earned))

    def _work(self, passed: float) -> float:
        """Seconds of work in a stretch; the rest are checkpoints. Moves the cycle on."""
        interval, stall = self.costs.checkpoint_interval_s, self.costs.checkpoint_stall_s
        if interval <= 0:
            self._cycle += passed
            return passed
        whole, end = divmod(self._cycle + passed, interval + stall)
        work = whole * interval + min(end, interval) - min(self._cycle, interval)
        self._checkpoints += int(whole)
        self._cycle = end
        return max(0.0, min(work, passed))

    def enter(self, phase: SimulatedPhase) -> int:
        """Start something else; returns the version that it has."""
        self.account_time()
        self.phase = phase
        self._entered = self._since
        self.version += 1
        if phase is SimulatedPhase.RUNNING:
            self.redo = self.redo_since_checkpoint = 0.0
            self.source = StateSource.KEPT
            self.lost = {}
        return self.version

    def fail(self, source: StateSource, lost_share: float) -> None:
        """What has to be done again, given where its state comes from.

        lost_share: of its nodes, how many lost what they had done of the iteration.
        """
        self.account_time()
        lost = self._lost_s(source, lost_share) * self.rate if self.phase is SimulatedPhase.RUNNING else 0.0
        if source in (StateSource.MEMORY, StateSource.STORAGE):
            self.redo = max(lost, self.redo_since_checkpoint)
            self.redo_since_checkpoint = self.redo
        else:
            self.redo = max(lost, self.redo)
            self.redo_since_checkpoint = max(self.redo_since_checkpoint, self._since_checkpoint_s() * self.rate)
        self.source = max(self.source, source, key=list(StateSource).index)

    def _lost_s(self, source: StateSource, lost_share: float) -> float:
        if source is StateSource.STORAGE:
            unfinished = self._checkpoints > 0 and self._cycle < self.costs.checkpoint_persist_s
            return self._since_checkpoint_s() + (self.costs.checkpoint_interval_s if unfinished else 0.0)
        if source is StateSource.MEMORY:
            return self._since_checkpoint_s()
        iteration = (self._since - self._entered) % self.job.iteration_s
        if source is StateSource.KEPT:
            return 0.0 if self.costs.partial_results else iteration
        return iteration * (lost_share if self.costs.partial_results else 1.0)

    def _since_checkpoint_s(self) -> float:
        interval = self.costs.checkpoint_interval_s
        return min(self._cycle, interval) if interval > 0 else self._cycle

    def recomputation_s(self) -> float:
        """How long it takes to do again what is redo."""
        return self.redo / self.rate if self.redo > 0 and self.rate > 0 else 0.0

    def source_after(self, lost: Collection[int]) -> StateSource:
        """The nearest holder of the state that these nodes of its had, each lost with all that is on it."""
        places = {self.nodes.index(node) for node in lost}
        if self.costs.replica and self._has_replica(places):
            return StateSource.REPLICA
        neighbours = {(place + 1) % len(self.nodes) for place in places}
        return StateSource.MEMORY if self.costs.memory and not neighbours & places else StateSource.STORAGE

    def _has_replica(self, places: Collection[int]) -> bool:
        pipelines, stages = len(self.nodes) // self.job.replica, self.job.replica
        whole = range(pipelines * stages)
        lost_of_stage: dict[int, int] = {}
        for place in places:
            if place in whole:
                lost_of_stage[place % stages] = lost_of_stage.get(place % stages, 0) + 1
        return all(count < pipelines for count in lost_of_stage.values())

    def slow_down(self, speeds: Mapping[int, float], balanced: bool) -> None:
        """Set its speed by its slow nodes; balanced: micro-batches go where they are done first."""
        self.account_time()
        slow = [(self.nodes.index(node) // self.job.replica, speed) for node, speed in speeds.items()]
        if not slow:
            self.speed = 1.0
        elif not balanced:
            self.speed = min(speed for _, speed in slow)
        else:
            self.speed = self._balanced_speed(slow)

    def _balanced_speed(self, slow: list[tuple[int, float]]) -> float:
        pipelines = max(1, len(self.nodes) // self.job.replica)
        slowest = [1.0] * (pipelines + 1)
        for pipeline, speed in slow:
            at = min(pipeline, pipelines)
            slowest[at] = min(slowest[at], speed)
        paces = [GroupPace(1.0).at_speed(speed) for speed in slowest[:pipelines]]
        return MICRO_BATCHES / lower_bound(paces, MICRO_BATCHES * pipelines)

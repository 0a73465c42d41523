"""Which repair for which cause, as data: the weakest that can help first, the next one only after it failed.

Severities after Unicron, table 1: reattempt (SEV3), restart the process (SEV2), isolate and reconfigure (SEV1).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from eagle_eye.topology import node_of_worker
from eagle_eye.types import Severity

from .rank_swap import after_swap

SEVERITIES: Mapping[str, Severity] = {
    "notify": Severity.INFO,
    "dump": Severity.INFO,
    "reattempt": Severity.SEV3,
    "restart_worker": Severity.SEV2,
    "roll_back": Severity.SEV2,
    "skip_batch": Severity.SEV2,
    "swap_ranks": Severity.SEV2,
    "heal_in_place": Severity.SEV2,
    "rebalance": Severity.SEV3,
    "resize": Severity.SEV1,
    "evict_node": Severity.SEV1,
}
"""Of each action, and of the levels that are an action with a narrower meaning."""

REVERSIBLE = frozenset({"dump", "reattempt", "restart_worker"})
"""What a job may do to itself: it blames no node, and follows the first finding when the job makes no progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Escalation:
    """What can help against a cause: repairs from the weakest to the strongest, and how the cause behaves."""

    levels: tuple[str, ...] = ()
    """Actions, the weakest first; `skip_batch` is a roll-back past the batch, `swap_ranks` a restart with exchanged ranks. Empty: notify the operator."""
    evidence: tuple[str, ...] = ()
    """Actions that keep evidence, before the first repair destroys it."""
    self_healed: bool = False
    """The job's coordinator heals it without a command; the engine records it."""
    stops_job: bool = False
    """The job does nothing while the fault lasts, so that a restart loses nothing."""
    cost_weighed: bool = False
    """The job runs on: doing nothing is a candidate, and the cheapest wins."""
    inferred: bool = False
    """Nobody saw the culprit break, it is named by comparison: the same cause elsewhere after a repair is the same fault, moved."""
    lasting: bool = False
    """The fault outlives its incident (a broken part): the repair is not called off when all is quiet."""
    remedy: str = ""
    """What the operator can do; the alert then says what was seen, too."""

    @property
    def only_informs(self) -> bool:
        """Nothing is done about it, by the job or by us."""
        return not (self.levels or self.evidence or self.self_healed)

    @property
    def isolates(self) -> bool:
        """Only going on without the part helps: it was seen to be broken, whatever the job does meanwhile."""
        return self.levels[:1] == ("evict_node",)

    @property
    def ended_by_epoch(self) -> bool:
        """A new epoch for whatever reason ends the fault, or shows that it comes back."""
        return self.self_healed or self.stops_job


DEATH = Escalation(levels=("restart_worker", "swap_ranks", "evict_node"), self_healed=True, stops_job=True, lasting=True)
PROGRAM = Escalation(levels=("restart_worker",), self_healed=True, stops_job=True, lasting=True)
"""The program's or its data's fault until something else is shown: a restart may help, another node does not."""
KILLED = Escalation(levels=("restart_worker",), self_healed=True, stops_job=True, lasting=True)
"""By a signal from outside: the kernel for want of memory, the scheduler, a person. However often that happens, it shows nothing against the node."""
STORAGE = Escalation(self_healed=True, stops_job=True, remedy="make room there, or mend the path")
"""Full, read-only or gone: the operator has to make room, and no node is to blame."""
UNSAVED = Escalation(remedy="make room there, or mend the path; the job trains on, and its worker tries the save again by itself")
"""The same, where only a save of ours failed: training is not touched."""
PREEMPTED = Escalation(self_healed=True, stops_job=True, remedy="start the job again, or its nodes, where the scheduler gives it some; no node is to blame")
"""By the scheduler: the job goes on without the node where it may, and nothing is commanded, for what is restarted there ends again."""
LOST = Escalation(levels=("restart_worker",), self_healed=True, stops_job=True, lasting=True)
"""The job goes on without the node, and takes it back when it returns; where it may not do so by itself it is commanded to."""
BROKEN = Escalation(levels=("evict_node",), self_healed=True, stops_job=True, lasting=True)
NETWORK = Escalation(
    levels=("reattempt", "restart_worker", "evict_node"), evidence=("dump",), self_healed=True, stops_job=True
)
STOPPED = Escalation(levels=("reattempt", "restart_worker"), stops_job=True)
"""By a signal, which some program sent: however often that happens, it shows nothing against the node. No stacks: the process state says it
all, and asking a stopped process for its stack only costs time."""
HANG = Escalation(levels=("restart_worker", "swap_ranks", "evict_node"), evidence=("dump",), stops_job=True, inferred=True)
MISMATCH = Escalation(levels=("restart_worker",), evidence=("dump",), stops_job=True, inferred=True, remedy="mend the call that the evidence names: the ranks of a group have to call the same collectives alike")
"""Calls of collectives that do not agree are the program's: a restart may pass by what brought them about, another node does not."""
SLOW = Escalation(levels=("restart_worker", "swap_ranks", "evict_node"), cost_weighed=True, inferred=True)
LOSS = Escalation(levels=("roll_back", "skip_batch"))
INFORM = Escalation()
WAITING = Escalation(remedy="mend what the evidence names; the launchers try again by themselves, and no worker is ended meanwhile")
NO_QUORUM = Escalation(remedy="mend the network between the launchers, or start those that have stopped; the job trains on, and cannot heal itself meanwhile")
UNUSED = Escalation(remedy="the job's next restart takes the node in; a job that is started with --heal restart:N does so by itself")
"""To take it in, all that trains would have to be restarted, which the job may not do and nobody has asked for."""
LAUNCHER_STOPPED = Escalation(remedy="continue it, as the evidence says (kill -CONT); the job trains on, and cannot heal itself on that node meanwhile")
SLOWER = Escalation(remedy="look at the clocks, temperature and power of that GPU beside its peers'; nothing is restarted or evicted for a few percent")
"""Slower than its peers or than it was, by less than `worker.slow` asks for: however sure that is, it is no reason to stop a job that runs."""
OFF_PATH = Escalation(remedy="none is needed now: no step would be shorter if that worker were faster; look at its machine before the others become faster than it")
CORRUPTED = Escalation(remedy="start again from a checkpoint of before the step that the evidence names, and test that machine (dcgmi diag -r 3, its memory) before it trains again")
"""One replica's parameters are not those of the others any more: no checkpoint of ours is known to be of before it, and the job runs."""
SWITCH = Escalation(remedy="look at the switch that the evidence names, its power and its log; no node behind it is evicted")
"""Ports of several nodes went down at one switch, and the job trains on over others."""
QUOTA = Escalation(remedy="raise or lift the CPU quota of that cgroup (cpu.max; for Kubernetes the pod's CPU limit)")
CONTENDED = Escalation(remedy="move what else runs there, or give the job's workers processors of their own")
LOST_THROUGHPUT = Escalation(remedy="look at what changed at that time; no node is accused and nothing is restarted on a guess")

STAGES = Escalation(remedy="move layers from the long stages to the others, or give them fewer (embedding and head count as layers); no machine is at fault")
BATCHES = Escalation(remedy="share tokens and long sequences out equally over the workers of a step (by their squared lengths), and log sequence_length; no machine is at fault")
SLOW_LINK = Escalation(remedy="look at the port, cable and switch that the evidence names, and at what else sends over them; no node is evicted for it")
UNEQUAL = Escalation(remedy="log each step's tokens and the length of its sequences (monitor.log(tokens=..., sequence_length=...)), so that a slow machine can be told from more work; see what that worker computes")

ESCALATIONS: Mapping[str, Escalation] = {
    "worker killed": KILLED,
    "worker exited": PROGRAM,
    "worker ended early": PROGRAM,
    "exception": PROGRAM,
    "program error on the gpu": PROGRAM,
    "storage error": STORAGE,
    "cuda error": DEATH,
    "illegal memory access": DEATH,
    "out of memory": PROGRAM,
    "preempted": PREEMPTED,
    "launcher lost": LOST,
    "launcher stopped": LOST,
    "node lost": LOST,
    "gpu fault": BROKEN,
    "gpu lost": BROKEN,
    "ecc error": BROKEN,
    "nvlink error": BROKEN,
    "gpu driver error": BROKEN,
    "gpu error": DEATH,
    "network error": NETWORK,
    "collective timeout": NETWORK,
    "worker stopped": STOPPED,
    "collective mismatch": MISMATCH,
    "python hang": HANG,
    "worker hang": HANG,
    "job stalled": HANG,
    "slow node": SLOW,
    "slow worker": SLOW,
    "silent corruption": CORRUPTED,
    "slower node": SLOWER,
    "slower worker": SLOWER,
    "slower from the start": SLOWER,
    "slow worker off the critical path": OFF_PATH,
    "loss not finite": LOSS,
    "switch down": SWITCH,
    "job waiting": WAITING,
    "quorum lost": NO_QUORUM,
    "node unused": UNUSED,
}
"""Cause (as diagnosis names it) → escalation."""

BY_CAUSE_AND_SEVERITY: Mapping[tuple[str, Severity], Escalation] = {
    ("storage error", Severity.SEV3): UNSAVED,
    ("launcher stopped", Severity.INFO): LAUNCHER_STOPPED,
    ("cpu quota", Severity.INFO): QUOTA,
    ("host contended", Severity.INFO): CONTENDED,
    ("unequal compute", Severity.INFO): UNEQUAL,
    ("throughput lost", Severity.INFO): LOST_THROUGHPUT,
    ("unequal stages", Severity.INFO): STAGES,
    ("unequal work", Severity.INFO): BATCHES,
    ("slow link", Severity.INFO): SLOW_LINK,
}
"""Causes whose milder form asks for something else, and what the operator can do about causes that only inform."""

LEVEL_OF: Mapping[str, str] = {"heal_in_place": "restart_worker"}
"""An elastic job that goes on without a worker and takes a new one in has restarted that worker."""

WIDENED: Mapping[str, str] = {"slow worker": "slow node", "slower worker": "slower node"}
"""Causes that become another one when the rest of the node is seen."""

BY_SEVERITY: Mapping[Severity, Escalation] = {
    Severity.SEV1: BROKEN,
    Severity.SEV2: DEATH,
    Severity.SEV3: NETWORK,
    Severity.INFO: INFORM,
}
"""For a cause that is in no table."""


def escalation_of(cause: str, severity: Severity) -> Escalation:
    """What can help; an unknown cause, or one that asks for nothing, is only notified."""
    known = BY_CAUSE_AND_SEVERITY.get((cause, severity))
    if known is None and (cause == "unknown" or severity == Severity.INFO):
        return INFORM
    return known or ESCALATIONS.get(cause, BY_SEVERITY[severity])


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A repair that was tried on a fault."""

    plan: str
    incident: str
    job: str
    cause: str
    culprits: frozenset[str]
    action: str
    """Its level of escalation."""
    ended: float
    """Seconds since 1970; of its judgement, or of its beginning while it is judged."""
    failed: bool = False
    """It did not help (steps or throughput did not come back, or the command was refused)."""
    step: int = -1
    """First bad step, of a roll-back."""
    swap: tuple[str, ...] = ()
    """The nodes that exchanged their ranks, of a rank swap."""

    def followed_by(self, job: str, cause: str, culprits: frozenset[str]) -> bool:
        """The same fault is reported where the ranks went: it is the program's or its data's."""
        return self.job == job and bool(culprits) and same_fault(self.cause, after_swap(self.culprits, self.swap), cause, culprits)

    def same_fault(self, job: str, cause: str, culprits: frozenset[str]) -> bool:
        """The same thing broke in the same way: for a fault without a culprit the cause must do."""
        return self.job == job and same_fault(self.cause, self.culprits, cause, culprits)


def same_fault(cause: str, culprits: frozenset[str], again: str, accused: frozenset[str]) -> bool:
    """Whether what is reported again is the same fault; a slow node may first have been seen as its slow worker."""
    if WIDENED.get(cause, cause) != WIDENED.get(again, again):
        return False
    return culprits == accused or bool(culprits & accused or _nodes(culprits) & accused or culprits & _nodes(accused))


def moved(cause: str, culprits: frozenset[str], again: str, accused: frozenset[str]) -> bool:
    """Whether what is reported is the same fault somewhere else, or another one than what accused nobody."""
    alike = WIDENED.get(cause, cause) == WIDENED.get(again, again)
    if not alike and accused and not culprits:  # peers cried that a restart had ended: it says nothing of what was found after it
        return True
    return alike and bool(culprits and accused) and not same_fault(cause, culprits, again, accused)


def _nodes(culprits: frozenset[str]) -> frozenset[str]:
    """The nodes of those culprits that are workers."""
    workers = (culprit.removeprefix("worker ") for culprit in culprits if culprit.startswith("worker "))
    return frozenset(f"node {node_of_worker(worker)}" for worker in workers)


def level_of(action: str) -> str:
    """The level of escalation that an action counts as."""
    return LEVEL_OF.get(action, action)


def is_too_weak(level: str, levels: Iterable[str]) -> bool:
    """Every repair that can help is a stronger one."""
    order = list(Severity)
    return all(order.index(SEVERITIES[each]) < order.index(SEVERITIES[level]) for each in levels)


def next_level(levels: Iterable[str], attempts: Iterable[Attempt], allowed: Mapping[str, int]) -> str | None:
    """The weakest repair that neither failed nor was used up by relapses; None if all were.

    `attempts`: on the same fault and recent enough to count.
    """
    tried = list(attempts)
    reached = 0
    order = tuple(levels)
    for attempt in tried:
        level = level_of(attempt.action)
        if level in order and attempt.failed:
            reached = max(reached, order.index(level) + 1)
    for level in order[reached:]:
        if sum(level_of(attempt.action) == level for attempt in tried) < allowed.get(level, 1):
            return level
    return None

"""The policy for elastic workers: who takes part in an epoch in place, who does which share, who is replaced, evicted or excluded.

In such an epoch the workers live on: they report what they hold, and get a transition (`remediation.transition`) instead of
new processes. This class keeps what is known of them; `epoch_formation.py` forms the epochs.
"""

from collections.abc import Iterable
from typing import Any

from eagle_eye.clock import Clock
from eagle_eye.types import Layout, PrecomputedPlan, RankPlacement, Transition, WorkerStateReport
from remediation.launcher.job_declaration import EpochRequest, JobDeclaration
from remediation.transition import plan_transition

from .backoff import ReplacementBackoff
from .coordinator_effects import CommandResult, Effect, ExcludeWorker, ForkWorkers
from .heal_budget import HealBudget
from .membership import Member, Membership
from .recovery_stats import RecoveryStats
from .state_holders import LastCheckpoint, StateHolders
from .worker_registry import JoinRequest, WorkerRegistry

UNKNOWN_SEGMENTS = 2
"""Added to the highest segment that any worker holds, where the workers do not report how many there are: so none is held by all."""


class ElasticPolicy:
    """Owned by the coordinator's state. Nothing here changes the state or forms an epoch."""

    def __init__(self, declaration: JobDeclaration, budget: HealBudget, clock: Clock) -> None:
        self._declaration = declaration
        self._budget = budget
        self._clock = clock
        self.registry = WorkerRegistry(declaration.job.rsplit("/", 1)[-1])
        self.serving: dict[str, int] = {}
        """Living workers of the running epoch, with the pid that they had at its beginning."""
        self.transition: Transition | None = None
        """That the running epoch began with."""
        self.recovery_stats: RecoveryStats | None = None
        """What it cost; None once that is reported."""
        self.state_holders = StateHolders()
        self.holdings: dict[str, WorkerStateReport] = {}
        """Worker → what it reported for the epoch that is being formed."""
        self.torn: dict[str, set[int]] = {}
        """Worker → layers whose state arrived from it damaged: another one sends them, if there is one."""
        self.lost: set[str] = set()
        """Workers whose loss the epoch that is being formed is for."""
        self.noticed_s = 0.0
        """How long the failure behind that epoch was not noticed."""
        self.down_since: float | None = None
        """Since when an epoch is being formed, whatever supersedes it."""
        self.died_unmet: set[str] = set()
        """Workers of an epoch with new processes that died before all of them had entered."""
        self.stepped = False
        """A step has been committed."""
        self.stuck_count = 0
        """How often the workers were regrouped because all waited, since the last step that began an epoch."""
        self.speeds: dict[str, float] = {}
        """Worker → relative speed, where an operator or the server has set it."""
        self.halt_reason = ""
        self.last_checkpoint = LastCheckpoint()
        self.precomputed: tuple[PrecomputedPlan, ...] = ()
        """What the server does after this job's next loss: the coordinator reports which of them has come true."""
        self._respawned = 0
        self.replacement_backoff = ReplacementBackoff(declaration, clock)
        self._growing: dict[str, tuple[frozenset[str], dict[str, int]]] = {}
        """Key of a command → (workers that it waits for, the sizes of before)."""

    def clear(self) -> None:
        """The workers are ended on purpose: new processes take their place."""
        if self.serving:
            self.state_holders.clear()
        self.registry.clear()
        self.serving.clear()
        self.lost.clear()
        self.torn.clear()
        self.replacement_backoff.clear()
        self.transition = self.recovery_stats = None

    # --- who takes part ---------------------------------------------------------------------------------------------

    def placements(self, members: Iterable[Member]) -> tuple[RankPlacement, ...]:
        """Ranks of the living workers: nodes in the order of `members`, workers by slot."""
        found: list[RankPlacement] = []
        for member in members:
            mine = [worker for worker in self.registry.entered.values() if worker.node == member.node]
            for worker in sorted(mine, key=lambda worker: worker.slot):
                if worker.worker not in self.registry.done | self.registry.leaving:
                    rank = len(found)
                    gpu = member.gpu_of(worker.slot)
                    found.append(RankPlacement(worker=worker.worker, node=member.node, rank=rank, local_rank=worker.slot, gpu=gpu, dp=rank))
        return tuple(found)

    def too_few(self, nodes: int, workers: int) -> str:
        """Why so many cannot go on; '' if they can."""
        declaration = self._declaration
        if nodes < declaration.min_nodes:
            return f"{nodes} node(s) are left, the job needs {declaration.min_nodes} (--nnodes)"
        if workers < declaration.min_workers:
            return f"{workers} worker(s) are left, the job needs {declaration.min_workers} (--min-workers)"
        return ""

    def waiting(self, members: Iterable[Member]) -> list[str]:
        """Workers that have entered and wait to become part of an epoch."""
        apart = self.serving.keys() | self.registry.done | self.registry.leaving
        nodes = {member.node for member in members}
        return [name for name, worker in self.registry.entered.items() if name not in apart and worker.node in nodes]

    def serving_on(self, node: str, last: Layout | None) -> list[str]:
        """Living workers of the running epoch on a node."""
        return [worker for worker in self.serving if last is not None and last.node_of(worker) == node]

    # --- an epoch in place --------------------------------------------------------------------------------------------

    def plan(self, layout: Layout) -> Transition:
        """How the epoch begins, once all have reported. Raises PermanentError where the job cannot go on in place."""
        one = self.registry.entered[layout.workers[0]]
        return plan_transition(
            self._declaration.job, layout.epoch, layout, [self.holdings[worker] for worker in layout.workers],
            micro_batches=one.micro_batches, segments=self._segments(one), layer_bytes=one.layers,
            speeds=self.speeds or None, before=self.transition, torn=self.torn,
        )  # fmt: skip

    def _segments(self, one: JoinRequest) -> int:
        if one.segments:
            return one.segments
        whole = [held.segments for held in self.holdings.values() if held.phase in {"committing", "applying"}]
        if whole:
            return max(map(len, whole))
        return max((max(held.segments, default=-1) for held in self.holdings.values()), default=-1) + UNKNOWN_SEGMENTS

    def regroup(self, layout: Layout, transition: Transition, request: EpochRequest) -> None:
        """The epoch is valid: its workers serve from now on, and what it costs is measured."""
        self.serving = {worker: self.registry.entered[worker].pid for worker in layout.workers}
        for worker in layout.workers:
            self.registry.settled(worker)
        self.transition = transition
        if not transition.source:
            self.state_holders.hold((held.worker for held in self.holdings.values() if not held.fresh), transition.step)
        unfinished = self.recovery_stats
        self.recovery_stats = RecoveryStats.of(transition, list(self.holdings.values()), self.lost)
        self.recovery_stats.words |= {"reason": request.reason, "cause": request.cause}
        if unfinished is not None:
            self.recovery_stats.overtake(unfinished)
        self.recovery_stats.took("notice_s", self.noticed_s)
        if self.down_since is not None:
            self.recovery_stats.took("plan_s", self._clock.monotonic() - self.down_since)
        self.lost, self.noticed_s, self.down_since = set(), 0.0, None

    def saver(self, layout: Layout) -> str:
        """The worker that saves the state of a job that stops: the first with the newest; '' if none has more than the initial state."""
        whole = [held for worker in layout.workers if not (held := self.holdings[worker]).fresh]
        newest = max((held.step for held in whole), default=-1)
        return next((held.worker for held in whole if held.step == newest), "")

    # --- losses -------------------------------------------------------------------------------------------------------

    def lose(self, worker: str) -> None:
        """Its process has ended, or cannot be reached."""
        self.registry.gone(worker)
        self.state_holders.lost(worker)
        self.torn.pop(worker, None)
        if self.serving.pop(worker, None) is not None:
            self.lost.add(worker)

    def lose_unreachable(self, last: Layout | None, membership: Membership) -> None:
        """Those of nodes without a session."""
        for worker in [worker for worker in self.serving if last and not membership.is_connected(last.node_of(worker))]:
            self.lose(worker)
        for node in [node for node in membership.members if not membership.is_connected(node)]:
            self.registry.drop(node)

    def exclude(self, worker: str, reason: str, *, proved: bool = True) -> list[Effect]:
        """A living worker is no part of the job until it enters again. `proved`: that it hangs, or its end was ordered."""
        suspended = self.registry.suspend(worker)
        self.state_holders.lost(worker)
        self.serving.pop(worker, None)
        self.lost.add(worker)
        return [ExcludeWorker(node=suspended.node, worker=worker, reason=reason, proved=proved)]

    def plan_for_loss(self, worker: str, epoch: int) -> str:
        """Id of the precomputed plan for the loss of this worker; '' if there is none."""
        now, job = self._clock.now(), self._declaration.job
        mine = [plan for plan in self.precomputed if plan.event == "worker lost" and plan.of == job]
        fits = (plan for plan in mine if plan.allowed and plan.node == node_of(worker) and plan.epochs.get(job) == epoch and plan.expires > now)
        return next((plan.id for plan in fits), "")

    # --- replacements -------------------------------------------------------------------------------------------------

    def replacements(self, members: Iterable[Member], last: Layout) -> list[Effect]:
        """A new worker for each empty slot, but for those that back off."""
        forks: list[Effect] = []
        for member in members:
            slots = self.registry.to_fork(member, self.replacement_backoff.waiting)
            if slots:
                forks.append(ForkWorkers(node=member.node, slots=slots, layout=last))
        return [*self.replacement_backoff.news(), *forks]

    def forgive(self, nodes: Iterable[str]) -> None:
        """Somebody wants these nodes' workers: what went wrong there before is forgotten."""
        for node in nodes:
            self.registry.forgive(node)
            self.replacement_backoff.forgive(self.registry.name(node, 0).removesuffix("0"))

    def count_respawn(self, worker: str, members: dict[str, Member]) -> None:
        """A worker died: its slot is filled again as long as the job's replacements last."""
        if self._declaration.respawns < 0 or worker in self.registry.leaving or worker in self.registry.done:
            return
        node = node_of(worker)
        if self._respawned >= self._declaration.respawns and node in members:
            self.registry.break_slot(members[node], worker)
        self._respawned += 1

    # --- sizes and evictions --------------------------------------------------------------------------------------------

    def demand(self, members: Iterable[Member], eligible: Iterable[Member]) -> dict[str, Any]:
        """What the job asks for, and has, for the server."""
        return {
            "declared": {member.node: member.slots for member in members},
            "workers_per_node": {member.node: self.registry.size(member) for member in eligible},
            "weight": self._declaration.weight, "workers_min": self._declaration.min_workers,
        }  # fmt: skip

    def await_growth(self, command: str, nodes: Iterable[str], before: dict[str, int]) -> bool:
        """Whether new workers of these nodes are on their way: then the command is done when they have joined."""
        nodes = set(nodes)
        missing = frozenset(worker for worker, node in self.registry.awaited.items() if node in nodes)
        if missing:
            self._growing[command] = (missing, before)
        return bool(missing)

    def grown(self, epoch: int) -> list[Effect]:
        """Results of the commands that waited for workers which are part of the epoch now."""
        done = [command for command, (missing, _) in self._growing.items() if missing <= self.serving.keys()]
        for command in done:
            del self._growing[command]
        return [CommandResult(command=command, epoch=epoch) for command in done]

    def not_grown(self) -> list[Effect]:
        """Results of the commands whose workers cannot be started: the sizes of before count again."""
        effects: list[Effect] = []
        for command, (missing, before) in list(self._growing.items()):
            worker = next((worker for worker in sorted(missing) if self.registry.given_up(worker)), "")
            if worker:
                del self._growing[command]
                self.registry.sizes |= before
                effects.append(CommandResult(command=command, error=f"{worker} could not be started: see its log"))
        return effects

    def surplus(self, nodes: Iterable[str], members: Iterable[Member]) -> set[str]:
        """Workers of these nodes beyond the size that the nodes are to have."""
        keep = {member.node: self.registry.slots(member) for member in members}
        entered = self.registry.entered.values()
        return {each.worker for each in entered if each.node in set(nodes) and each.slot not in keep.get(each.node, ())}

    def evicted_workers(self, evicted: set[str]) -> set[str]:
        """Living workers on evicted nodes."""
        return {name for name, worker in self.registry.entered.items() if worker.node in evicted}

    def too_few_without(self, evicted: set[str], membership: Membership) -> str:
        """Why the elastic job cannot go on without these nodes; '' if it can."""
        ready = [each for each in self.registry.entered.values() if each.node not in evicted and membership.is_connected(each.node)]
        left = sum(each.worker not in self.registry.leaving for each in ready)
        if left >= self._declaration.min_workers:
            return ""
        return f"without {', '.join(sorted(evicted))} {left} worker(s) are left, the job needs {self._declaration.min_workers} (--min-workers)"


def node_of(worker: str) -> str:
    """The node in a worker's name run/node/slot; '' if it is none."""
    return worker.split("/")[-2] if worker.count("/") >= 2 else ""

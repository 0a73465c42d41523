"""Epochs in place: elastic workers live on, say what they hold, and are told how the step goes on.

Such an epoch is formed like any other. Its `Prepare` fences the workers instead of ending them (hard: at once; soft: once
their step is done); it is valid when the votes are enough and everybody has said what it holds; and then it gets a
transition instead of processes. Where the job has too few workers left they are only told to save a checkpoint.
"""

from collections.abc import Callable

import msgspec

from eagle_eye.clock import Clock
from eagle_eye.errors import PermanentError
from eagle_eye.types import Layout, RankPlacement, Transition, WorkerStateReport
from remediation.transition import plan_transition

from .effects import Effect, EndWorkers, ExcludeWorker, ForkWorkers, HaltWorkers, Prepare, RegroupWorkers
from .epochs import Effects, Epochs
from .heal_budget import HealBudget
from .job_declaration import EpochRequest, JobDeclaration, JobPhase
from .membership import count_votes
from .recovery_stats import RecoveryStats
from .state_holders import LastCheckpoint, StateHolders
from .worker_registry import JoinRequest, WorkerRegistry

UNKNOWN_SEGMENTS = 2
"""Added to the highest segment that anybody holds, where the workers do not say how many there are: so none is held by all."""


class Regrouping(Epochs):
    """The same workers under a new epoch."""

    def __init__(
        self, declaration: JobDeclaration, budget: HealBudget, clock: Clock, last: Layout | None = None, lost: tuple[str, ...] = ()
    ) -> None:
        super().__init__(declaration, budget, clock, last, lost)
        self.registry = WorkerRegistry(declaration.job.rsplit("/", 1)[-1])
        self.transition: Transition | None = None
        """That the running epoch began with."""
        self.recovery_stats: RecoveryStats | None = None
        """What it cost; None once that is told."""
        self.speeds: dict[str, float] = {}
        """Of workers, where somebody has told."""
        self._serving: dict[str, int] = {}
        """Living workers of the running epoch, with the pid that they had at its beginning."""
        self._gone: set[str] = set()
        """Workers of an epoch that died before it could be formed in place."""
        self._holdings: dict[str, WorkerStateReport] = {}
        self._lost: set[str] = set()
        """Workers whose loss the epoch that is being formed is for."""
        self._heard = False
        """The server has answered, even if it was no."""
        self._noticed_s = 0.0
        """How long the fault of the epoch that is being formed was not noticed."""
        self._hurt_since: float | None = None
        """Since when it is being formed, whatever supersedes it."""
        self.state_holders = StateHolders()
        self.torn: dict[str, set[int]] = {}
        """Worker → layers whose state arrived from it other than it was there: another one gives them, if there is one."""
        self._halting = ""
        self._last_checkpoint = LastCheckpoint()
        self._stepped = False
        """A step has been committed."""
        self.met_again = 0
        """How often the workers were called together because all waited, since the last step that began an epoch."""

    @property
    def in_place(self) -> bool:
        """The running epoch is one of elastic workers, and they may heal in place."""
        return self.last is not None and self.last.in_place and self.budget.in_place

    @property
    def training(self) -> bool:
        """Its workers are at work: also while a soft epoch is formed."""
        return self.phase is JobPhase.RUNNING or (self.phase is JobPhase.FORMING and self._request.soft)

    @property
    def serving(self) -> tuple[str, ...]:
        """Living workers of the running epoch, by rank."""
        return tuple(worker for worker in self.last.workers if worker in self._serving) if self.last is not None else ()

    # --- what is known of an epoch in place -----------------------------------------------------------------------

    def held(self, epoch: int, holdings: tuple[WorkerStateReport, ...], silent: tuple[str, ...] = ()) -> Effects:
        """Fenced workers have said what they hold; the silent ones have not."""
        if not self._is_forming(epoch) or self._forming is None or not self._request.in_place:
            return []
        self._holdings |= {holding.worker: holding for holding in holdings}
        quiet = [worker for worker in silent if worker in self._forming.workers and worker in self.registry.entered]
        if not quiet:
            return self._settle()
        excluded = [effect for worker in quiet for effect in self._exclude(worker, "it did not answer a fence")]
        return excluded + self._begin(msgspec.structs.replace(self._request, soft=False))

    def granted(self, epoch: int, granted: bool, heard: bool = False) -> Effects:
        """The leader's answer to `AskGrant`; `heard`: it came from the leader itself."""
        self._heard = heard
        return super().granted(epoch, granted)

    # --- forming --------------------------------------------------------------------------------------------------

    def _heal(self, request: EpochRequest) -> Effects:
        if not self._lives_on():
            return super()._heal(request)
        halt = "" if self.budget.take() else f"{request.reason}, and the job may not heal itself again (--heal {self.budget.heal})"
        return self._begin(msgspec.structs.replace(request, in_place=True, halt=halt))

    def _lives_on(self) -> bool:
        return self.in_place and any(self._connected(join_request.node) for join_request in self.registry.entered.values())

    def _placed(self, request: EpochRequest) -> EpochRequest:
        return msgspec.structs.replace(request, in_place=self._lives_on())

    def _begin(self, request: EpochRequest) -> Effects:
        if request.in_place:
            self._lose_the_unreachable()
        ranks = self._ranks() if request.in_place else ()
        if not ranks:
            return self._begin_afresh(request)
        for timer in ("joiners", "broken"):
            self._disarm(timer)
        members = self._eligible()
        self._request = msgspec.structs.replace(request, halt=request.halt or self._why_to_halt(len(members), len(ranks)))
        self._holdings = {}
        effects = self._form(members, ranks)
        if not request.soft:
            self._hurt_since = self._hurt_since or self._clock.monotonic()
            self._arm(self.declaration.merge_s, "merge")
        return effects

    def _begin_afresh(self, request: EpochRequest) -> Effects:
        """With new processes: the job is not elastic, or nobody of it is left."""
        if self._serving:
            self.state_holders.clear()
        self.registry.clear()
        self._serving.clear()
        self._lost.clear()
        self.torn.clear()
        self.transition = self.recovery_stats = None
        for timer in ("joiners", "broken", "merge", "majority"):
            self._disarm(timer)
        return super()._begin(msgspec.structs.replace(request, in_place=False, soft=False, halt=""))

    def _why_to_halt(self, nodes: int, workers: int) -> str:
        declaration = self.declaration
        if nodes < declaration.min_nodes:
            return f"{nodes} node(s) are left, the job needs {declaration.min_nodes} (--nnodes)"
        if workers < declaration.min_workers:
            return f"{workers} worker(s) are left, the job needs {declaration.min_workers} (--min-workers)"
        return ""

    def _prepare(self, layout: Layout, nodes: tuple[str, ...]) -> Prepare:
        soft = self.serving if self._request.soft and layout.in_place else ()
        return Prepare(nodes=nodes, layout=layout, soft=soft)

    def _ranks(self) -> tuple[RankPlacement, ...]:
        """Of the living, nodes in the election order, by slot."""
        found: list[RankPlacement] = []
        for member in self._eligible():
            mine = [join_request for join_request in self.registry.entered.values() if join_request.node == member.node]
            for join_request in sorted(mine, key=lambda join_request: join_request.slot):
                if join_request.worker not in self.registry.done | self.registry.leaving:
                    rank = len(found)
                    found.append(RankPlacement(worker=join_request.worker, node=member.node, rank=rank, local_rank=join_request.slot, dp=rank))
        return tuple(found)

    def _amend(self) -> Effects:
        """Another death within the same moment: the epoch goes on without that one, too."""
        ranks = self._ranks()
        asked = self._forming.workers if self._forming is not None else ()
        newcomers = any(place.worker not in asked for place in ranks)  # nobody has asked them what they hold
        if not ranks or newcomers or self._why_to_halt(len(self._eligible()), len(ranks)):
            return self._begin(self._request)
        self._forming = self._layout(self._eligible(), ranks)
        return self._settle()

    def _settle(self) -> Effects:
        layout = self._forming
        known = layout is None or not layout.in_place or self._holdings.keys() >= set(layout.workers)
        if not known or "merge" in self._due:
            return []
        return super()._settle()

    def _valid(self, layout: Layout) -> Effects:
        if not layout.in_place:
            self.registry.clear()
            self._gone.clear()
            return super()._valid(layout)
        if self._request.halt:
            return self._halt(layout, self._request.halt)
        try:
            transition = self._plan(layout)
        except PermanentError as error:
            who = self.state_holders.words
            return self._halt(layout, f"{error}{who and f'; {who}'}")
        super()._valid(layout)
        return [self._regroup(layout, transition), *self._replace(), *self._joined_all()]

    def _plan(self, layout: Layout) -> Transition:
        """Raises PermanentError where the job cannot go on in place."""
        one = self.registry.entered[layout.workers[0]]
        return plan_transition(
            self.declaration.job, layout.epoch, layout, [self._holdings[worker] for worker in layout.workers],
            micro_batches=one.micro_batches, segments=self._segments(one), layer_bytes=one.layers,
            speeds=self.speeds or None, before=self.transition, torn=self.torn,
        )  # fmt: skip

    def _segments(self, one: JoinRequest) -> int:
        if one.segments:
            return one.segments
        whole = [held.segments for held in self._holdings.values() if held.phase in {"committing", "applying"}]
        if whole:
            return max(map(len, whole))
        return max((max(held.segments, default=-1) for held in self._holdings.values()), default=-1) + UNKNOWN_SEGMENTS

    def _regroup(self, layout: Layout, transition: Transition) -> RegroupWorkers:
        self._serving = {worker: self.registry.entered[worker].pid for worker in layout.workers}
        for worker in layout.workers:
            self.registry.settled(worker)
        self.transition = transition
        if not transition.source:
            self.state_holders.hold((held.worker for held in self._holdings.values() if not held.fresh), transition.step)
        unfinished = self.recovery_stats.lost if self.recovery_stats is not None else set()  # of an epoch that this one overtook
        self.recovery_stats = RecoveryStats.of(transition, list(self._holdings.values()), self._lost | unfinished)
        self.recovery_stats.words |= {"reason": self._request.reason, "cause": self._request.cause}
        self.recovery_stats.took("notice_s", self._noticed_s)
        if self._hurt_since is not None:
            self.recovery_stats.took("plan_s", self._clock.monotonic() - self._hurt_since)
        self._lost, self._noticed_s, self._hurt_since = set(), 0.0, None
        if self._outsiders():
            self._arm_batch("joiners")
        leaving = tuple(worker for worker in self.registry.leaving if worker in self.registry.entered)
        return RegroupWorkers(
            nodes=self._all_connected(), layout=layout, transition=transition, leaving=leaving, budget_left=self.budget.left
        )

    def _joined_all(self) -> Effects:
        """What is to be told once all of an epoch are regrouped."""
        return []

    def _outsiders(self) -> list[str]:
        """Workers that wait to be taken in."""
        apart = self._serving.keys() | self.registry.done | self.registry.leaving
        nodes = {member.node for member in self._eligible()}
        return [name for name, join_request in self.registry.entered.items() if name not in apart and join_request.node in nodes]

    # --- who comes, who goes ----------------------------------------------------------------------------------------

    def _rings(self) -> dict[str, Callable[[], Effects]]:
        return super()._rings() | {
            "merge": self._settle, "joiners": self._take_in, "broken": self._broken_long_enough,
        }  # fmt: skip

    def _take_in(self) -> Effects:
        """Those who wait become part of the job at the next boundary."""
        if self.phase is not JobPhase.RUNNING or self.last is None or not self.last.in_place or not self._outsiders():
            return []
        return self._begin(EpochRequest(reason="join", in_place=True, soft=bool(self._serving)))

    def _broken_long_enough(self) -> Effects:
        """Nobody was found dead: the same workers, connected anew."""
        return self._heal(EpochRequest(reason="broken")) if self.training and self.in_place else []

    def _replace(self) -> Effects:
        """A new worker for each slot that stands empty."""
        if not self.in_place or self.last is None or self.phase is not JobPhase.RUNNING or self.registry.done:
            return []
        forks: list[Effect] = []
        for member in self._eligible():
            slots = self.registry.to_fork(member)
            if slots:
                forks.append(ForkWorkers(node=member.node, slots=slots, layout=self.last))
        return forks

    def _lose(self, worker: str) -> None:
        """Its process has ended, or cannot be reached."""
        self.registry.gone(worker)
        self.state_holders.lost(worker)
        self.torn.pop(worker, None)
        if self._serving.pop(worker, None) is not None:
            self._lost.add(worker)

    def _lose_the_unreachable(self) -> None:
        for worker in [worker for worker in self._serving if self.last and not self._connected(self.last.node_of(worker))]:
            self._lose(worker)
        for node in [node for node in self.members if not self._connected(node)]:
            self.registry.drop(node)

    def _exclude(self, worker: str, reason: str) -> Effects:
        join_request = self.registry.suspend(worker)
        self.state_holders.lost(worker)
        self._serving.pop(worker, None)
        self._lost.add(worker)
        return [ExcludeWorker(node=join_request.node, worker=worker, reason=reason)]

    # --- the end ----------------------------------------------------------------------------------------------------

    def _halt(self, layout: Layout, reason: str) -> Effects:
        """One of the workers saves a checkpoint under this epoch, which a majority has agreed to; then they end."""
        self.phase = JobPhase.HALTING
        self._halting = reason
        self._due.clear()
        self._arm(self.declaration.halt_s)
        whole = [held for worker in layout.workers if not (held := self._holdings[worker]).fresh]
        newest = max((held.step for held in whole), default=-1)
        saver = next((held.worker for held in whole if held.step == newest), "")
        return [HaltWorkers(nodes=self._all_connected(), epoch=layout.epoch, reason=reason, code=1, saver=saver)]

    def _halted(self) -> Effects:
        """Have they all ended?"""
        return [] if self.registry.entered else self._fail(self._halting + self._last_checkpoint.words)

    def _phase_is_late(self) -> Effects:
        return self._fail(self._halting + self._last_checkpoint.words) if self.phase is JobPhase.HALTING else super()._phase_is_late()

    def _majority_is_late(self) -> Effects:
        """The workers have stood still for as long as a lease: a side without a majority gives them up."""
        if self.phase is not JobPhase.FORMING or self.last is None or not self._request.in_place:
            return super()._majority_is_late()
        count = count_votes(self.last, self._all_connected())
        if count.majority:
            return []
        missing = ", ".join(node for node in self.last.launchers if not self._connected(node))
        if count.half and not self._heard:
            return self._fail(
                f"half of the launchers ({missing}) cannot be reached, and no server was there to say which half goes on: "
                "start the job again, with a server (--server) if one half is to go on by itself"
            )
        self._led = False  # others may go on: look for them
        reason = f"{missing} cannot be reached: another part of the job may go on"
        halt = EndWorkers(nodes=self._all_connected(), reason=reason)
        return [halt, *self._begin_afresh(self._request)]

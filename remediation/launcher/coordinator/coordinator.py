"""The job's coordinator: facts in, effects out, no sockets and no processes.

It raises the job's epoch. An epoch begins with `Prepare` to every launcher (each ends its old workers, or fences them if
they are elastic; its acknowledgement is its vote), is valid once enough of the launchers of the last valid layout have
voted, and only then gets a store and workers. What each fact does in each state stands in `coordinator_state_machine.py`.
"""

from typing import Any

from eagle_eye.clock import Clock
from eagle_eye.types import Layout, NodePlace, PrecomputedPlan, Transition, WorkerStateReport
from remediation.launcher.job_declaration import JobDeclaration, JobPhase

from . import coordinator_facts
from .coordinator_state import CoordinatorState, Effects
from .coordinator_state_machine import apply
from .heal_budget import HealBudget
from .membership import Member
from .quorum import Electorate
from .recovery_stats import RecoveryStats
from .worker_registry import JoinRequest, WorkerRegistry

__all__ = ["Coordinator", "Effects", "JobDeclaration", "JobPhase"]


class Coordinator:
    """Methods that return effects report one fact each; the caller carries the effects out, in order."""

    def __init__(
        self, declaration: JobDeclaration, budget: HealBudget, clock: Clock, last: Layout | None = None, lost: tuple[str, ...] = ()
    ) -> None:
        """`last`: the last valid layout, after a coordinator election or a restart; `lost`: nodes known to be gone."""
        self.declaration = declaration
        self.budget = budget
        if last is not None:
            budget.inherit(last.restarts, last.restarts_by_kind, clock.now() - last.time)
        self._state = CoordinatorState(declaration, budget, clock, last, lost)
        self._state.timers.arm(declaration.join_timeout_s if last is None else declaration.batch_s)

    def learn(self, fact: coordinator_facts.Fact) -> Effects:
        """Change the state by a fact; what is to be done about it."""
        return apply(self._state, fact)

    # --- launchers ------------------------------------------------------------------------------------------------

    def joined(
        self, member: Member, last: Layout | None = None, promised: int = 0, elastic: tuple[JoinRequest, ...] = (), *, held: bool = False,
        idle: bool = False, undecided: tuple[Electorate, ...] = (),
    ) -> Effects:  # fmt: skip
        return self.learn(
            coordinator_facts.LauncherJoined(member=member, last=last, promised=promised, elastic=elastic, held=held, idle=idle, undecided=undecided)
        )

    def left(self, node: str, *, silent: bool = False) -> Effects:
        return self.learn(coordinator_facts.SessionBroke(node=node, silent=silent))

    def placed(self, node: str, place: NodePlace) -> None:
        """Where a launcher's node is, known since it has joined: the next layout says so. Nothing is begun for it."""
        if node in self.members:
            self.members[node].place = place

    def no_progress(self, step: int = -1) -> Effects:
        """`step`: that the workers are at; -1 if unknown."""
        return self.learn(coordinator_facts.NoProgress(step=step))

    def acknowledged(self, node: str, epoch: int, abstains: str = "", undecided: tuple[Electorate, ...] = ()) -> Effects:
        return self.learn(coordinator_facts.VoteGiven(node=node, epoch=epoch, abstains=abstains, undecided=undecided))

    def unprepared(self, node: str, epoch: int, reason: str) -> Effects:
        return self.learn(coordinator_facts.PrepareFailed(node=node, epoch=epoch, reason=reason))

    def refused(self, epoch: int, promised: int) -> Effects:
        return self.learn(coordinator_facts.VoteRefused(epoch=epoch, promised=promised))

    def granted(self, epoch: int, granted: bool, heard: bool = False) -> Effects:
        """`heard`: the answer came from the leader itself."""
        return self.learn(coordinator_facts.GrantAnswer(epoch=epoch, granted=granted, from_leader=heard))

    def started(self, epoch: int) -> Effects:
        return self.learn(coordinator_facts.WorkersStarted(epoch=epoch))

    def worker_finished(self, worker: str, epoch: int, step: int) -> Effects:
        return self.learn(coordinator_facts.WorkerFinished(worker=worker, epoch=epoch, step=step))

    def finished(self, node: str, epoch: int) -> Effects:
        return self.learn(coordinator_facts.NodeFinished(node=node, epoch=epoch))

    # --- workers --------------------------------------------------------------------------------------------------

    def died(self, epoch: int, cause: str = "", at_start: str = "") -> Effects:
        """A worker that is not elastic, or an epoch that could not be started."""
        return self.learn(coordinator_facts.WorkerDied(epoch=epoch, cause=cause, at_start=at_start))

    def entered(self, join_request: JoinRequest) -> Effects:
        return self.learn(coordinator_facts.WorkerEntered(join_request=join_request))

    def held(self, epoch: int, holdings: tuple[WorkerStateReport, ...], silent: tuple[str, ...] = ()) -> Effects:
        return self.learn(coordinator_facts.StateHeld(epoch=epoch, holdings=holdings, silent=silent))

    def broken(self, worker: str, epoch: int, sender: str = "", layers: tuple[int, ...] = ()) -> Effects:
        return self.learn(coordinator_facts.ConnectionsBroke(worker=worker, epoch=epoch, sender=sender, layers=layers))

    def stalled(self, epoch: int, workers: dict[str, float]) -> Effects:
        return self.learn(coordinator_facts.WorkersStalled(epoch=epoch, workers=workers))

    def stuck(self, epoch: int) -> Effects:
        return self.learn(coordinator_facts.WorkersStuck(epoch=epoch))

    def regrouped(self, worker: str, epoch: int, timings: dict[str, float]) -> Effects:
        return self.learn(coordinator_facts.WorkerRegrouped(worker=worker, epoch=epoch, timings=timings))

    def resumed(self, worker: str, epoch: int, recompute_s: float, recomputed: tuple[int, ...]) -> Effects:
        return self.learn(coordinator_facts.WorkerResumed(worker=worker, epoch=epoch, recompute_s=recompute_s, recomputed=recomputed))

    def leaving(self, worker: str, epoch: int) -> Effects:
        return self.learn(coordinator_facts.TrainingFinished(worker=worker, epoch=epoch))

    def exited(self, worker: str, pid: int) -> Effects:
        return self.learn(coordinator_facts.WorkerExited(worker=worker, pid=pid))

    def saving(self, worker: str, step: int, why: str, path: str) -> Effects:
        return self.learn(coordinator_facts.LastCheckpointStatus(worker=worker, step=step, why=why, path=path))

    # --- commands -------------------------------------------------------------------------------------------------

    def restart(self, command: str, **arguments: Any) -> Effects:
        """`command`: the key of its result; `arguments`: the fields of `RestartCommand`."""
        return self.learn(coordinator_facts.RestartCommand(key=command, **arguments))

    def release(self, command: str, node: str, plan: str = "") -> Effects:
        return self.learn(coordinator_facts.LiftEviction(key=command, node=node, plan=plan))

    def stop(self, command: str = "") -> Effects:
        return self.learn(coordinator_facts.StopCommand(key=command))

    def rebalance(self, command: str, shares: dict[str, float], plan: str = "") -> Effects:
        return self.learn(coordinator_facts.RebalanceCommand(key=command, shares=shares, plan=plan))

    def resize(self, command: str, sizes: dict[str, int], plan: str = "") -> Effects:
        return self.learn(coordinator_facts.ResizeCommand(key=command, sizes=sizes, plan=plan))

    def keep_plans(self, plans: tuple[PrecomputedPlan, ...]) -> None:
        """These plans are valid now, and no others."""
        self._state.elastic.precomputed = plans

    # --- time -----------------------------------------------------------------------------------------------------

    def tick(self) -> Effects:
        """Call it when `wait_s` is over: a time-out may be due."""
        effects: Effects = []
        for timer in self._state.timers.expired():
            if self._state.timers.armed(timer):
                self._state.timers.disarm(timer)
                effects += self.learn(timer())
        return effects

    @property
    def wait_s(self) -> float | None:
        """Seconds until `tick` is due; None if nothing is waited for."""
        return self._state.timers.wait_s

    # --- the job --------------------------------------------------------------------------------------------------

    def server_is(self, connected: bool) -> None:
        """The session with the server has opened or broken."""
        self._state.server_is(connected)

    @property
    def phase(self) -> JobPhase:
        return self._state.phase

    @property
    def restart_in_s(self) -> float | None:
        """Seconds until workers that keep dying are started again; None if they do not back off."""
        return self._state.timers.wait_s if self.phase is JobPhase.BACKOFF else None

    @property
    def epoch(self) -> int:
        """The highest number that this coordinator has given out."""
        return self._state.epoch

    @property
    def last(self) -> Layout | None:
        """The last valid layout."""
        return self._state.last

    @property
    def forming(self) -> Layout | None:
        """The layout that is voted on, or was last."""
        return self._state.forming

    @property
    def members(self) -> dict[str, Member]:
        return self._state.membership.members

    @property
    def evicted(self) -> set[str]:
        """Nodes that take no part until they are released."""
        return self._state.membership.evicted

    @property
    def candidate(self) -> bool:
        """No majority has followed this launcher yet, or not any more: another one may coordinate the job."""
        return self._state.candidate

    @property
    def stalls(self) -> bool:
        """Perhaps nobody comes to the end of the step: an elastic job changes nothing of its own before that is known."""
        return self._state.in_place and self._state.stalls

    @property
    def isolated(self) -> bool:
        """It trains, and no majority has been there for a lease: others may have gone on."""
        return self._state.isolated and self._state.phase is JobPhase.RUNNING

    @property
    def missing(self) -> tuple[str, ...]:
        """Launchers of the last valid layout that have no session."""
        return self._state.missing

    @property
    def lost_ballots(self) -> frozenset[str]:
        """Of layouts that it has asked votes for, and that are not valid: never will be, if it gives up now."""
        return frozenset(self._state.quorum.lost_ballots)

    @property
    def suspects(self) -> tuple[str, ...]:
        """Nodes of the running epoch whose session is gone: lost as soon as a second witness confirms it."""
        return self._state.suspects

    # --- its elastic workers --------------------------------------------------------------------------------------

    @property
    def registry(self) -> WorkerRegistry:
        return self._state.elastic.registry

    @property
    def serving(self) -> tuple[str, ...]:
        """Living workers of the running epoch, by rank."""
        return self._state.serving

    @property
    def training(self) -> bool:
        """The workers are at work: also while a soft epoch is formed."""
        return self._state.training

    def runs(self, epoch: int) -> bool:
        """The epoch of that number is valid, and none is formed after it."""
        return self._state.phase is JobPhase.RUNNING and self._state.is_current(epoch)

    @property
    def transition(self) -> Transition | None:
        """That the running epoch began with."""
        return self._state.elastic.transition

    @property
    def recovery_stats(self) -> RecoveryStats | None:
        """Of an epoch in which not every worker has committed a step yet."""
        return self._state.elastic.recovery_stats

    @property
    def stuck_count(self) -> int:
        """How often the workers were regrouped because all waited, since the last step that began an epoch."""
        return self._state.elastic.stuck_count

    @property
    def precomputed(self) -> tuple[PrecomputedPlan, ...]:
        return self._state.elastic.precomputed

    @property
    def demand(self) -> dict[str, Any]:
        """What the job asks for, and has; {} if it is not elastic."""
        state = self._state
        if not (self.registry.entered or (state.last is not None and state.last.in_place)):
            return {}
        here = [member for member in self.members.values() if member.connected and member.node not in self.evicted]
        return state.elastic.demand(self.members.values(), here)

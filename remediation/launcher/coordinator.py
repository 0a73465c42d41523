"""The job's coordinator as a state machine: facts in, effects out, no sockets and no processes.

It raises the job's epoch. An epoch begins with `Prepare` to every launcher (each ends its old workers, or fences them if
they are elastic; its acknowledgement is its vote), is valid once enough of the launchers of the last valid layout have
voted, and only then gets a store and workers. `epochs.py` counts the votes, `regrouping.py` knows of elastic workers.

    GATHERING → FORMING → RUNNING → (FORMING | WAITING | SPENT | HALTING)* → ENDED
"""

import msgspec

from eagle_eye.clock import Clock
from eagle_eye.types import Layout

from .effects import CommandResult, DismissWorker, EmitEvent, End
from .elastic import Elastic, WorkerDeath
from .epochs import Effects
from .eviction import OUT
from .heal_budget import HealBudget
from .job_declaration import EpochRequest, JobDeclaration, JobPhase
from .membership import Member, count_votes, voters
from .worker_registry import JoinRequest

__all__ = ["Coordinator", "Effects", "JobDeclaration", "JobPhase"]


class Coordinator(Elastic):
    """Every public method states one fact and returns what is to be done about it."""

    def __init__(
        self, declaration: JobDeclaration, budget: HealBudget, clock: Clock, last: Layout | None = None, lost: tuple[str, ...] = ()
    ) -> None:
        """`last`: the last valid layout, after a coordinator election or a restart; `lost`: nodes known to be gone."""
        super().__init__(declaration, budget, clock, last, lost)
        self._own_loss = bool(lost)
        self._awaited = set(voters(last)) - set(lost) if last is not None else set()
        self._arm(declaration.join_timeout_s if last is None else declaration.batch_s)

    # --- members ------------------------------------------------------------------------------------------------

    def joined(
        self, member: Member, last: Layout | None = None, promised: int = 0, elastic: tuple[JoinRequest, ...] = ()
    ) -> Effects:
        """A launcher asks to take part (or is back after its session broke).

        `last`: the last valid layout that it knows, `promised`: the highest epoch that it has voted for, `elastic`: its
        elastic workers that live.
        """
        before = self.members.get(member.node)
        same = before is not None and before.boot == member.boot
        self.members[member.node] = member
        self._promised = max(self._promised, promised)
        out = member.node in self.excluded
        self.registry.returned(member.node, elastic if self._can_use_the_workers_of(last) and not out else ())
        if elastic:
            self.budget.suit_elastic_workers()
        away: Effects = [DismissWorker(node=member.node, worker=each.worker, reason=OUT) for each in elastic if out]
        return away + self._received(member, same, last, elastic)

    def _received(self, member: Member, same: bool, last: Layout | None, elastic: tuple[JoinRequest, ...]) -> Effects:
        if self.phase is JobPhase.GATHERING:
            self._adopt(last)
            return self._gathered()
        if self.phase is JobPhase.FORMING:
            return self._joined_while_forming(member, same)
        if member.node in self.excluded or self.phase not in {JobPhase.RUNNING, JobPhase.WAITING}:
            return []
        if self.phase is JobPhase.RUNNING and self.in_place:
            return self._joined_in_place(member, same, last)
        if self.phase is JobPhase.RUNNING and self.last is not None:
            in_step = same and last is not None and last.epoch == self.last.epoch
            taken = member.node in self.last.nodes
            full = not taken and len(self.last.nodes) >= self.declaration.max_nodes
            if (taken and in_step) or full:
                return self._first() if elastic and not self.last.in_place else []
            if self.budget.limit == 0:
                return self._heal(EpochRequest(reason="node lost")) if taken else []
        self._arm_batch()
        return []

    def _can_use_the_workers_of(self, last: Layout | None) -> bool:
        """Elastic workers that were last told this layout may live on: no epoch with new processes has begun since."""
        if self.phase is JobPhase.GATHERING or self.last is None:
            return True
        if self.phase is JobPhase.FORMING:
            return self._request.in_place
        return self.last.in_place or (last is not None and last.epoch == self.last.epoch)

    def left(self, node: str) -> Effects:
        """A launcher's session is gone. Alone this proves nothing, unless its vote or its workers are waited for."""
        member = self.members.get(node)
        if member is None or not member.connected:
            return []
        member.connected = False
        if self.phase in {JobPhase.GATHERING, JobPhase.ENDED}:
            return []
        told: Effects = [
            EmitEvent(name="peer.lost", message=f"the session of the launcher on {node} broke", node=node,
                 attributes={"seen_by": self.declaration.node})
        ]  # fmt: skip
        if self.phase is JobPhase.HALTING or self._request.in_place or self.in_place:
            return told + self._left_in_place(node)
        if self.phase is JobPhase.FORMING and self._forming is not None:
            return told + (self._begin(self._request) if node in self._forming.nodes else self._settle())
        return told

    # --- workers ------------------------------------------------------------------------------------------------

    def died(self, epoch: int, cause: str = "", at_start: str = "") -> Effects:
        """A worker ended that should not have. Further deaths of the same epoch belong to the same event.

        `cause`: id of its event; `at_start`: what it died of, if it never came to its first step.
        """
        return self.lost(WorkerDeath(epoch=epoch, cause=cause, at_start=at_start))

    def lost(self, death: WorkerDeath) -> Effects:
        """A worker ended that should not have. Further deaths of the same epoch belong to the same event."""
        in_place = self._elastic_death(death)
        if in_place is not None:
            return in_place
        if self.phase is not JobPhase.RUNNING or self.last is None or death.epoch != self.last.epoch:
            return []
        if death.at_start and self.last.reason == "start" and not self.suspects:
            return self._fail(f"the script ended before its first step: {death.at_start}")
        reason = "node lost" if self.suspects else "death"
        return self._heal(EpochRequest(reason=reason, cause=death.cause))

    def no_progress(self) -> Effects:
        """The second witness: no worker has moved since the session of a suspect broke."""
        return self._heal(EpochRequest(reason="node lost")) if self.suspects else []

    def finished(self, node: str, epoch: int) -> Effects:
        """All workers of a node ended with code 0."""
        if self.phase is not JobPhase.RUNNING or self.last is None or epoch != self.last.epoch:
            return []
        self._finished.add(node)
        if not self._finished.issuperset(self.last.nodes):
            return []
        return [*self.started(epoch), *self._done()]  # whose workers end at once may have ended before all launchers have answered

    # --- commands -----------------------------------------------------------------------------------------------

    def restart(
        self, command: str, *, plan: str = "", reason: str = "command", own: bool = False, resume_step: int = -1,
        skip: tuple[int, ...] = (), exclude: tuple[str, ...] = (), release: tuple[str, ...] = (),
        workers: tuple[str, ...] = (),
    ) -> Effects:  # fmt: skip
        """All workers under a new epoch, without the excluded nodes; `own` spends the job's own budget.

        Of an elastic job only those concerned, if it is only asked who is in and who is out: `workers` are left out until new
        ones have taken their place, those of excluded nodes for as long as their nodes are; the others go on.
        """
        request = EpochRequest(reason=reason, plan=plan, resume_step=resume_step)
        elsewhere = resume_step >= 0 or bool(skip)
        if workers and self.in_place and not (elsewhere or exclude or release):
            return self._restart_some(command, workers, request, own)
        if self.phase not in {JobPhase.RUNNING, JobPhase.WAITING, JobPhase.SPENT}:
            return [CommandResult(command=command, error=f"the job is {self.phase}: ask again in its next epoch")]
        out = (self.excluded | set(exclude)) - set(release)
        evicts = bool(exclude or release) and not (elsewhere or workers) and self._lives_without(out)
        error = self._nodes_missing_without(out) or (self._too_few_without(out) if evicts else "")
        if error:
            return [CommandResult(command=command, error=error)]
        if own and not self.budget.take():
            return [CommandResult(command=command, error=f"the job's own budget ({self.budget.heal}) is spent")]
        if evicts:
            return self._evict(command, out, request)
        self.excluded = out
        self._skipped |= set(skip)
        self._unanswered.append(command)
        return self._begin(request)

    def _nodes_missing_without(self, out: set[str]) -> str:
        left = sum(member.connected and member.node not in out for member in self.members.values())
        if left >= self.declaration.min_nodes:
            return ""
        return f"without {', '.join(sorted(out))} {left} node(s) are left, the job needs {self.declaration.min_nodes}"

    def _restart_some(self, command: str, workers: tuple[str, ...], request: EpochRequest, own: bool) -> Effects:
        if self.phase is not JobPhase.RUNNING:
            return [CommandResult(command=command, error=f"the job is {self.phase}: ask again in its next epoch")]
        found = [worker for worker in workers if worker in self._serving]
        if not found:  # the job was faster
            return [CommandResult(command=command, epoch=self.epoch)]
        if len(found) == len(self._serving):  # nobody would be left to go on
            return self.restart(command, plan=request.plan, reason=request.reason, own=own)
        if own and not self.budget.take():
            return [CommandResult(command=command, error=f"the job's own budget ({self.budget.heal}) is spent")]
        self._unanswered.append(command)
        excluded = [effect for worker in found for effect in self._exclude(worker, "it is restarted by command")]
        return excluded + self._begin(msgspec.structs.replace(request, in_place=True))

    def release(self, command: str, node: str, plan: str = "") -> Effects:
        """An excluded node may take part again."""
        self.excluded.discard(node)
        self.registry.forgive(node)
        room = self.last is not None and len(self.last.nodes) < self.declaration.max_nodes
        if not self._connected(node) or self.phase not in {JobPhase.RUNNING, JobPhase.WAITING} or not room:
            return [CommandResult(command=command, epoch=self.epoch)]
        if self.in_place:
            return [*self._replace(), CommandResult(command=command, epoch=self.epoch)]
        self._unanswered.append(command)
        return self._begin(EpochRequest(reason="node released", plan=plan))

    def stop(self, command: str = "") -> Effects:
        """Somebody wants the job to end."""
        if self.phase is JobPhase.ENDED:
            return [CommandResult(command=command, epoch=self.epoch)] if command else []
        self.phase = JobPhase.ENDED
        self._due.clear()
        answer: Effects = [CommandResult(command=command, epoch=self.epoch)] if command else []
        return [*answer, self._job_event("job.finished", "stopped", reason="stopped"), End(code=130, reason="stopped")]

    # --- time ---------------------------------------------------------------------------------------------------

    def _phase_is_late(self) -> Effects:
        if self.phase is JobPhase.GATHERING:
            return self._gathered(patient=False)
        if self.phase is JobPhase.RUNNING:  # joiners have gathered: one epoch for all of them
            return self._replace() if self.in_place else self._begin(EpochRequest(reason="node returned"))
        return super()._phase_is_late()

    # --- inside -------------------------------------------------------------------------------------------------

    def _gathered(self, patient: bool = True) -> Effects:
        """Begin if everybody is here, or if enough are and the patience is over."""
        if self.last is not None:
            return self._succeed(patient)
        here = len(self._eligible())
        if here >= self.declaration.max_nodes or (here >= self.declaration.min_nodes and not self._waits and not patient):
            return self._begin(self._request)
        if not self._waits and here >= self.declaration.min_nodes:
            self._arm_batch()
        return []

    def _succeed(self, patient: bool) -> Effects:
        """After a coordinator election: all that are awaited, or at least half of the last layout."""
        here = {node for node, member in self.members.items() if member.connected}
        count = count_votes(self.last, here)
        if not (self._awaited <= here or (not patient and (count.majority or count.half))):
            if not self._waits and patient:
                self._arm_batch()
            return []
        return self._heal(self._request) if self._own_loss else self._begin(self._placed(self._request))

    def _adopt(self, last: Layout | None) -> None:
        """A joiner knows a newer valid layout than we do."""
        if last is None or (self.last is not None and last.epoch <= self.last.epoch):
            return
        if self.last is None:
            self._request = EpochRequest(reason="node returned")
        self.last = last
        self.epoch = max(self.epoch, last.epoch)
        self.excluded, self._skipped = set(last.excluded), set(last.skipped)
        self.budget.spent = max(self.budget.spent, last.restarts)
        self._awaited = set(voters(last))
        self._arm_batch()

    def _joined_while_forming(self, member: Member, same: bool) -> Effects:
        layout = self._forming
        if layout is None:
            return []
        if member.node in layout.nodes and not same:
            return self._begin(self._request)
        stuck = self._acknowledged.issuperset(layout.nodes)
        if stuck and member.node not in layout.nodes and member.node not in self.excluded:
            return self._begin(self._request)
        return [self._prepare(layout, (member.node,))]


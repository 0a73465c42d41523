"""What happens to elastic workers, as facts for the coordinator: they enter, die, stall, finish; somebody moves their shares."""

import msgspec

from eagle_eye.types import Layout

from .effects import DismissWorker, EmitEvent
from .epochs import Effects
from .eviction import Evicting
from .job_declaration import EpochRequest, JobPhase
from .membership import Member
from .worker_registry import JoinRequest


class WorkerDeath(msgspec.Struct, frozen=True, kw_only=True):
    """A worker ended that should not have."""

    epoch: int
    cause: str = ""
    """Id of its event."""
    at_start: str = ""
    """What it died of, if it never came to its first step."""
    worker: str = ""
    pid: int = 0
    code: int | None = None
    """As subprocess has it: negative for a signal."""
    step: int = -1
    """That it was at; -1 if unknown."""
    noticed_s: float = 0.0
    """How long ago that was at the most when it was told."""


class Elastic(Evicting):
    """Every public method states one fact and returns what is to be done about it."""

    # --- coming -------------------------------------------------------------------------------------------------------

    def entered(self, join_request: JoinRequest) -> Effects:
        """A worker has said `enter`: it is elastic, and ready to be part of an epoch."""
        if self.phase in {JobPhase.ENDED, JobPhase.HALTING} or self.registry.done:
            return [DismissWorker(node=join_request.node, worker=join_request.worker, reason="the job has ended")]
        if join_request.node in self.excluded:
            return self._turned_away(join_request)
        self.registry.enter(join_request)
        self.budget.suit_elastic_workers()
        served = self._serving.pop(join_request.worker, None) is not None
        self.state_holders.lost(join_request.worker)
        if self.phase is not JobPhase.RUNNING or self.last is None:
            return []
        if not self.last.in_place:
            return self._first()
        if served:  # it was fenced without our knowing, and what it held is gone
            return self._begin(EpochRequest(reason="join", in_place=True))
        if self.registry.awaited:
            self._arm_batch("joiners")
            return []
        return self._take_in()

    def _first(self) -> Effects:
        """The workers of a job that has just been started meet once all of them are here."""
        if self.last is None or any(name not in self.registry.entered and name not in self._gone for name in self.last.workers):
            return []
        return self._begin(EpochRequest(reason="join", in_place=True))

    def _joined_in_place(self, member: Member, same: bool, last: Layout | None) -> Effects:
        """A launcher joins a job that trains; its workers are part of the registry already."""
        if self.last is None:
            return []
        if not same:
            lost = [worker for worker in self._serving if self.last.node_of(worker) == member.node]
            for worker in lost:
                self._lose(worker)
            if lost:
                return self._heal(EpochRequest(reason="node lost"))
        elif member.node in self.last.nodes and (last is None or last.epoch != self.last.epoch):
            return self._begin(EpochRequest(reason="node returned", in_place=True))  # it has missed what its workers were told
        if self._outsiders():
            self._arm_batch("joiners")
        return self._replace()

    # --- going --------------------------------------------------------------------------------------------------------

    def _elastic_death(self, death: WorkerDeath) -> Effects | None:
        """None: the job is not elastic."""
        if not (self.last is not None and self.last.in_place) and not self.registry.entered:
            return None
        if self.registry.is_of_another_life(death.worker, death.pid):
            return []
        finished = death.worker in self.registry.done
        served, leaving = death.worker in self._serving, death.worker in self.registry.leaving
        self.state_holders.lost(death.worker, death.step)
        self._lose_for_good(death.worker)
        self._lose(death.worker)
        if self.phase is JobPhase.HALTING:
            return self._halted()
        if self.phase is JobPhase.FORMING:
            return self._died_while_forming(death, served, leaving)
        if self.phase is not JobPhase.RUNNING or self.last is None:
            return []
        if finished:
            return self._ended(death)
        if not self.last.in_place:
            return self._died_before_the_first(death)
        return self._died_at_work(death) if served else [*self._gave_up(), *self._replace()]

    def _died_at_work(self, death: WorkerDeath) -> Effects:
        if death.at_start and not self._stepped:
            return self._fail(f"the script ended before its first step: {death.at_start}")
        self._noticed_s = max(self._noticed_s, death.noticed_s)
        reason = "node lost" if self.suspects else "death"
        return self._heal(EpochRequest(reason=reason, cause=death.cause, plan=self._standing_for(death.worker)))

    def _died_before_the_first(self, death: WorkerDeath) -> Effects:
        """Of the workers of a new epoch, some of which have entered."""
        if self.last is None or death.epoch != self.last.epoch:
            return []
        if death.at_start and self.last.reason == "start":
            return self._fail(f"the script ended before its first step: {death.at_start}")
        self._gone.add(death.worker)
        if not self.budget.in_place or not self.registry.entered:
            return super()._heal(EpochRequest(reason="death", cause=death.cause))
        return self._first()

    def _died_while_forming(self, death: WorkerDeath, served: bool, leaving: bool) -> Effects:
        layout, request = self._forming, self._request
        if layout is None or not layout.in_place:
            return []
        if death.worker in self.registry.done:
            return self._ended(death)
        if request.soft:
            if served and leaving:  # it was to go: only its part of the step is lost
                return self._begin(msgspec.structs.replace(request, soft=False))
            if served:
                return self._heal(EpochRequest(reason="death", cause=death.cause))
            return self._begin(request) if death.worker in layout.workers else []
        if death.worker not in layout.workers:
            return []
        return self._amend() if "merge" in self._due else self._begin(request)

    def broken(self, worker: str, epoch: int, giver: str = "", layers: tuple[int, ...] = ()) -> Effects:
        """A worker's connections to its peers broke though nobody is known to be lost: a second witness.

        `giver`: the worker whose state of `layers` arrived torn.
        """
        if giver in self._serving:
            self.torn.setdefault(giver, set()).update(layers)
        if not self.training or self.last is None or epoch != self.last.epoch or worker not in self._serving:
            return []
        if self.suspects:
            return self._heal(EpochRequest(reason="node lost"))
        self._due.setdefault("broken", self._clock.monotonic() + self.declaration.broken_s)
        return []

    def stalled(self, epoch: int, workers: dict[str, float]) -> Effects:
        """These stand still, each for so many seconds, while all others wait for them."""
        found = [worker for worker in workers if worker in self._serving]
        if not self.training or not self.in_place or self.last is None or epoch != self.last.epoch:
            return []
        if not found or len(found) == len(self._serving):
            return []
        if self.phase is JobPhase.FORMING and self._evicted().issuperset(found):
            return self._boundary_is_late()
        excluded = [effect for worker in found for effect in self._exclude(worker, "it stood still while all others waited for it")]
        self._noticed_s = max(workers.values())
        return excluded + self._heal(EpochRequest(reason="stall"))

    def stuck(self, epoch: int) -> Effects:
        """All wait for each other, and nothing tells for whom: they meet again, and who does not come stands still."""
        if not self.training or not self.in_place or self.last is None or epoch != self.last.epoch:
            return []
        self.met_again += 1
        return self._heal(EpochRequest(reason="stuck"))

    def _left_in_place(self, node: str) -> Effects:
        """The session of a launcher broke while its workers' part of an epoch is waited for, or while they cannot work."""
        if self.phase is JobPhase.HALTING:
            self.registry.drop(node)
            return self._halted()
        concerned = self._forming is not None and node in self._forming.nodes
        if self.phase is JobPhase.FORMING:
            lost = [worker for worker in self._serving if self.last is not None and self.last.node_of(worker) == node]
            for worker in lost:
                self._lose(worker)
            if lost and self._request.soft:
                return self._heal(EpochRequest(reason="node lost"))
            return self._begin(self._request) if concerned else self._settle()
        return self._heal(EpochRequest(reason="node lost")) if "broken" in self._due and node in self.suspects else []

    # --- the end ------------------------------------------------------------------------------------------------------

    def leaving(self, worker: str, epoch: int) -> Effects:
        """A worker has come to the end of the training and will exit."""
        if self.last is not None and epoch >= self.last.epoch and worker in self._serving and worker not in self.registry.leaving:
            self.registry.done.add(worker)
        return []

    def exited(self, worker: str, pid: int) -> Effects:
        """A worker has ended with code 0."""
        if self.registry.is_of_another_life(worker, pid):
            return []
        released = worker in self.registry.leaving
        served = self._serving.pop(worker, None) is not None
        self.registry.gone(worker)
        if self.phase is JobPhase.HALTING:
            return self._halted()
        if released or not (served or worker in self.registry.done):
            return self._replace()  # its node may have been let in again meanwhile
        self.registry.done.add(worker)
        return self._ended(None)

    def _ended(self, death: WorkerDeath | None) -> Effects:
        """One of those who have done their part has ended; are all?"""
        if death is not None and death.code is not None and death.code > 0:
            return self._fail(f"{death.worker} ended with code {death.code} after the training: see its log")
        if self.phase not in {JobPhase.RUNNING, JobPhase.FORMING}:
            return []
        if not self._serving:
            return self._done()
        again = self.phase is JobPhase.FORMING and not self._request.soft
        return self._begin(self._request) if again else []

    def saving(self, worker: str, step: int, why: str, path: str) -> Effects:
        """How it stands with the last checkpoint. Nobody ends its worker meanwhile: nothing else is left of the job."""
        if self.phase is JobPhase.HALTING:
            self._arm(self.declaration.halt_s)
        return self._last_checkpoint.heard(worker, step, why, path)

    # --- what it cost -------------------------------------------------------------------------------------------------

    def regrouped(self, worker: str, epoch: int, timings: dict[str, float]) -> Effects:
        """A worker is in the group of the epoch, its state whole."""
        if self.recovery_stats is None or self.recovery_stats.epoch != epoch or worker not in self.recovery_stats.waited_for:
            return []
        self.recovery_stats.regrouped(timings)
        if "loaded_step" not in timings or worker not in self.registry.entered:
            return []
        return self.state_holders.fell_back(worker, int(timings["loaded_step"]), len(self.registry.entered[worker].layers))

    def resumed(self, worker: str, epoch: int, recompute_s: float, recomputed: tuple[int, ...]) -> Effects:
        """A worker has committed its first step of the epoch."""
        stats = self.recovery_stats
        if stats is None or stats.epoch != epoch:
            return []
        self._stepped, self.met_again = True, 0
        self.state_holders.add(worker)
        if not stats.resumed(worker, recompute_s, recomputed):
            return []
        self.recovery_stats = None
        lost = stats.attributes["lost"]
        message = f"epoch {epoch} trains: {stats.words['reason']}" + (f", without {lost}" if lost else "")
        return [EmitEvent(name="transition.done", message=message, attributes=stats.attributes)]

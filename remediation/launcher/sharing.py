"""What the server may ask of elastic workers, and what it is told: how many there are where, who does how much, what stands ready."""

from typing import Any

from eagle_eye.types import PrecomputedPlan

from .effects import CommandResult
from .epochs import Effects
from .job_declaration import EpochRequest, JobPhase
from .reconfiguration import Regrouping


class Sharing(Regrouping):
    """The commands `rebalance`, `resize` and `standing` of the coordinator, and the job's demand."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.standing: tuple[PrecomputedPlan, ...] = ()
        """What the server does after this job's next loss; it is told which of them has come true."""
        self._replaced = 0
        self._growing: dict[str, tuple[frozenset[str], dict[str, int]]] = {}
        """Command → (workers that it waits for, the sizes of before)."""

    @property
    def demand(self) -> dict[str, Any]:
        """What the job asks for, and has; {} if it is not elastic."""
        if not (self.registry.entered or (self.last is not None and self.last.in_place)):
            return {}
        here = [member for member in self.members.values() if member.connected and member.node not in self.excluded]
        return {
            "declared": {member.node: member.slots for member in self.members.values()},
            "seats": {member.node: self.registry.size(member) for member in here},
            "weight": self.declaration.weight, "workers_min": self.declaration.min_workers,
        }  # fmt: skip

    # --- commands -----------------------------------------------------------------------------------------------------

    def rebalance(self, command: str, shares: dict[str, float], plan: str = "") -> Effects:
        """From the next boundary on each worker's part of the micro-batches follows these numbers; {}: even parts."""
        unknown = sorted(shares.keys() - self._serving.keys())
        wrong = [worker for worker, share in shares.items() if not share > 0]
        error = self._not_now()
        if not error and (unknown or wrong):
            name = (unknown or wrong)[0]
            error = f"{name} is no worker of the job" if unknown else f"the share of {name} must be above zero"
        if error:
            return [CommandResult(command=command, error=error)]
        self.speeds = dict(shares)
        self._unanswered.append(command)
        return self._begin(EpochRequest(reason="rebalance", plan=plan, in_place=True, soft=True))

    def resize(self, command: str, sizes: dict[str, int], plan: str = "") -> Effects:
        """Other numbers of workers on some nodes: the last ones leave at a boundary, new ones are forked and join.

        It is answered once it is so. Where a worker cannot be started the job stays as it was, and the answer says so.
        """
        error = self._not_now() or self._too_few(sizes)
        if error:
            return [CommandResult(command=command, error=error)]
        before = {member.node: self.registry.size(member) for member in self._eligible() if member.node in sizes}
        self.registry.sizes |= sizes
        grown = self._replace()
        missing = frozenset(worker for worker in self.registry.awaited if self.registry.awaited[worker] in sizes)
        if missing:
            self._growing[command] = (missing, before)
        fewer = self._surplus(sizes)
        self.registry.leaving |= fewer
        if not fewer:
            return grown if missing else [*grown, CommandResult(command=command, epoch=self.epoch)]
        if not missing:
            self._unanswered.append(command)
        return grown + self._begin(EpochRequest(reason="resize", plan=plan, in_place=True, soft=True))

    def stand(self, plans: tuple[PrecomputedPlan, ...]) -> None:
        """These stand now, and no others."""
        self.standing = plans

    # --- inside -------------------------------------------------------------------------------------------------------

    def _standing_for(self, worker: str) -> str:
        """Id of the plan for the loss of this worker; '' if none stands."""
        node = worker.split("/")[-2] if worker.count("/") >= 2 else ""
        now, mine = self._clock.now(), [plan for plan in self.standing if plan.event == "worker lost" and plan.of == self.declaration.job]
        fits = (plan for plan in mine if plan.allowed and plan.node == node and plan.epochs.get(self.declaration.job) == self.epoch and plan.expires > now)
        return next((plan.id for plan in fits), "")

    def _lose_for_good(self, worker: str) -> None:
        """It died: its slot is filled again as long as the job's replacements last."""
        if self.declaration.respawns < 0 or worker in self.registry.leaving or worker in self.registry.done:
            return
        node = worker.split("/")[-2] if worker.count("/") >= 2 else ""
        if self._replaced >= self.declaration.respawns and node in self.members:
            self.registry.break_slot(self.members[node], worker)
        self._replaced += 1

    def _joined_all(self) -> Effects:
        """Commands that waited for workers which are part of the epoch now."""
        done = [command for command, (missing, _) in self._growing.items() if missing <= self._serving.keys()]
        for command in done:
            del self._growing[command]
        return [CommandResult(command=command, epoch=self.epoch) for command in done]

    def _gave_up(self) -> Effects:
        """Commands whose workers cannot be started: the sizes of before count again."""
        effects: Effects = []
        for command, (missing, before) in list(self._growing.items()):
            worker = next((worker for worker in sorted(missing) if self.registry.given_up(worker)), "")
            if worker:
                del self._growing[command]
                self.registry.sizes |= before
                effects.append(CommandResult(command=command, error=f"{worker} could not be started: see its log"))
        return effects

    def _surplus(self, sizes: dict[str, int]) -> set[str]:
        keep = {member.node: self.registry.slots(member) for member in self._eligible()}
        entered = self.registry.entered.values()
        return {each.worker for each in entered if each.node in sizes and each.slot not in keep.get(each.node, ())}

    def _too_few(self, sizes: dict[str, int]) -> str:
        unknown = [node for node in sizes if not self._connected(node)]
        after = {member.node: sizes.get(member.node, self.registry.size(member)) for member in self._eligible()}
        if unknown:
            return f"no launcher of the job is on {unknown[0]}"
        if min(after.values()) < 0 or sum(after.values()) < self.declaration.min_workers:
            return f"{sum(after.values())} worker(s) would be left, the job needs {self.declaration.min_workers} (--min-workers)"
        return ""

    def _not_now(self) -> str:
        """Why a command to elastic workers cannot be done; '' if it can."""
        if self.last is None or not self.last.in_place:
            return "the workers of this job are not elastic (they do not call eagle_eye.elastic), or have not met yet"
        if self.phase is not JobPhase.RUNNING:
            return f"the job is {self.phase}: ask again in its next epoch"
        return ""

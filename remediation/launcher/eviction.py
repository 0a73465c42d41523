"""Nodes that are left out of an elastic job by command: their workers leave between two steps, the others live on."""

from collections.abc import Callable

from msgspec.structs import replace

from eagle_eye.types import Layout, Transition

from .effects import DismissWorker, RegroupWorkers
from .epochs import Effects
from .job_declaration import EpochRequest, JobPhase
from .sharing import Sharing
from .worker_registry import JoinRequest

OUT = "its node is left out of the job"


class Evicting(Sharing):
    """The command `restart` where it only says who is in and who is out.

    A soft epoch: those that leave finish the step with the others. If they do not come to its end they are left out hard,
    and what they had of the step is done by the others.
    """

    def _evict(self, command: str, out: set[str], request: EpochRequest) -> Effects:
        """`out`: all nodes that take no part from now on."""
        for node in self.excluded - out:
            self.registry.forgive(node)
        self.excluded = out
        self._unanswered.append(command)
        going = self._evicted()
        self.registry.leaving |= going
        stands = bool(self.suspects) or "broken" in self._due  # nobody comes to the end of this step
        if going and stands:
            return self._leave_at_once(request)
        if going:
            self._arm(self.declaration.boundary_s, "boundary")
        return self._begin(replace(request, in_place=True, soft=True))

    def _lives_without(self, out: set[str]) -> bool:
        """The job may heal in place, and somebody who has its state stays."""
        if self.last is None or self.phase is not JobPhase.RUNNING or not self.in_place:
            return False
        return any(self.last.node_of(worker) not in out for worker in self._serving)

    def _too_few_without(self, out: set[str]) -> str:
        """Why the elastic job cannot go on without these nodes; '' if it can."""
        ready = [each for each in self.registry.entered.values() if each.node not in out and self._connected(each.node)]
        left = sum(each.worker not in self.registry.leaving for each in ready)
        if left >= self.declaration.min_workers:
            return ""
        return f"without {', '.join(sorted(out))} {left} worker(s) are left, the job needs {self.declaration.min_workers} (--min-workers)"

    def _turned_away(self, join_request: JoinRequest) -> Effects:
        """A worker of a node that is out has entered, or entered again: nobody waits for it."""
        self.registry.gone(join_request.worker)
        served = self._serving.pop(join_request.worker, None) is not None
        away: Effects = [DismissWorker(node=join_request.node, worker=join_request.worker, reason=OUT)]
        if not served:
            return away
        self._lost.add(join_request.worker)
        return away + self._begin(replace(self._request, in_place=True, soft=False))

    def _boundary_is_late(self) -> Effects:
        """Those that are to leave do not come to the end of their step."""
        return self._leave_at_once(self._request) if self.phase is JobPhase.FORMING and self._request.soft else []

    def _leave_at_once(self, request: EpochRequest) -> Effects:
        """The others do not wait for them."""
        why = f"{OUT}, and it did not come to the end of its step"
        excluded = [effect for worker in sorted(self._evicted()) for effect in self._exclude(worker, why)]
        return excluded + self._begin(replace(request, in_place=True, soft=False))

    def _evicted(self) -> set[str]:
        """Living workers on nodes that are out."""
        return {worker for worker, join_request in self.registry.entered.items() if join_request.node in self.excluded}

    def _begin(self, request: EpochRequest) -> Effects:
        if not request.soft:
            self._disarm("boundary")
        return super()._begin(request)

    def _regroup(self, layout: Layout, transition: Transition) -> RegroupWorkers:
        self._disarm("boundary")
        return super()._regroup(layout, transition)

    def _rings(self) -> dict[str, Callable[[], Effects]]:
        return super()._rings() | {"boundary": self._boundary_is_late}

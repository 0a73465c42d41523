"""Nodes that are left out of an elastic job by command: their workers leave between two steps, the others live on."""

from collections.abc import Callable

from msgspec.structs import replace

from eagle_eye.types import Layout, Transition

from .effects import Dismiss, Regroup
from .epochs import Effects
from .job_declaration import Phase, Wish
from .sharing import Sharing
from .worker_registry import Entrant

OUT = "its node is left out of the job"


class Evicting(Sharing):
    """The command `restart` where it only says who is in and who is out.

    A soft epoch: those that leave finish the step with the others. If they do not come to its end they are left out hard,
    and what they had of the step is done by the others.
    """

    def _evict(self, command: str, out: set[str], wish: Wish) -> Effects:
        """`out`: all nodes that take no part from now on."""
        for node in self.excluded - out:
            self.roster.forgive(node)
        self.excluded = out
        self._unanswered.append(command)
        going = self._evicted()
        self.roster.leaving |= going
        stands = bool(self.suspects) or "broken" in self._due  # nobody comes to the end of this step
        if going and stands:
            return self._leave_at_once(wish)
        if going:
            self._arm(self.rules.boundary_s, "boundary")
        return self._begin(replace(wish, in_place=True, soft=True))

    def _lives_without(self, out: set[str]) -> bool:
        """The job may heal in place, and somebody who has its state stays."""
        if self.last is None or self.phase is not Phase.RUNNING or not self.in_place:
            return False
        return any(self.last.node_of(worker) not in out for worker in self._serving)

    def _too_few_without(self, out: set[str]) -> str:
        """Why the elastic job cannot go on without these nodes; '' if it can."""
        ready = [each for each in self.roster.entered.values() if each.node not in out and self._connected(each.node)]
        left = sum(each.worker not in self.roster.leaving for each in ready)
        if left >= self.rules.min_workers:
            return ""
        return f"without {', '.join(sorted(out))} {left} worker(s) are left, the job needs {self.rules.min_workers} (--min-workers)"

    def _turned_away(self, entrant: Entrant) -> Effects:
        """A worker of a node that is out has entered, or entered again: nobody waits for it."""
        self.roster.gone(entrant.worker)
        served = self._serving.pop(entrant.worker, None) is not None
        away: Effects = [Dismiss(node=entrant.node, worker=entrant.worker, reason=OUT)]
        if not served:
            return away
        self._lost.add(entrant.worker)
        return away + self._begin(replace(self._wish, in_place=True, soft=False))

    def _boundary_is_late(self) -> Effects:
        """Those that are to leave do not come to the end of their step."""
        return self._leave_at_once(self._wish) if self.phase is Phase.FORMING and self._wish.soft else []

    def _leave_at_once(self, wish: Wish) -> Effects:
        """The others do not wait for them."""
        why = f"{OUT}, and it did not come to the end of its step"
        excluded = [effect for worker in sorted(self._evicted()) for effect in self._exclude(worker, why)]
        return excluded + self._begin(replace(wish, in_place=True, soft=False))

    def _evicted(self) -> set[str]:
        """Living workers on nodes that are out."""
        return {worker for worker, entrant in self.roster.entered.items() if entrant.node in self.excluded}

    def _begin(self, wish: Wish) -> Effects:
        if not wish.soft:
            self._disarm("boundary")
        return super()._begin(wish)

    def _regroup(self, layout: Layout, transition: Transition) -> Regroup:
        self._disarm("boundary")
        return super()._regroup(layout, transition)

    def _rings(self) -> dict[str, Callable[[], Effects]]:
        return super()._rings() | {"boundary": self._boundary_is_late}

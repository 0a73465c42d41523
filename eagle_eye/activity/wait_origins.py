"""Who is at the origin of a wavefront of ranks that wait for one another over their groups (tp, pp, dp, ep): the others are its victims."""

from collections.abc import Iterable, Set
from dataclasses import dataclass, field


@dataclass(slots=True)
class Waits:
    """Who waits for whom."""

    waiting_for: dict[int, set[int]] = field(default_factory=dict)
    weights: dict[int, int] = field(default_factory=dict)
    """Rank → how many wait for it."""

    @classmethod
    def of(cls, waits: Iterable[tuple[Iterable[int], Iterable[int]]]) -> "Waits":
        """From ranks that wait, and those that they wait for."""
        found = cls()
        for waiting, missing in waits:
            found.add(waiting, missing)
        return found

    def add(self, waiting: Iterable[int], missing: Iterable[int]) -> None:
        """Each of the ones waits for all of the others."""
        awaited = set(missing)
        if awaited:
            for rank in waiting:
                self.waiting_for.setdefault(rank, set()).update(awaited)
                for other in awaited:
                    self.weights[other] = self.weights.get(other, 0) + 1


def origins(waits: Waits, standing: Set[int]) -> set[int]:
    """Who is waited for and waits for nobody. `standing`: who is in something that all have entered, and that does not end: no such one is at fault for sure."""
    return {rank for rank in waits.weights if rank not in waits.waiting_for and rank not in standing}


def deepest(waits: Waits) -> set[int]:
    """Where everybody waits for somebody, those that most ranks wait for; nobody where that is not the smaller part."""
    most = max(waits.weights.values(), default=0)
    found = {rank for rank, count in waits.weights.items() if count == most}
    return found if 2 * len(found) < len(waits.waiting_for.keys() | waits.weights.keys()) else set()

"""Whose turn it is to coordinate, and what proves that the coordinator is gone."""

from eagle_eye.clock import Clock
from eagle_eye.types import Layout

from .quorum import voters


class CoordinatorElection:
    """The order in which the launchers of the last valid layout are tried."""

    def __init__(self, last: Layout, own_node: str, gone: tuple[str, ...] = ()) -> None:
        self._last = last
        self._own = own_node
        self._gone = set(gone)

    @property
    def gone(self) -> tuple[str, ...]:
        """Nodes that did not answer, in the election order."""
        return tuple(node for node in self._last.launchers if node in self._gone)

    def next(self) -> str:
        """The first that may still be there: our own node means that we lead; '' that nobody is left."""
        return next((node for node in voters(self._last) if node not in self._gone), "")

    @property
    def ours(self) -> bool:
        """It is our turn."""
        return self.next() == self._own

    def address(self, node: str) -> str:
        return self._last.launchers.get(node, "")

    def unreachable(self, node: str) -> None:
        """It did not answer."""
        self._gone.add(node)


RETURN_S = 0.5
"""A session that broke is given so long to come back, whatever the steps do."""


class ProgressWitness:
    """For how long no worker of this node has moved: the second witness that a launcher is gone.

    A step needs every rank of its epoch: as long as steps are completed nobody is gone, whatever the sessions say.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._marks: int | None = None
        self._since = clock.monotonic()

    def observe(self, marks: int | None) -> float:
        """Take the sum of all marks, None if no worker tells; returns the seconds since it last changed."""
        now = self._clock.monotonic()
        if marks != self._marks:
            self._marks = marks
            self._since = now
        return now - self._since

    def proves(self, broke_s: float, lease_s: float) -> bool:
        """Whether a launcher whose session broke `broke_s` ago is gone.

        Where no worker tells of its progress, the silence of the session must do, for one lease more.
        """
        quiet = self._clock.monotonic() - self._since if self._marks is not None else broke_s
        return broke_s >= RETURN_S and quiet >= lease_s

"""Whose turn it is to coordinate."""

from eagle_eye.types import Layout


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
        return next((node for node in self._last.voters if node not in self._gone), "")

    @property
    def ours(self) -> bool:
        """It is our turn."""
        return self.next() == self._own

    def address(self, node: str) -> str:
        return self._last.launchers.get(node, "")

    def unreachable(self, node: str) -> None:
        """It did not answer."""
        self._gone.add(node)

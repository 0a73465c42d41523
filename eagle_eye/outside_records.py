"""What a node says about a job whose layouts do not name it: it counts once one does.

An agent writes for each job that a user of its node has registered there. That may be the name of another user's job, on other nodes: its
launchers know which nodes take part in it, and nobody else does. A node that joins is heard a moment before the layout that names it is read.
"""

from collections import deque
from collections.abc import Collection

from .types import Event, Layout
from .wire import SealedBatch

HELD_TICKS = 60
"""A record waits for so many ticks for a layout that names its node."""
HELD_MOST = 256
"""Records of one job that wait; the oldest are left out beyond."""
OF_SERVERS = ("session.", "alert.", "claim.")
"""How the names of events begin that servers write, of whichever node they run on."""


class OutsideRecords:
    """Of one job."""

    def __init__(self) -> None:
        self.left_out = 0
        """Records whose node no layout has named in time."""
        self.node = ""
        """The last node of these."""
        self._inside: frozenset[str] = frozenset()
        """Nodes that may speak of the job; empty: no layout is known, then all may."""
        self._named: dict[int, frozenset[str]] = {}
        """Epoch → the nodes of its layout: of workers, of launchers without workers, and those that were evicted."""
        self._held: deque[tuple[int, SealedBatch | Event]] = deque()

    def holds(self, record: SealedBatch | Event, tick: int) -> bool:
        """True if the record does not count now. `tick`: the number of the newest."""
        if not self._inside or _node_of(record) in self._inside or (isinstance(record, Event) and record.name.startswith(OF_SERVERS)):
            return False
        self._held.append((tick, record))
        if len(self._held) > HELD_MOST:
            self._leave_out()
        return True

    def know(self, layout: Layout, epochs: Collection[int]) -> list[SealedBatch | Event]:
        """Takes a layout in; returns what counts now. `epochs`: the newest, whose nodes count: one that was lost or evicted a moment ago still tells why."""
        self._named[layout.epoch] = frozenset(filter(None, (*layout.nodes, *layout.launchers, *layout.excluded, layout.coordinator)))
        self._named = {epoch: named for epoch, named in self._named.items() if epoch in epochs}
        self._inside = frozenset().union(*self._named.values())
        joined = [record for _, record in self._held if _node_of(record) in self._inside]
        self._held = deque(each for each in self._held if _node_of(each[1]) not in self._inside)
        return joined

    def expire(self, tick: int) -> None:
        """Leave out what has waited for too long."""
        while self._held and tick - self._held[0][0] > HELD_TICKS:
            self._leave_out()

    def _leave_out(self) -> None:
        self.node = _node_of(self._held.popleft()[1])
        self.left_out += 1


def _node_of(record: SealedBatch | Event) -> str:
    return record.node if isinstance(record, Event) else record.header.node

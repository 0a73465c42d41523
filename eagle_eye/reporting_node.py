"""What a frame builder knows about one node: which of its batches have been read, and which is its newest."""

from .deduplication import Writers
from .wire import BatchHeader

SUCCEEDED_TICKS = 10
"""An incarnation that was silent for so many ticks has no precedence any more over the one before it."""


class ReportingNode:
    """One node, of one job."""

    __slots__ = ("batches", "heard", "newest", "used")

    def __init__(self) -> None:
        self.batches = Writers()
        self.used: dict[str, BatchHeader] = {}
        """Schema id → the newest batch whose readings are in a frame."""
        self.newest: BatchHeader | None = None
        """Of all its batches."""
        self.heard: dict[str, int] = {}
        """Incarnation → tick of its last batch."""

    def hear(self, header: BatchHeader, tick: int) -> bool:
        """True if the batch is the newest one of the node."""
        self.heard[header.incarnation] = tick
        if len(self.heard) > Writers.INCARNATIONS_KEPT:
            del self.heard[next(iter(self.heard))]
        if self.newest is not None and self.is_older(header, self.newest, tick):
            return False
        self.newest = header
        return True

    def is_older(self, header: BatchHeader, than: BatchHeader, tick: int) -> bool:
        """Within an incarnation numbers decide, as clocks may be set back; between two the one that began later, while it sends.

        An incarnation that began later is never older, whatever its clock says: an agent that is started again after its clock was an hour
        ahead is heard at once.
        """
        if header.incarnation == than.incarnation:
            return header.number < than.number
        if header.time >= than.time or tick - self.heard.get(than.incarnation, tick) > SUCCEEDED_TICKS:
            return False
        return self.batches.began_before(header.incarnation, than.incarnation)

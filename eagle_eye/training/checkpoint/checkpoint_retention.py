"""Which checkpoints of a directory stay when a newer one is there: the newest ones, and the first one of each span of steps or hours."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from .saved_checkpoint import SavedCheckpoint

KEPT = 2
"""Newest checkpoints that are kept, besides the newest finite one."""
HOUR_S = 3600.0
LEAST_HOURS = 0.001
"""Of a span: of a shorter one no number can be told from the next one's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRetention:
    """Of one directory; the newest finite one stays in any case, and so does what was just saved (checkpoint_directory.prune)."""

    newest: int = KEPT
    each_steps: int = 0
    """The first one of each span of so many steps stays, too; 0: there are no such spans."""
    each_hours: float = 0.0
    """The same for hours, by when its state was there: LEAST_HOURS or more, or 0."""

    def __post_init__(self) -> None:
        if self.each_hours and not LEAST_HOURS <= self.each_hours < math.inf:
            raise ValueError(f"each_hours={self.each_hours:g}: give {LEAST_HOURS:g} or more hours, or 0 for no such span")

    def staying(self, whole: Sequence[SavedCheckpoint]) -> list[SavedCheckpoint]:
        """Of those that are whole, in the order of their steps."""
        finite = [entry for entry in whole if entry.finite]
        found = [*whole[-self.newest :], *finite[-1:]]
        if self.each_steps:
            found += first_of_each(finite, lambda entry: entry.step // self.each_steps)
        if self.each_hours:
            found += first_of_each((entry for entry in finite if entry.manifest.saved and math.isfinite(entry.manifest.saved)), lambda entry: int(entry.manifest.saved // (self.each_hours * HOUR_S)))
        return found


NEWEST_KEPT = CheckpointRetention()
"""Where nobody has said anything else."""


def first_of_each(entries: Iterable[SavedCheckpoint], span_of: Callable[[SavedCheckpoint], int]) -> list[SavedCheckpoint]:
    """One for each span."""
    found: dict[int, SavedCheckpoint] = {}
    for entry in entries:
        found.setdefault(span_of(entry), entry)
    return list(found.values())

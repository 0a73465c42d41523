"""Whether workers wait in different places at the same time: what was seen of one a moment ago may be over when another is looked at."""

import numpy as np

from .worker_positions import ACTIVITY, SEEN, STEP, STEP_MARKS, Truths, WorkerPositions

ROUNDS = 2


class WaitingRounds:
    """Counts rounds in which every worker was looked at after all places were known, and was still in its own."""

    def __init__(self) -> None:
        self._seen: tuple[object, ...] = ()
        self._since = 0.0
        self._rounds = 0

    def forget(self) -> None:
        """Somebody has moved, or is somewhere else."""
        self._seen, self._rounds = (), 0

    def confirmed(self, at: WorkerPositions, accused: Truths, now: float, *, tick: bool) -> bool:
        """Whether the same was seen in `ROUNDS` rounds. `now`: of the frame; the looks that it tells of are older. Ages are those of a tick."""
        left = ~at.finished
        places = tuple(at.places.get(name, "") for name in at.workers)
        seen = (at.workers, places, accused.tobytes(), np.nan_to_num(at.table[left][:, [STEP, STEP_MARKS, ACTIVITY]], nan=-1.0).tobytes())
        if seen != self._seen:
            self._seen, self._since, self._rounds = seen, now, 0
        elif tick and bool((now - at.table[left, SEEN] > self._since).all()):
            self._since, self._rounds = now, self._rounds + 1
        return self._rounds >= ROUNDS

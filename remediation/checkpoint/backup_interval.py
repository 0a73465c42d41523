"""How many steps are between two checkpoints that are copied to another node: so many that copying takes no more of this node than it may.

It is a power of two times the least one; all nodes copy as seldom as the one that asks for the most (round_leader.py). Measured is the processor time of the launcher, which
sends the copies of its node and fetches and verifies those of another one; the interval is doubled where that is more than its share of the node's processors, and where a
copy takes more than half of the time: while one is on its way few others are kept in memory.
"""

from dataclasses import dataclass

WINDOW_S = 10.0
"""So long is measured, at the least, before the interval is changed for what copying takes ..."""
WINDOW_STEPS = 4
"""... and for so many copied steps."""
HALVED_BELOW = 0.4
"""Of the share: twice as much is surely below it then."""
LATE, IN_TIME = 0.5, 0.25
"""Of the time between two copied steps: a copy that takes longer is too slow for it; one that takes no longer would be in time with half of it, too."""
MOST_DOUBLINGS = 16


@dataclass(slots=True)
class _Window:
    """What was seen since it began."""

    began: float
    used_s: float
    """Processor time of the launcher at that moment."""
    steps: int = 0
    longest_s: float = 0.0
    """That a copy took."""


class BackupInterval:
    """Of one node. Times are monotonic seconds; `used_s`: processor time of this process so far."""

    def __init__(self, least: int, share: float, processors: int) -> None:
        """`least`: steps; `share`: of the node's processors that copying may take; 0: no limit."""
        self._least, self._share, self._processors = least, share, processors
        self.every = least
        """Steps."""
        self._window: _Window | None = None

    def begin_anew(self) -> None:
        """There is another neighbour."""
        self._window = None

    def copied(self, now: float, used_s: float, took_s: float) -> str:
        """A step is on the other node, which took so long; says what changed, '' for nothing."""
        window = self._window
        if window is None:
            self._window = _Window(now, used_s)
            return ""
        window.steps, window.longest_s = window.steps + 1, max(window.longest_s, took_s)
        if window.steps < WINDOW_STEPS:
            return ""
        seconds = now - window.began
        between_s = seconds / window.steps
        if window.longest_s > LATE * between_s and self._doubled():
            self._window = _Window(now, used_s)
            return f"a checkpoint takes {window.longest_s:.1f} s to another node, where one is due every {between_s:.1f} s: every {self.every} steps one is copied from now on"
        return self._measured(window, seconds, now, used_s)

    def _measured(self, window: _Window, seconds: float, now: float, used_s: float) -> str:
        if not self._share or seconds < WINDOW_S:
            return ""
        share = (used_s - window.used_s) / seconds / self._processors
        self._window = _Window(now, used_s)
        if share > self._share and self._doubled():
            return f"copies to and from other nodes take {share:.1%} of this node's processors, more than {self._share:.1%}: every {self.every} steps one is copied from now on"
        if share < HALVED_BELOW * self._share and window.longest_s < IN_TIME * seconds / window.steps and self.every > self._least:
            self.every //= 2
            return f"copies to and from other nodes take {share:.1%} of this node's processors: every {self.every} steps one is copied from now on"
        return ""

    def _doubled(self) -> bool:
        if self.every >= self._least << MOST_DOUBLINGS:
            return False
        self.every *= 2
        return True

"""Which checkpoints in memory are copied to the neighbour: each, or each second, fourth, ... one, so that copying takes no more of the node than it may.

All nodes of a job have to copy the same steps, and do not ask one another: the interval is a power of two times the least one, and copied is the first
checkpoint at or behind each multiple of it. Where two nodes differ for a while the multiples of the larger one are copied by both.

Measured is the processor time of the launcher, which sends the copies of its node and fetches and verifies those of another one; the interval is
doubled where that is more than its share of the node's processors, and where a copy is still on its way when the next one is due.
"""

from dataclasses import dataclass

WINDOW_S = 10.0
"""So long is measured, at the least, before the interval is changed for what copying takes ..."""
WINDOW_STEPS = 4
"""... and for so many copied steps."""
HALVED_BELOW = 0.4
"""Of the share: twice as much is surely below it then."""
IN_TIME = 0.25
"""Of the time between two copied steps: a copy that takes no longer would be in time with half of it, too."""
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
        self._newest: dict[str, int] = {}
        self._chosen: dict[str, tuple[int, float]] = {}
        """Segment → the step to copy, and since when."""
        self._window: _Window | None = None

    def is_chosen(self, file: str, step: int) -> bool:
        """Whether that step is the one to copy of this segment."""
        return file in self._chosen and self._chosen[file][0] == step

    def step_seen(self, file: str, step: int, now: float, used_s: float, *, fetching: bool) -> str:
        """The newest whole step of a segment; says what changed, '' for nothing. `fetching`: the one that was chosen before is on its way to the neighbour."""
        before = self._newest.get(file)
        if step == before:
            return ""
        self._newest[file] = step
        if before is not None and before < step and step // self.every == before // self.every:
            return ""
        is_new = all(chosen != step for chosen, _ in self._chosen.values())  # of the node's workers it is the first to have it
        self._chosen[file] = step, now
        if before is None:
            return ""
        if fetching and self._doubled():
            self._window = None
            return f"a checkpoint is still on its way to another node when the next one is due: every {self.every} steps one is copied from now on"
        return self._measured(now, used_s) if is_new else ""

    def settled(self, file: str, step: int, now: float) -> None:
        """The neighbour has it."""
        if self._window is not None and self.is_chosen(file, step):
            self._window.longest_s = max(self._window.longest_s, now - self._chosen[file][1])

    def begin_anew(self) -> None:
        """There is another neighbour: the newest step is copied, whichever it is."""
        self._newest.clear()
        self._chosen.clear()
        self._window = None

    def _measured(self, now: float, used_s: float) -> str:
        window = self._window
        if window is None:
            self._window = _Window(now, used_s)
            return ""
        window.steps += 1
        seconds = now - window.began
        if not self._share or seconds < WINDOW_S or window.steps < WINDOW_STEPS:
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

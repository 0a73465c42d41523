"""Whose timer may wake a main thread that waits for a thread of its own: not one that has run out in vain before."""

from .hang_verdict import ProcessLook
from .python_stacks import StackFrame

SAME_S = 0.5
"""Two ends of a timer that are so close together are one: each look takes its time."""


class TimerWatch:
    """Threads of one process over all looks at it. Heartbeats and progress bars sleep again and again, and wake nobody."""

    def __init__(self) -> None:
        self._place: tuple[StackFrame, ...] = ()
        self._ends: dict[int, float] = {}
        self._in_vain: set[int] = set()

    @property
    def in_vain(self) -> frozenset[int]:
        """Threads that have set a timer anew while the main thread stood where it stands."""
        return frozenset(self._in_vain)

    def observe(self, look: ProcessLook) -> None:
        """Take in a look; a main thread that has moved begins anew."""
        if not look.stacks:
            return
        if look.stacks[0].frames != self._place:
            self._place = look.stacks[0].frames
            self._ends.clear()
            self._in_vain.clear()
        for stack, wait in zip(look.stacks[1:], look.waits[1:], strict=True):
            if wait.ends_within(float("1e9")):
                end = look.time + wait.remaining_s
                if end - self._ends.setdefault(stack.thread, end) > SAME_S:
                    self._in_vain.add(stack.thread)

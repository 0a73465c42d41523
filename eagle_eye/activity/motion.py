"""Whether the main thread of a process moves: told from several looks at it, since one stack alone says only where it is."""

from collections.abc import Sequence
from enum import StrEnum

from .hang_verdict import DEMAND_SHARE, TRACED, ProcessLook
from .thread_wait import WaitKind

STOPPED = "T"
ENDED = frozenset("ZXx")


class Motion(StrEnum):
    """What the looks show of the main thread; whether that is a hang is another question (hang_verdict)."""

    MOVES = "moves"
    """Its stacks differ."""
    COMPUTES = "computes"
    """The same place each time, and it uses the processor, or wants it."""
    STANDS = "stands"
    """The same place each time, and it waits there."""
    STOPPED = "stopped"
    """By a signal (state T)."""
    TRACED = "traced"
    """A debugger or a tracer holds it (state t)."""
    ENDED = "ended"
    """Its parent has not asked for its exit code yet: a zombie (state Z)."""
    UNKNOWN = "unknown"
    """There is one look alone, or none with a stack."""


def motion_of(looks: Sequence[ProcessLook]) -> Motion:
    """From looks at one process, the oldest first."""
    state = looks[-1].state if looks else ""
    if state in ENDED:
        return Motion.ENDED
    if state == STOPPED:
        return Motion.STOPPED
    if state == TRACED and all(look.state == TRACED for look in looks[-2:]):  # once: somebody takes a stack
        return Motion.TRACED
    seen = [look for look in looks if look.stacks]
    if len(seen) < 2:
        return Motion.UNKNOWN
    if len({look.stacks[0].frames for look in seen}) > 1:
        return Motion.MOVES
    return Motion.COMPUTES if _computes(seen) else Motion.STANDS


def _computes(looks: Sequence[ProcessLook]) -> bool:
    """In most looks it ran, or for most of the time it had or wanted a processor."""
    first, last = looks[0], looks[-1]
    running = sum(look.state == "R" or look.waits[0].kind is WaitKind.NONE for look in looks)
    thread = last.stacks[0].thread
    demand = last.counters.demand.get(thread, 0.0) - first.counters.demand.get(thread, 0.0)
    return 2 * running > len(looks) or demand > DEMAND_SHARE * (last.time - first.time)

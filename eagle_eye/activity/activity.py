"""Works or hangs: the verdict on a process whose step does not end, from several looks at it.

The absence of a mark proves nothing. A process works when its stack, its processor time, its files or its memory move, or when a timer
will wake it; it hangs for sure when it stands and nothing that it has could ever wake it. In between it stands without a proof.
"""

from collections.abc import Collection, Sequence
from enum import Enum
from typing import NamedTuple

from .process_counters import ProcessCounters
from .stacks import StackFrame, ThreadStack, in_lock, in_ours
from .thread_wait import ThreadWait, WaitKind

BUSY_SHARE = 0.1
"""Of one core: who uses less does not compute. Service threads (heartbeats, probes) use 0.02 at most."""
DEMAND_SHARE = 0.5
"""Of the time: a thread that computes, or waits for a processor, for so much of it has work to do, however little it gets done."""
FEWEST_LOOKS = 2
"""With a stack, for a verdict."""
IO_BYTES, FAULTS = 4096, 64
"""Between the first look and the last: less is noise of the service threads."""


class ActivityKind(Enum):
    """What a process does whose step does not end. The names are those of events and evidence."""

    STOPPED = "stopped"
    """By a signal (state T)."""
    HUNG = "hung"
    """It stands, and nothing that it has will ever wake it, or only after the user's patience: the proof is complete."""
    AWAITS_PEERS = "awaits peers"
    """In a collective, or in a rendezvous."""
    STANDING = "standing"
    """Nothing moves, and it may be that somebody outside wakes it: no proof of anything."""
    WORKING = "working"
    """It computes, reads, writes, starts processes, or a timer wakes it soon."""
    SPINNING = "spinning"
    """It computes in one place of one function, and nothing else moves: a long computation, or an endless loop."""
    UNKNOWN = "unknown"
    """Its stacks could not be read."""


class Activity(NamedTuple):
    """The verdict."""

    kind: ActivityKind
    doing: str = ""
    """For a person: what it does, and in which line of the user's code."""
    place: str = ""
    """`file:line function` of the user's innermost frame; where the others wait tells who is elsewhere."""


class ProcessLook(NamedTuple):
    """One look at a process."""

    time: float
    """Monotonic seconds."""
    state: str
    """Letter of the main thread's state (man 5 proc_pid_stat)."""
    counters: ProcessCounters
    stacks: tuple[ThreadStack, ...] = ()
    """The main thread's first."""
    waits: tuple[ThreadWait, ...] = ()
    """Of the threads in `stacks`, in their order."""
    uses_gpu: bool = False
    """It has a GPU open: what its threads wait for may be computed there."""


def judge(looks: Sequence[ProcessLook], patience_s: float, in_vain: Collection[int] = ()) -> Activity:
    """The verdict from looks that are some time apart, oldest first.

    `patience_s`: a timer that runs longer is no work. `in_vain`: threads whose timers have run out before and woken nobody.
    """
    if looks[-1].state == "T":
        return Activity(ActivityKind.STOPPED, "was stopped by a signal")
    looks = [look for look in looks if look.stacks]  # one that met a stack on the move saw nothing
    if len(looks) < FEWEST_LOOKS:
        return Activity(ActivityKind.UNKNOWN, "cannot be looked into: py-spy needs to be installed and allowed (eagle-eye doctor)")
    last = looks[-1]
    main = last.stacks[0]
    place = main.place
    at, where = str(place or ""), f"in {place}" if place else "outside Python"
    motion = _motion(looks)
    if main.awaits_peers and not _elsewhere(looks):
        return Activity(ActivityKind.AWAITS_PEERS, f"waits for its peers {where}", at)
    if motion:
        return Activity(ActivityKind.WORKING, f"works {where}: {motion}", at)
    if _busy(looks) and not any(look.waits[0].kind is WaitKind.NONE or look.state == "R" for look in looks):
        return Activity(ActivityKind.WORKING, f"waits {where} while threads or processes of its own compute", at)
    if _busy(looks):
        return Activity(ActivityKind.SPINNING, f"computes {where}, the same place in {len(looks)} of {len(looks)} looks", at)
    return _still(last, patience_s, in_vain, where, at)


def _elsewhere(looks: Sequence[ProcessLook]) -> bool:
    """Whether it was outside of a collective in one of the looks: then it moves."""
    return not all(look.stacks[0].awaits_peers for look in looks)


def _motion(looks: Sequence[ProcessLook]) -> str:
    """What moves, for a person; '' if nothing does."""
    first, last = looks[0], looks[-1]
    different = len({look.stacks[0].frames for look in looks})
    if different > 1:
        return f"{different} of {len(looks)} stacks differ"
    if last.counters.io_bytes - first.counters.io_bytes >= IO_BYTES:
        return f"{(last.counters.io_bytes - first.counters.io_bytes) / 1e6:.1f} MB read or written"
    if last.counters.faults - first.counters.faults >= FAULTS:
        return f"{last.counters.faults - first.counters.faults} pages touched"
    return ""


def _busy(looks: Sequence[ProcessLook]) -> bool:
    """It computes, or would if the machine were less busy: in most looks it, or a process of its own, wanted a processor, or a thread does."""
    first, last = looks[0], looks[-1]
    wanted = sum(look.counters.runnable for look in looks)
    return 2 * wanted > len(looks) or _thread_demands(first, last) or last.counters.cpu_s - first.counters.cpu_s > BUSY_SHARE * (last.time - first.time)


def _thread_demands(first: ProcessLook, last: ProcessLook) -> bool:
    """A thread of the user's has work to do: not ours, whose short turns take long on a busy machine."""
    ours = {stack.thread for stack in last.stacks if stack.name.startswith("eagle-eye")}
    begun, now = first.counters.demand, last.counters.demand
    enough = DEMAND_SHARE * (last.time - first.time)
    return any(seconds - begun.get(thread, seconds) > enough for thread, seconds in now.items() if thread not in ours)


def _still(look: ProcessLook, patience_s: float, in_vain: Collection[int], where: str, at: str) -> Activity:
    """Nothing moves: what could wake it?"""
    main, wait = look.stacks[0], look.waits[0]
    if wait.kind is WaitKind.STORAGE:
        return Activity(ActivityKind.WORKING, f"waits for its storage {where}", at)
    if wait.ends_within(patience_s):
        return Activity(ActivityKind.WORKING, f"waits {where} for another {max(0.0, wait.remaining_s):.0f} s at most", at)
    if wait.kind is WaitKind.TIME:
        return Activity(ActivityKind.HUNG, f"sleeps {where} for another {wait.remaining_s:.0f} s", at)
    sleeper = _sleeper(look, patience_s, in_vain)
    if wait.kind is WaitKind.LOCK and not main.holds_interpreter and sleeper is not None:
        return Activity(ActivityKind.WORKING, f"waits {where} for a thread of its own that sleeps for another {max(0.0, sleeper.remaining_s):.0f} s", at)
    if wait.kind is WaitKind.LOCK and (main.holds_interpreter or _nobody_wakes(look, patience_s)) and _is_no_device(look, main.frames):
        held = ", holding the interpreter's lock" if main.holds_interpreter else ""
        return Activity(ActivityKind.HUNG, f"waits {where} for a lock that nobody will release{held}", at)
    if look.state == "D" and wait.kind is not WaitKind.UNKNOWN:
        return Activity(ActivityKind.HUNG, f"hangs in the kernel (state D) {where}", at)
    return Activity(ActivityKind.STANDING, f"stands {where}: no processor time, no files, no memory, the same stack each time", at)


def _sleeper(look: ProcessLook, patience_s: float, in_vain: Collection[int]) -> ThreadWait | None:
    """The wait of a thread of the user's that a timer ends, and that may wake the main thread then; None if there is none."""
    rest = zip(look.stacks[1:], look.waits[1:], strict=True)
    found = [wait for stack, wait in rest if wait.ends_within(patience_s) and stack.thread not in in_vain and not stack.name.startswith("eagle-eye")]
    return max(found, key=lambda wait: wait.remaining_s, default=None)


def _nobody_wakes(look: ProcessLook, patience_s: float) -> bool:
    """Whether every other thread that runs Python waits for a lock without end, too, or is one of ours that the main thread does not wait for."""
    ours = in_ours(look.stacks[0].frames)
    rest = zip(look.stacks[1:], look.waits[1:], strict=True)
    return all((stack.name.startswith("eagle-eye") and not ours) or (wait.kind is WaitKind.LOCK and not wait.ends_within(patience_s)) for stack, wait in rest)


def _is_no_device(look: ProcessLook, frames: Sequence[StackFrame]) -> bool:
    """A thread that waits inside a library may wait for a GPU; one in Python's own lock does not."""
    return not look.uses_gpu or in_lock(frames)

"""Works or hangs: the verdict on a process whose step does not end, from several looks at it.

The absence of a mark proves nothing. A process works when its stack, its processor time, its files or its memory move, or when a timer
will wake it; it hangs for sure when it stands and nothing that it has could ever wake it. In between it stands without a proof.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from enum import Enum
from typing import NamedTuple

from .last_collective import LastCollective
from .native_caller import INTERPRETER
from .native_threads import NativeThread
from .process_counters import ProcessCounters
from .python_stacks import BACKWARD, GPU_LIBRARIES, PEER_LIBRARIES, ThreadStack, in_ours, in_python_lock
from .thread_wait import ThreadWait, WaitKind

BUSY_SHARE = 0.1
"""Of one core: who uses less does not compute. Service threads (heartbeats, probes) use 0.02 at most."""
DEMAND_SHARE = 0.5
"""Of the time: a thread that computes, or waits for a processor, for so much of it has work to do, however little it gets done."""
FEWEST_LOOKS = 2
"""With a stack, for a verdict."""
TRACED = "t"
"""Letter of a process that is held by ptrace."""
LONGEST_TIMEOUT_S = 86_400.0
"""A time-out of up to a day is meant to end, however long the user is willing to wait; one of years says `never`."""
IO_BYTES, FAULTS = 4096, 64
"""Between the first look and the last: less is noise of the service threads."""
FLOW_BYTES, FLOW_IO_BYTES = 1 << 16, 1 << 20
"""The same in a collective: what its connections carry is nearly all the exchange's, while logs and monitors read and write beside it."""


class ActivityKind(Enum):
    """What a process does whose step does not end. The names are those of events and evidence."""

    STOPPED = "stopped"
    """By a signal (state T)."""
    HUNG = "hung"
    """It stands, and nothing that it has will ever wake it: the proof is complete."""
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
    TRACED = "traced"
    """A debugger or a tracer holds it (state t): a person does."""
    AWAITS_GPU = "awaits gpu"
    """It computes in one place, or waits there for its GPU, which may compute, or wait for the peers within a collective."""
    EXCHANGES = "exchanges"
    """In a collective, like one that awaits its peers, and what it waits for is on its way: bytes flow, or threads of its own compute."""


class Activity(NamedTuple):
    """The verdict."""

    kind: ActivityKind
    doing: str = ""
    """For a person: what it does, and in which line of the user's code."""
    place: str = ""
    """`file:line function` of the user's innermost frame; where the others wait tells who is elsewhere."""
    began: float = 0.0
    """Monotonic time of the first of the looks, by the clock of whoever asks."""
    collective: LastCollective | None = None
    """Where its torch records them."""
    uses_gpu: bool = False
    """It has a GPU open: what it exchanges with its peers may be carried by it."""


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
    tracer: str = ""
    """Who holds it, in the state t."""
    uses_gpu: bool = False
    """It has a GPU open: what its threads wait for may be computed there."""
    native: tuple[NativeThread, ...] = ()
    """Threads that run no Python, and that may wake the main thread."""
    handles_alarm: bool = False
    """An alarm may interrupt the main thread; nobody knows when."""
    tcp_bytes: int = 0
    """That its connections have carried; only asked for while it waits for its peers."""


def judge(looks: Sequence[ProcessLook], patience_s: float, in_vain: Collection[int] = ()) -> Activity:
    """The verdict from looks that are some time apart, oldest first.

    `patience_s`: a timer that runs longer is no work, unless Python has set it for the main thread. `in_vain`: threads whose timers have run out before and woken nobody.
    """
    if looks[-1].state == "T":
        return Activity(ActivityKind.STOPPED, "was stopped by a signal")
    held = [look for look in looks if look.state == TRACED]
    if looks[-1].state == TRACED and len(held) >= FEWEST_LOOKS:  # one alone: somebody takes a stack
        return _traced(looks[-1])
    looks = [look for look in looks if look.stacks and look.state != TRACED]  # one that met a stack on the move saw nothing
    if len(looks) < FEWEST_LOOKS:
        why = "a debugger or a tracer held it" if held else "py-spy needs to be installed and allowed (eagle-eye doctor)"
        return Activity(ActivityKind.UNKNOWN, f"cannot be looked into: {why}")
    last = looks[-1]
    main = last.stacks[0]
    place = main.place
    at, where = str(place or ""), f"in {place}" if place else "outside Python"
    motion = _motion(looks)
    if _awaits_peers(looks):
        return _with_peers(looks, where, at)
    if motion:
        return Activity(ActivityKind.WORKING, f"works {where}: {motion}", at)
    if _busy(looks) and not any(look.waits[0].kind is WaitKind.NONE or look.state == "R" for look in looks):
        return Activity(ActivityKind.WORKING, f"waits {where} while threads or processes of its own compute", at)
    if _busy(looks) and last.uses_gpu:
        return Activity(ActivityKind.AWAITS_GPU, f"computes {where}, or waits for its GPU, the same place in {len(looks)} of {len(looks)} looks", at)
    if _busy(looks):
        return Activity(ActivityKind.SPINNING, f"computes {where}, the same place in {len(looks)} of {len(looks)} looks", at)
    return _unless_alarm(_still(looks, patience_s, in_vain, where, at), last)


def _unless_alarm(found: Activity, look: ProcessLook) -> Activity:
    """One that the kernel holds is not interrupted."""
    if found.kind is ActivityKind.HUNG and look.handles_alarm and look.waits[0].kind is not WaitKind.CHILD:
        return found._replace(kind=ActivityKind.STANDING, doing=f"{found.doing}, unless an alarm interrupts it")
    return found


def _traced(look: ProcessLook) -> Activity:
    place = str((look.stacks[0].place if look.stacks else None) or "")
    by = f", {look.tracer}," if look.tracer else ""
    return Activity(ActivityKind.TRACED, f"is held by a debugger or a tracer{by} {f'in {place}' if place else 'outside Python'}", place)


def _awaits_peers(looks: Sequence[ProcessLook]) -> bool:
    """Whether it waited for its peers in all of the looks, and in one place: else it moves. Who waits for its storage in most of them waits for that."""
    waited = all(in_collective(look.stacks[0], look.waits[0]) for look in looks) and len({look.stacks[0].place for look in looks}) == 1
    return waited and 2 * sum(_awaits_storage(look) for look in looks) <= len(looks)


def in_collective(main: ThreadStack, wait: ThreadWait) -> bool:
    """Whether a main thread waits for other ranks at this moment."""
    return main.awaits_peers or (wait.kind is WaitKind.LOCK and wait.caller.startswith(PEER_LIBRARIES))


def _with_peers(looks: Sequence[ProcessLook], where: str, at: str) -> Activity:
    flow = _flow(looks)
    if flow:
        return Activity(ActivityKind.EXCHANGES, f"exchanges data with its peers {where}: {flow}", at)
    return Activity(ActivityKind.AWAITS_PEERS, f"waits for its peers {where}", at)


def _flow(looks: Sequence[ProcessLook]) -> str:
    """What shows that a collective goes on, for a person; '' if nothing does."""
    first, last = looks[0], looks[-1]
    if last.tcp_bytes - first.tcp_bytes >= FLOW_BYTES and first.tcp_bytes:
        return f"{(last.tcp_bytes - first.tcp_bytes) / 1e6:.1f} MB sent or received"
    if last.counters.io_bytes - first.counters.io_bytes >= FLOW_IO_BYTES:
        return f"{(last.counters.io_bytes - first.counters.io_bytes) / 1e6:.1f} MB read or written"
    computed_s = _computed_s(first, last)
    return f"{computed_s:.1f} s of processor time" if computed_s > BUSY_SHARE * (last.time - first.time) else ""


def _computed_s(first: ProcessLook, last: ProcessLook) -> float:
    """Processor time of all but a main thread that polls. With a GPU, threads of the library poll, too: it tells nothing."""
    main = last.stacks[0]
    begun, now = first.counters.demand, last.counters.demand
    if last.uses_gpu or main.thread not in begun or main.thread not in now:
        return 0.0
    polls = main.frames[0].function != BACKWARD  # there the gradients are computed
    return last.counters.cpu_s - first.counters.cpu_s - (now[main.thread] - begun[main.thread] if polls else 0.0)


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


def _still(looks: Sequence[ProcessLook], patience_s: float, in_vain: Collection[int], where: str, at: str) -> Activity:
    """Nothing moves: what could wake it?"""
    look = looks[-1]
    wait = look.waits[0]
    if _awaits_storage(look):
        return Activity(ActivityKind.WORKING, f"waits for its storage {where}", at)
    if _ends(look.stacks[0], wait, patience_s):
        return Activity(ActivityKind.WORKING, f"waits {where} for another {max(0.0, wait.remaining_s):.0f} s at most", at)
    if wait.kind is WaitKind.TIME:
        return Activity(ActivityKind.HUNG, f"sleeps {where} for another {wait.remaining_s:.0f} s", at)
    if wait.kind is WaitKind.CHILD:
        return Activity(ActivityKind.HUNG, f"hangs in the kernel (state {look.state}) {where}: its child starts no program", at)
    if wait.kind is WaitKind.SIGNAL and look.stacks[0].holds_interpreter:
        return Activity(ActivityKind.HUNG, f"waits {where} for a signal, holding the interpreter's lock", at)
    if wait.kind is WaitKind.LOCK and wait.caller.startswith(GPU_LIBRARIES):
        return Activity(ActivityKind.AWAITS_GPU, f"waits for its GPU {where}", at)
    if wait.kind is WaitKind.LOCK and (found := _locked(looks, patience_s, in_vain, where, at)) is not None:
        return found
    return Activity(ActivityKind.STANDING, f"stands {where}: no processor time, no files, no memory, the same stack each time", at)


def _ends(stack: ThreadStack, wait: ThreadWait, patience_s: float) -> bool:
    """Whether a timer ends it: one that Python has set, whenever; one of native code, or for input, within the patience."""
    pythons = wait.kind is WaitKind.TIME or _in_python_lock(stack, wait)
    return wait.ends_within(max(patience_s, LONGEST_TIMEOUT_S) if pythons else patience_s)


def _awaits_storage(look: ProcessLook) -> bool:
    """Sockets, pipes and children are never waited for in the state D: what reads there reads a file."""
    kind = look.waits[0].kind
    return kind is WaitKind.STORAGE or (look.state == "D" and (kind is WaitKind.INPUT or (kind is WaitKind.UNKNOWN and not look.uses_gpu)))


def _locked(looks: Sequence[ProcessLook], patience_s: float, in_vain: Collection[int], where: str, at: str) -> Activity | None:
    """It waits for another thread of its own; None if it is not known of which."""
    look = looks[-1]
    main = look.stacks[0]
    if not main.holds_interpreter and (saver := _saver(looks)) is not None:
        return Activity(ActivityKind.WORKING, f"waits {where} while its thread {saver.name} waits for its storage in {saver.place}", at)
    sleeper = _sleeper(look, patience_s, in_vain)
    if not main.holds_interpreter and sleeper is not None:
        return Activity(ActivityKind.WORKING, f"waits {where} for a thread of its own that sleeps for another {max(0.0, sleeper.remaining_s):.0f} s", at)
    if not _in_python_lock(main, look.waits[0]) or not (main.holds_interpreter or _nobody_wakes(look)):
        return None
    held = ", holding the interpreter's lock" if main.holds_interpreter else ""
    return Activity(ActivityKind.HUNG, f"waits {where} for a lock that nobody will release{held}", at)


def _saver(looks: Sequence[ProcessLook]) -> ThreadStack | None:
    """A thread that the main thread may wait for, and that waited for its storage in most of the looks: a save of gigabytes, and its fsync.

    One that writes a line now and then, as of a log, does so in few.
    """
    storing = Counter(stack.thread for look in looks for stack, wait in zip(look.stacks[1:], look.waits[1:], strict=True) if wait.kind is WaitKind.STORAGE)
    return next((stack for stack in _others(looks[-1]) if 2 * storing[stack.thread] > len(looks)), None)


def _others(look: ProcessLook) -> Iterator[ThreadStack]:
    """Threads that the main thread may wait for: ours only where it is in our own code."""
    ours = in_ours(look.stacks[0].frames)
    return (stack for stack in look.stacks[1:] if ours or not stack.name.startswith("eagle-eye"))


def _in_python_lock(stack: ThreadStack, wait: ThreadWait) -> bool:
    """It is the interpreter's own lock, which only a thread that runs Python releases. Who wakes native code is not to be seen: its threads
    may wait for the network, a GPU, or other ranks."""
    return wait.kind is WaitKind.LOCK and (in_python_lock(stack.frames) or wait.caller == INTERPRETER)


def _sleeper(look: ProcessLook, patience_s: float, in_vain: Collection[int]) -> ThreadWait | None:
    """The wait of a thread of the user's that a timer ends, and that may wake the main thread then; None if there is none."""
    rest = zip(look.stacks[1:], look.waits[1:], strict=True)
    found = [wait for stack, wait in rest if wait.ends_within(patience_s) and stack.thread not in in_vain and not stack.name.startswith("eagle-eye")]
    return max(found, key=lambda wait: wait.remaining_s, default=None)


def _nobody_wakes(look: ProcessLook) -> bool:
    """Whether every other thread that runs Python waits for such a lock without end, too, or is one of ours that the main thread does not wait for;
    and no other thread may wake it."""
    if look.native:
        return False
    ours = in_ours(look.stacks[0].frames)
    rest = zip(look.stacks[1:], look.waits[1:], strict=True)
    return all((stack.name.startswith("eagle-eye") and not ours) or (_in_python_lock(stack, wait) and not wait.ends_within(LONGEST_TIMEOUT_S)) for stack, wait in rest)

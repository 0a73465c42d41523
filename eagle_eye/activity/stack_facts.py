"""What is known of one sampled process beside its stack, as sentences: the verdict, the kernel's state, what it waits for."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from .hang_verdict import Activity, ActivityKind, judge
from .kernel_state import HELD, command_of
from .motion import ENDED, Motion, motion_of
from .native_caller import INTERPRETER
from .open_files import OpenFile
from .python_stacks import GPU_LIBRARIES, PEER_LIBRARIES
from .stack_groups import SampledProcess
from .stack_sampler import StackSample
from .thread_wait import NEVER, WaitKind

STATES = {
    "R": "runs, or waits for a processor", "S": "sleeps", "D": "uninterruptible sleep", "T": "stopped by a signal", "t": "held by a debugger or a tracer",
    "Z": "zombie: it has ended, and its parent has not asked for its exit code", "X": "dead", "I": "idle",
}  # fmt: skip
"""Letter of a process's state (man 5 proc_pid_stat) → what it means."""
WAITING = (Motion.STANDS, Motion.UNKNOWN)
"""Who does something else waits for nothing, or not for that."""
NAMED = 3
"""Descriptors of one wait that a sentence names."""
WORDS = {
    WaitKind.TIME: "a timer", WaitKind.SIGNAL: "a signal", WaitKind.CHILD: "a child that starts a program", WaitKind.INPUT: "input, or another process",
    WaitKind.STORAGE: "its storage",
}  # fmt: skip
FileOf = Callable[[int], OpenFile | None]
"""Descriptor of the process → what it is."""


class ProcessFact(NamedTuple):
    """One sentence. Facts with one key are one fact in a group, and the first text stands for all: they differ in seconds and bytes."""

    key: str
    text: str


class ProcessReport(NamedTuple):
    """One process, whole."""

    process: SampledProcess
    activity: Activity | None
    """None from one look alone."""
    state: str
    """Letter of the newest look; '' if the process was gone."""
    wchan: str
    waits_for: str
    facts: tuple[ProcessFact, ...]


def report(samples: Sequence[StackSample], patience_s: float, file_of: FileOf) -> ProcessReport:
    """From the looks at one process, at least one, the oldest first. `file_of` is asked for what the main thread waits for."""
    last, looks = samples[-1], [sample.look for sample in samples]
    motion = motion_of(looks)
    activity = judge(looks, patience_s) if len(looks) > 1 and motion is not Motion.ENDED else None
    stacks = [look.stacks for look in looks if look.stacks]
    awaits_peers = activity is not None and activity.kind in (ActivityKind.AWAITS_PEERS, ActivityKind.EXCHANGES)
    waits_for = wait_words(last, file_of) if motion in WAITING else ""
    facts = tuple(_facts(samples, activity if stacks else None, waits_for))
    return ProcessReport(SampledProcess(samples=stacks, motion=motion, awaits_peers=awaits_peers), activity, last.kernel.state, last.kernel.wchan, waits_for, facts)


def _facts(samples: Sequence[StackSample], activity: Activity | None, waits_for: str) -> Iterator[ProcessFact]:
    last = samples[-1]
    if activity is not None and activity.doing:
        yield ProcessFact(activity.kind.value, activity.doing)
    held = sum(sample.kernel.state == HELD for sample in samples)
    state = f"state {last.kernel.state} ({STATES.get(last.kernel.state, 'unknown')})"
    if last.kernel.state == HELD and last.kernel.wchan:
        state += f" in {last.kernel.wchan}, in {held} of {len(samples)} looks"
    wait = f"; waits for {waits_for}" if waits_for else ""
    yield ProcessFact(f"{last.kernel.state} {last.kernel.wchan if held else ''} {waits_for}", f"{state}{wait}")
    for thread in last.kernel.held[:NAMED]:
        yield ProcessFact(thread, f"thread {thread}: state D")
    if last.no_stacks is not None and last.kernel.state not in ENDED:
        yield ProcessFact(last.no_stacks, f"no stack: {last.no_stacks}")


def wait_words(sample: StackSample, file_of: FileOf) -> str:
    """What the main thread waits for; '' if it runs, or that is not known."""
    wait, call = sample.wait, sample.call
    if wait.kind is WaitKind.LOCK:
        return _lock(wait.caller) + ("" if wait.remaining_s == NEVER else ", with a time-out")
    if call.path:
        return f"file {call.path}"
    if call.child:
        return f"child {call.child} ({command_of(call.child) or 'gone'})"
    files = [file for number in call.descriptors if (file := file_of(number)) is not None]
    if files:
        more = f" and {len(files) - NAMED} more" if len(files) > NAMED else ""
        return ", ".join(map(str, files[:NAMED])) + more
    return WORDS.get(wait.kind, "")


def _lock(caller: str) -> str:
    if caller == INTERPRETER:
        return "a lock of Python"
    if caller.startswith(PEER_LIBRARIES):
        return f"its peers, in {caller}"
    if caller.startswith(GPU_LIBRARIES):
        return f"its GPU, in {caller}"
    return f"a lock in {caller}" if caller else "a lock"

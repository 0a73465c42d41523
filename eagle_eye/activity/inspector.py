"""Looks into processes that are suspected to hang, in threads of its own: whoever asks never waits."""

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from eagle_eye.clock import Clock

from .hang_verdict import TRACED, Activity, ActivityKind, ProcessLook, in_collective, judge
from .kernel_state import state_of
from .last_collective import LastCollective, last_collective
from .native_caller import CodeMap
from .native_threads import wakers
from .process_counters import read_counters
from .python_stacks import StackFrame, ThreadStack, stacks_of
from .tcp_flow import tcp_bytes
from .thread_wait import WaitKind, wait_of

log = logging.getLogger(__name__)

LOOKS = 4
LOOK_S, GAP_S = 0.4, 0.2
"""From the beginning of a look to that of the next: a verdict takes 1.2 s. After a look that took long on a busy node it waits at least so long."""
AGAIN_S, AGAIN_LONGEST_S = 1.0, 10.0
"""Pause before the next verdict on a process that works; doubled each time up to the longest."""
ROUND_LOOKS, ROUNDS = 2, 10
"""Who waits for its peers is looked at again at once, and shortly, so often: it is accused of waiting elsewhere only after several rounds."""
THREADS = 8
SAME_S = 0.5
"""Two ends of a timer that are so close together are one: each look takes its time."""
ALARMS = (signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF)
"""Of the interval timers, in the order of `ITIMER_REAL`, `ITIMER_VIRTUAL`, `ITIMER_PROF`."""
GPU_DEVICES = ("/dev/nvidia", "/dev/kfd")
"""Of NVIDIA's driver and AMD's: who computes on a GPU has one open."""

Look = Callable[[int, Clock], ProcessLook | None]
"""Process → what is to be seen of it now, None if it is gone."""
CollectiveOf = Callable[[str], LastCollective | None]
StackReader = Callable[[int], tuple[ThreadStack, ...]]
"""Process → its threads, the main thread's first; () where they cannot be read."""


def look_at(pid: int, clock: Clock, read: StackReader = stacks_of) -> ProcessLook | None:
    """One look at a process: its state, counters, stacks and what its threads wait for."""
    counters = read_counters(pid)
    if counters is None:
        return None
    stacks = read(pid)
    state = state_of(pid)
    code = CodeMap(pid)
    waits = tuple(wait_of(pid, stack.thread, code) for stack in stacks)
    tracer = _tracer(pid) if state == TRACED else ""
    carried = tcp_bytes(pid) if stacks and in_collective(stacks[0], waits[0]) else 0
    native = wakers(pid, {stack.thread for stack in stacks}, code) if waits and waits[0].kind is WaitKind.LOCK else ()
    return ProcessLook(clock.monotonic(), state, counters, stacks, waits, tracer, _uses_gpu(pid), native, handles_alarm(pid), carried) if state else None


class TimerWatch:
    """Whose timer may wake a main thread that waits for a thread of its own: not one that has run out in vain before.

    Threads of one process over all looks at it. Heartbeats and progress bars sleep again and again, and wake nobody.
    """

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


def inspect(
    pid: int, patience_s: float, clock: Clock, look: Look = look_at, timers: TimerWatch | None = None, count: int = LOOKS
) -> Activity | None:
    """Several looks and the verdict; takes `count` - 1 times `LOOK_S`. None if the process is gone. `timers`: of the looks before."""
    timers = timers or TimerWatch()
    looks: list[ProcessLook] = []
    began = clock.monotonic()
    for index in range(count):
        if index:
            clock.sleep(max(GAP_S, began + LOOK_S - clock.monotonic()))
        began = clock.monotonic()
        seen = look(pid, clock)
        if seen is None:
            return None
        looks.append(seen)
        timers.observe(seen)
        if seen.state == "T":
            break
    return judge(looks, patience_s, timers.in_vain)._replace(uses_gpu=looks[-1].uses_gpu)


@dataclass(slots=True)
class _WatchedProcess:
    pid: int
    recorder: str = ""
    activity: Activity | None = None
    due: float = 0.0
    pause_s: float = AGAIN_S
    busy: bool = False
    again: bool = False
    """Somebody was in a hurry while it was looked at: what was seen may be from before."""
    hurried: float = -AGAIN_LONGEST_S
    timers: TimerWatch = field(default_factory=TimerWatch)
    rounds: int = 0
    """How many verdicts in succession said that it waits for its peers."""


class ActivityInspector:
    """Verdicts on the processes that are watched, renewed for as long as they are. Thread-safe."""

    def __init__(
        self, patience_s: float, clock: Clock, look: Look = look_at, threads: Executor | None = None, look_clock: Clock | None = None,
        collective: CollectiveOf = last_collective,
    ) -> None:  # fmt: skip
        """`threads`: where the looks are taken, by default in threads of its own; `look_clock`: by which they wait between two."""
        self._collective = collective
        self._look_clock = look_clock or clock
        self._patience_s = patience_s
        self._clock = clock
        self._look = look
        self._lock = threading.Lock()
        self._cases: dict[Hashable, _WatchedProcess] = {}
        self._threads = threads
        self._closed = False

    def watch(self, wanted: Iterable[tuple[Hashable, int]], recorders: Mapping[Hashable, str] = MappingProxyType({})) -> None:
        """(key, pid) of all processes that are suspected now; what is known of others is forgotten. Call it often.

        `recorders`: key → path of the flight recorder, of those that may have one.
        """
        pids = dict(wanted)
        now = self._clock.monotonic()
        with self._lock:
            self._cases = {key: case for key, case in self._cases.items() if pids.get(key) == case.pid}
            for key, pid in pids.items():
                self._cases.setdefault(key, _WatchedProcess(pid, recorders.get(key, "")))
            due = [] if self._closed else [case for case in self._cases.values() if not case.busy and now >= case.due]
        for case in due:
            self._begin(case)

    def hurry(self, key: Hashable) -> None:
        """Look at this one now and soon again, however often it was seen at work; asked too often, it is only looked at once more."""
        now = self._clock.monotonic()
        with self._lock:
            case = self._cases.get(key)
            if case is None:
                return
            case.due, case.again = 0.0, case.busy
            if now - case.hurried >= AGAIN_LONGEST_S:
                case.pause_s, case.hurried = AGAIN_S, now

    def activity(self, key: Hashable) -> Activity | None:
        """The newest verdict; None while there is none yet, or for one that is not watched."""
        with self._lock:
            case = self._cases.get(key)
            return case.activity if case is not None else None

    def close(self) -> None:
        """Forget everything; looks that are under way end by themselves."""
        with self._lock:
            self._closed = True
            self._cases.clear()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _begin(self, case: _WatchedProcess) -> None:
        case.busy = True
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="eagle-eye-inspector")
        self._threads.submit(self._inspect, case)

    def _inspect(self, case: _WatchedProcess) -> None:
        began = self._clock.monotonic()
        try:
            found = self._verdict(case)
            collective = self._collective(case.recorder) if found is not None and case.recorder else None
        except Exception as error:  # noqa: BLE001 - a process may vanish at any moment; nobody waits for this thread
            log.warning("process %d could not be looked into: %s", case.pid, error)
            found, collective = None, None
        with self._lock:
            again, case.again = case.again, False
            case.busy, case.activity = False, found._replace(began=began, collective=collective) if found is not None else case.activity
            case.rounds = case.rounds + 1 if found is not None and found.kind is ActivityKind.AWAITS_PEERS else 0
            again = again or 0 < case.rounds <= ROUNDS
            case.due = 0.0 if again else self._clock.monotonic() + case.pause_s
            if found is not None and found.kind is ActivityKind.WORKING:
                case.pause_s = min(AGAIN_LONGEST_S, case.pause_s * 2)

    def _verdict(self, case: _WatchedProcess) -> Activity | None:
        """Shortly, whether it still waits for its peers; at length if it does not."""
        if 0 < case.rounds <= ROUNDS:
            found = inspect(case.pid, self._patience_s, self._look_clock, self._look, case.timers, ROUND_LOOKS)
            if found is None or found.kind is ActivityKind.AWAITS_PEERS:
                return found
        return inspect(case.pid, self._patience_s, self._look_clock, self._look, case.timers)


def _tracer(pid: int) -> str:
    """Name and number of the process that holds it; '' if it cannot be told."""
    try:
        fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines())
        tracer = int(fields["TracerPid"])
        return f"{Path(f'/proc/{tracer}/comm').read_text(errors='replace').strip()}, process {tracer}"
    except (OSError, KeyError, ValueError):
        return ""


def _uses_gpu(pid: int) -> bool:
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(entry.path).startswith(GPU_DEVICES):  # noqa: PTH115 - one entry of many
                    return True
    return False


def handles_alarm(pid: int) -> bool:
    """Whether an alarm may interrupt a process: it handles the signal of one. When that comes is not to be seen from outside (man 2 setitimer).

    From /proc/PID/status (man 5 proc_pid_status); False if the process is gone.
    """
    try:
        return caught(Path(f"/proc/{pid}/status").read_text(errors="replace"))
    except OSError:
        return False


def caught(status: str) -> bool:
    """Whether the mask of the signals that are handled has one of `ALARMS`."""
    mask = next((line.partition(":")[2].strip() for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return any(int(mask, 16) >> (number - 1) & 1 for number in ALARMS)

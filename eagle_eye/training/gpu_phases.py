"""`GpuPhases`: for how long the GPU was in each phase of a step, by CUDA events in its stream that are read once they are done.

What a loop marks is when the host handed work to the GPU. The GPU comes to it later, so a second kind of mark goes with the work: an event in the current
stream. Nothing waits for one. A step has the time of all its phases or none: where one event is missing, the time behind it would count for another phase.

What the time between two events holds is the stream's: its kernels, its waits for the host that has not handed it anything yet, and its waits for other
streams, such as NCCL's where a collective's result is waited for. One process uses one GPU and, in one step, one stream.

The thread of the loop alone calls this. All methods may raise what torch raises; `fail` is called then.
"""

import math
import sys
from collections import deque
from typing import Any, NamedTuple

VARIABLE = "EAGLE_EYE_GPU_PHASES"
"""`0` leaves it out."""
EVENTS = 256
"""Most that are made: a GPU that is farther behind is not timed until it has caught up."""
FAULTS = 3
"""After so many in succession it is given up: the GPU is lost, or this torch is another one."""
NO_PHASE = -1


class GpuStep:
    """What is known of one step."""

    __slots__ = ("lag_s", "over", "seconds", "timed")

    def __init__(self, phases: int) -> None:
        self.seconds = [0.0] * phases
        """By phase; whole once the step is over and timed."""
        self.lag_s = 0.0
        """For how long the oldest mark that the GPU had not come to yet was waiting when the host ended the step; 0: the GPU had come to all of them."""
        self.over = False
        """Nothing more will come."""
        self.timed = True
        """Every event is there."""

    def give_up(self) -> None:
        """It cannot be timed."""
        self.over, self.timed = True, False


class _Point(NamedTuple):
    """An event in the stream, and what the stream does behind it."""

    event: Any
    step: GpuStep
    phase: int
    """NO_PHASE: the step is over here."""
    host_ns: int
    """When the host handed it over."""


class _CurrentStream:
    """torch's current stream. Asked for it, torch makes an object and finds the device out, which takes 8 µs beside an H100; its number takes 0.3 µs.

    So an object is kept for as long as the number and the device stay. The numbers are private: where torch has none any more, it is asked each time.
    """

    def __init__(self, torch: Any) -> None:
        self._ask = torch.cuda.current_stream
        private = getattr(torch, "_C", None)
        self._number = getattr(private, "_cuda_getCurrentStream", None)
        self._device = getattr(private, "_cuda_getDevice", None)
        self._known: Any = None
        self._stream: Any = None

    def __call__(self) -> Any:
        if self._number is None or self._device is None:
            return self._ask()
        device = self._device()
        known = device, self._number(device)
        if known != self._known:
            self._stream = self._ask()
            self._known = known
        return self._stream


class GpuPhases:
    """The events of one process, on the GPU that is its current one. `torch`: the script's, with CUDA in use."""

    def __init__(self, torch: Any, phases: int) -> None:
        self._cuda = torch.cuda
        self._current = _CurrentStream(torch)
        self._device = torch.cuda.current_device()
        self._phases = phases
        self._points: deque[_Point] = deque()
        """In the order in which the stream comes to them. The GPU has come to the first, and it may have come to others."""
        self._free: list[Any] = []
        self._made = 0
        self._faults = 0
        self._nobody = GpuStep(phases)
        """Between two steps nothing is timed."""
        self._nobody.give_up()
        self._step = self._nobody
        self._phase = NO_PHASE
        self._stream: Any = None
        self._marks = 0
        self.missed = 0
        """Steps that could not be timed."""
        self.capturing = False
        """At the last call a CUDA graph was being captured: the GPU may not be asked for anything then."""

    def begin(self, phase: int, now_ns: int, marks: int) -> None:
        """A step begins, in that phase; one that was not ended is left. marks: the host's count, here and below."""
        self._step.give_up()
        self._step = GpuStep(self._phases)
        self._stream = self._current()
        if self._stream.device_index != self._device:
            self._miss()
        self._phase, self._marks = NO_PHASE, marks - 1
        self.enter(phase, now_ns, marks)

    def enter(self, phase: int, now_ns: int, marks: int) -> None:
        """The step under way is in that phase from here on. Also reads what has come."""
        if marks - self._marks > 1:  # one was made on the host alone, by a method that the script had taken before the GPU was found
            self._miss()
        self._marks = marks
        self.capturing = self._cuda.is_current_stream_capturing()
        if self.capturing:  # even to ask an event whether it is done would spoil the capture
            self._miss()
            return
        self.read()
        if phase != self._phase and not self._step.over:
            self._phase = phase
            self._record(phase, now_ns)

    def end(self, now_ns: int, marks: int) -> GpuStep:
        """The step under way is over on the host; its times come later."""
        step = self._step
        self.enter(NO_PHASE, now_ns, marks)
        if not step.over:
            step.lag_s = self._lag_s(now_ns)
        self._step = self._nobody
        return step

    def read(self) -> None:
        """Add up what the GPU has come to. Not while a graph is captured."""
        points = self._points
        while len(points) > 1 and points[1].event.query():
            first, second = points[0], points[1]
            if first.phase != NO_PHASE and first.step.timed:
                seconds = first.event.elapsed_time(second.event) / 1e3
                if not 0.0 <= seconds < math.inf:
                    raise ValueError(f"{seconds} s between two CUDA events")
                first.step.seconds[first.phase] += seconds
                self._faults = 0
            if second.phase == NO_PHASE:
                second.step.over = True
            points.popleft()
            self._free.append(first.event)

    def fail(self) -> bool:
        """torch has raised: what is under way is not timed. True: it is of no use to go on."""
        self._miss()
        for point in self._points:
            if not point.step.over:
                self.missed += 1
            point.step.give_up()
        self._points.clear()
        self._free.clear()
        self._made = 0
        self._faults += 1
        return self._faults >= FAULTS

    def _record(self, phase: int, now_ns: int) -> None:
        if self._current() != self._stream:  # the time between two streams is nobody's
            self._miss()
            return
        event = self._free.pop() if self._free else self._new()
        if event is None:
            self._miss()
            return
        event.record(self._stream)
        self._points.append(_Point(event, self._step, phase, now_ns))

    def _new(self) -> Any:
        if self._made >= EVENTS:
            return None
        self._made += 1
        return self._cuda.Event(enable_timing=True)

    def _miss(self) -> None:
        """The step under way cannot be timed."""
        self.missed += not self._step.over
        self._step.give_up()

    def _lag_s(self, now_ns: int) -> float:
        """`read` has just found that the GPU has not come to the second point."""
        return (now_ns - self._points[1].host_ns) / 1e9 if len(self._points) > 1 else 0.0


class GpuSearch:
    """Asked at each step whether the script uses a GPU by now. torch is not imported for it, and CUDA not initialised."""

    def __init__(self) -> None:
        self.over = False
        """There can be none: a torch for the CPU."""
        self._looks = 0
        self._due = 1

    def look(self, phases: int) -> GpuPhases | None:
        """None: not yet. May raise what torch raises.

        An event on a GPU that the process does not use would take hundreds of MB of it for a context: so there must be a tensor of the script on the current one.
        As that takes 0.1 ms to find out, it is asked at the 1st, 2nd, 4th, 8th, ... step.
        """
        torch = sys.modules.get("torch")
        version = getattr(torch, "version", None)  # None while torch is being imported
        if torch is None or version is None:
            return None
        if not getattr(version, "cuda", None) and not getattr(version, "hip", None):
            self.over = True
            return None
        if not torch.cuda.is_initialized():
            return None
        self._looks += 1
        if self._looks < self._due:
            return None
        self._due *= 2
        return GpuPhases(torch, phases) if torch.cuda.memory_allocated() > 0 else None

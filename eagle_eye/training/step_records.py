"""`StepRecords`: what a step leaves in the ring, held back until what is still on a device has come; never waited for.

That are tensors that were logged (`DeviceScalars`) and the times of the phases on a GPU (gpu_phases.py). Where a step has neither, its record is stored at once.
"""

import sys
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from . import messages
from .gpu_phases import GpuPhases, GpuSearch, GpuStep
from .ring_buffer import RingWriter

HELD = 8
"""Records that are held back at most: the steps that a host may be ahead of its device, and still have all its values."""
LAG = "gpu_lag_s"
NAMES = tuple(f"gpu_{phase}_s" for phase in messages.PHASES)


class _EndedStep(NamedTuple):
    """A step that is over on the host."""

    step: int
    end_ns: int
    values: dict[int, float]
    gpu: GpuStep | None


class StepRecords:
    """Of one ring. `fault` is told what torch raises, and may raise it again; the other errors of these methods are the caller's to swallow."""

    def __init__(self, ring: RingWriter, fault: Callable[[Exception], None], stored: Callable[[int, Mapping[int, float]], None] = lambda *_: None, *, time_gpu: bool) -> None:
        """stored: called with the step and the values of each record that is stored."""
        self._ring = ring
        self._fault, self._stored = fault, stored
        self._scalars = DeviceScalars()
        self._held: deque[_EndedStep] = deque()
        self._search: GpuSearch | None = GpuSearch() if time_gpu else None
        self._gpu: GpuPhases | None = None

    @property
    def on_gpu(self) -> bool:
        """The phases are timed on a GPU."""
        return self._gpu is not None

    @property
    def missed(self) -> int:
        """Steps that could not be timed on the GPU."""
        return 0 if self._gpu is None else self._gpu.missed

    def keep(self, step: int, column: int, tensor: Any) -> None:
        """A value of the step under way that is on a device."""
        self._scalars.keep(step, column, tensor)

    def begin(self, phase: int, now_ns: int, marks: int) -> bool:
        """A step begins. False: no GPU will be timed, so that this need not be called again. marks: the host's count of them, here and below."""
        if self._gpu is None and self._search is not None:
            self._look(self._search)
        gpu = self._gpu
        if gpu is not None:
            self._guarded(gpu, lambda: gpu.begin(phase, now_ns, marks))
            self.store_ready()
        return self._gpu is not None or self._search is not None

    def enter(self, phase: int, now_ns: int, marks: int) -> None:
        """The step is in that phase from here on."""
        gpu = self._gpu
        if gpu is not None:
            self._guarded(gpu, lambda: gpu.enter(phase, now_ns, marks))
            self.store_ready()

    def end(self, step: int, now_ns: int, marks: int, values: dict[int, float]) -> None:
        """A step is over on the host."""
        gpu = self._gpu
        if gpu is None and not self._held and not self._scalars:
            self._append(step, now_ns, values)
            return
        timed = None if gpu is None else self._guarded(gpu, lambda: gpu.end(now_ns, marks))
        self._held.append(_EndedStep(step, now_ns, values, timed))
        self.store_ready()

    def store_ready(self) -> None:
        """Store the records for which all has come, and the oldest of too many with what has come."""
        if self._gpu is not None and self._gpu.capturing:  # no event may be asked now
            return
        while self._held and (len(self._held) > HELD or self._ready(self._held[0])):
            self._store(self._held.popleft())

    def store_all(self) -> None:
        """Store what is held back, with what has come by now."""
        gpu = self._gpu
        if gpu is not None and self._held and not gpu.capturing:
            self._guarded(gpu, gpu.read)
        while self._held:
            self._store(self._held.popleft())

    def _ready(self, held: _EndedStep) -> bool:
        return (held.gpu is None or held.gpu.over) and self._scalars.ready(held.step)

    def _store(self, held: _EndedStep) -> None:
        values = held.values | self._scalars.take(held.step)
        if held.gpu is not None and held.gpu.over and held.gpu.timed:
            times = {name: seconds for name, seconds in zip(NAMES, held.gpu.seconds, strict=True) if seconds}
            for name, seconds in (times | {LAG: held.gpu.lag_s}).items():
                column = self._ring.column(name)
                if column >= 0:
                    values.setdefault(column, seconds)  # a script that logs the same name knows better
        self._append(held.step, held.end_ns, values)

    def _append(self, step: int, end_ns: int, values: dict[int, float]) -> None:
        self._ring.append(step, end_ns, values)
        self._stored(step, values)

    def _look(self, search: GpuSearch) -> None:
        try:
            self._gpu = search.look(len(NAMES))
        except Exception as error:  # noqa: BLE001 - another torch, or a device that is lost: the host's times must do
            search.over = True
            self._fault(error)
        if search.over or self._gpu is not None:
            self._search = None

    def _guarded(self, gpu: GpuPhases, act: Callable[[], Any]) -> Any:
        """What `act` returns; None if torch raises. After a few times in succession the GPU is asked no more."""
        try:
            return act()
        except Exception as error:  # noqa: BLE001 - of torch, in whatever state the device is
            if gpu.fail():
                self._gpu = None
            self._fault(error)
            return None


class DeviceScalars:
    """Device scalars that were logged, each with the event after which its copy in pinned memory is whole."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[int, int], tuple[Any, Any]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def keep(self, step: int, column: int, tensor: Any) -> None:
        """Begin to copy a tensor of one element to the host; returns at once.

        `.item()` would wait for everything that the device still has to do, hence the copy and the event.
        """
        torch = sys.modules["torch"]
        host = torch.empty((), dtype=tensor.dtype, pin_memory=True)
        host.copy_(tensor.detach().reshape(()), non_blocking=True)
        event = torch.Event(tensor.device)
        event.record(torch.accelerator.current_stream(tensor.device.index))
        self._waiting[step, column] = (host, event)

    def ready(self, step: int) -> bool:
        """Whether all values of a step have been copied."""
        return all(event.query() for (number, _), (_, event) in self._waiting.items() if number == step)

    def take(self, step: int) -> dict[int, float]:
        """Column → value of the values of a step that have been copied; values that have not, and those of older steps, are dropped."""
        values = {}
        for key in [key for key in self._waiting if key[0] <= step]:
            host, event = self._waiting.pop(key)
            if key[0] == step and event.query():
                values[key[1]] = float(host)
        return values

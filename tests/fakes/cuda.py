"""`torch.cuda` of a GPU that was never there: streams that work through what they are given, by the host's clock, and events in them."""

import math
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

MS = 1_000_000


class Clock:
    """Nanoseconds that move on request."""

    def __init__(self) -> None:
        self.now = 10**9

    def __call__(self) -> int:
        return self.now

    def pass_ms(self, milliseconds: float) -> None:
        self.now += round(milliseconds * MS)


@dataclass(eq=False)
class Stream:
    """Work that is done one after another."""

    gpu: "Gpu"
    device_index: int = 0
    idle_at: float = 0.0

    def work(self, milliseconds: float) -> None:
        """The host hands a kernel over, which takes so long."""
        self.idle_at = max(self.gpu.clock.now, self.idle_at) + milliseconds * MS


@dataclass(frozen=True)
class StreamHandle:
    """What torch gives for a stream: another object each time, which is equal to the others."""

    stream: Stream

    @property
    def device_index(self) -> int:
        return self.stream.device_index


@dataclass
class Gpu:
    """What the fake does, and what was done to it."""

    clock: Clock
    initialised: bool = True
    memory: int = 1
    capturing: bool = False
    broken: bool = False
    """Every call of CUDA raises, as after the loss of the device."""
    bad_times: bool = False
    """elapsed_time raises."""
    calls: int = 0
    asked: int = 0
    """For the object of the current stream."""
    events: int = 0
    forbidden: list[str] = field(default_factory=list)
    """What may not be done while a graph is captured, or never."""

    def __post_init__(self) -> None:
        self.stream = Stream(self)

    def work(self, milliseconds: float) -> None:
        """In the current stream."""
        self.stream.work(milliseconds)

    def hang(self) -> None:
        """What was handed over is never done."""
        self.stream.idle_at = math.inf

    def _stream_number(self, device: int) -> tuple[int, int]:
        self.called("_cuda_getCurrentStream", in_capture=True)
        return id(self.stream), device

    def called(self, name: str, *, in_capture: bool = False) -> None:
        self.calls += 1
        if not self.initialised or (self.capturing and not in_capture):
            self.forbidden.append(name)
        if self.broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def torch(self, cuda_version: str | None = "13.0", *, numbered: bool = True) -> Any:
        """The module as far as it is used. `numbered`: it has the private functions that tell a stream's number."""
        private = {"_cuda_getDevice": lambda: self.stream.device_index, "_cuda_getCurrentStream": self._stream_number} if numbered else {}
        return SimpleNamespace(
            _C=SimpleNamespace(**private),
            version=SimpleNamespace(cuda=cuda_version, hip=None), cuda=_Cuda(self), Event=lambda _: _Event(self),
            accelerator=SimpleNamespace(current_stream=lambda _: StreamHandle(self.stream)), empty=lambda _, **__: Scalar(0.0),
        )  # fmt: skip


@dataclass
class Scalar:
    """A tensor of one element on the GPU, or its copy in pinned memory."""

    value: float
    dtype: str = "float32"
    device: Any = field(default_factory=lambda: SimpleNamespace(type="cuda", index=0))

    def detach(self) -> "Scalar":
        return self

    def reshape(self, _: object) -> "Scalar":
        return self

    def copy_(self, other: "Scalar", *, non_blocking: bool) -> None:
        assert non_blocking
        self.value = other.value

    def item(self) -> float:
        raise AssertionError("that waits for the device")

    def __float__(self) -> float:
        return self.value


class _Cuda:
    """torch.cuda."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu

    def Event(self, *, enable_timing: bool) -> "_Event":  # noqa: N802 - torch's name
        assert enable_timing
        self._gpu.events += 1
        return _Event(self._gpu)

    def current_stream(self) -> StreamHandle:
        self._gpu.called("current_stream", in_capture=True)
        self._gpu.asked += 1
        return StreamHandle(self._gpu.stream)

    def is_current_stream_capturing(self) -> bool:
        self._gpu.called("is_current_stream_capturing", in_capture=True)
        return self._gpu.capturing

    def memory_allocated(self) -> int:
        self._gpu.called("memory_allocated")
        return self._gpu.memory

    def current_device(self) -> int:
        self._gpu.called("current_device")
        return 0

    def is_initialized(self) -> bool:
        return self._gpu.initialised

    def synchronize(self) -> None:
        raise AssertionError("that waits for the device")


class _Event:
    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self.at = math.nan

    def record(self, handle: StreamHandle) -> None:
        self._gpu.called("record")
        assert handle.device_index == 0, "an event of another device"
        self.at = max(self._gpu.clock.now, handle.stream.idle_at)

    def query(self) -> bool:
        self._gpu.called("query")
        return self._gpu.clock.now >= self.at

    def elapsed_time(self, end: "_Event") -> float:
        self._gpu.called("elapsed_time")
        if self._gpu.bad_times or not (self.query() and end.query()):
            raise RuntimeError("Both events must be completed before calculating elapsed time")
        return (end.at - self.at) / MS

    def synchronize(self) -> None:
        raise AssertionError("that waits for the device")

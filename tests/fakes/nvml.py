"""A stand-in for the module `pynvml`: a node with GPUs that break when told to.

It knows the functions that `collectors.gpu` calls, with the arguments, units and errors of nvidia-ml-py. Where
that package is installed, the constants and the exception classes are its own.

>>> fake = FakeNvml(gpus=1)
>>> fake.nvmlInit()
>>> fake.nvmlDeviceGetPowerUsage(fake.nvmlDeviceGetHandleByIndex(0))
300000
"""

import threading
from collections import Counter, deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

CONSTANTS = {
    "NVML_TEMPERATURE_GPU": 0,
    "NVML_CLOCK_SM": 1,
    "NVML_CLOCK_MEM": 2,
    "NVML_VOLATILE_ECC": 0,
    "NVML_MEMORY_ERROR_TYPE_CORRECTED": 0,
    "NVML_MEMORY_ERROR_TYPE_UNCORRECTED": 1,
    "nvmlEventTypeXidCriticalError": 8,
    "NVML_ERROR_UNINITIALIZED": 1,
    "NVML_ERROR_INVALID_ARGUMENT": 2,
    "NVML_ERROR_NOT_SUPPORTED": 3,
    "NVML_ERROR_NO_PERMISSION": 4,
    "NVML_ERROR_DRIVER_NOT_LOADED": 9,
    "NVML_ERROR_TIMEOUT": 10,
    "NVML_ERROR_LIBRARY_NOT_FOUND": 12,
    "NVML_ERROR_FUNCTION_NOT_FOUND": 13,
    "NVML_ERROR_GPU_IS_LOST": 15,
    "NVML_ERROR_RESET_REQUIRED": 16,
    "NVML_ERROR_UNKNOWN": 999,
}
"""As in nvml.h; used where nvidia-ml-py is not installed."""


class _Error(Exception):
    """NVMLError where nvidia-ml-py is not installed."""

    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


@dataclass
class FakeGpu:
    """One GPU, in NVML's own units."""

    uuid: str
    utilisation: int = 97
    memory_used: int = 60 << 30
    memory_total: int = 80 << 30
    power_milliwatts: int = 300_000
    temperature: int = 55
    sm_clock: int = 1980
    memory_clock: int = 2619
    throttle_reasons: int = 0
    ecc: dict[int, int] = field(default_factory=lambda: {0: 0, 1: 0})
    """Kind of error (corrected, uncorrected) → count since the driver was loaded."""
    pcie_replays: int = 0
    lost: bool = False


class FakeNvml:
    """`pynvml` at its border. Knobs: `missing`, `hang` and `release`, `gpus[i].lost`, `xids`, `absent`."""

    def __init__(self, gpus: int = 2) -> None:
        try:
            import pynvml
        except ImportError:
            vocabulary: Any = SimpleNamespace(**CONSTANTS, NVMLError=_Error)
        else:
            vocabulary = pynvml
        for name in (*CONSTANTS, "NVMLError"):
            setattr(self, name, getattr(vocabulary, name))
        self.NVMLError: type[Exception] = vocabulary.NVMLError
        self.gpus = [FakeGpu(uuid=f"GPU-{index:08x}") for index in range(gpus)]
        self.missing: set[str] = set()
        """Functions that answer NVML_ERROR_NOT_SUPPORTED."""
        self.absent = ""
        """Name of the error with which nvmlInit fails, e.g. NVML_ERROR_LIBRARY_NOT_FOUND."""
        self.xids: deque[tuple[int, int]] = deque()
        """(index of the GPU, code) of the events to come."""
        self.calls: Counter[str] = Counter()
        self._initialised = False
        self._registered: set[int] = set()
        self._hanging = threading.Event()
        self._open = threading.Event()
        self._open.set()

    def hang(self) -> None:
        """Let every further call hang until `release`."""
        self._hanging.clear()
        self._open.clear()

    def release(self) -> None:
        """Let the calls that hang go on."""
        self._open.set()

    def wait_until_hanging(self, timeout: float) -> bool:
        """Block until a call hangs."""
        return self._hanging.wait(timeout)

    # --- the functions of pynvml

    def nvmlInit(self) -> None:  # noqa: N802
        self._enter("nvmlInit", initialised=True)
        if self.absent:
            raise self._error(self.absent)
        self._initialised = True

    def nvmlShutdown(self) -> None:  # noqa: N802
        self._enter("nvmlShutdown")
        self._initialised = False

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        self._enter("nvmlDeviceGetCount")
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        self._gpu("nvmlDeviceGetHandleByIndex", index)
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802
        return self._gpu("nvmlDeviceGetUUID", handle).uuid

    def nvmlDeviceGetPciInfo(self, handle: int) -> SimpleNamespace:  # noqa: N802
        self._gpu("nvmlDeviceGetPciInfo", handle)
        return SimpleNamespace(busId=f"00000000:{0x17 + handle:02X}:00.0")

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(gpu=self._gpu("nvmlDeviceGetUtilizationRates", handle).utilisation, memory=40)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:  # noqa: N802
        gpu = self._gpu("nvmlDeviceGetMemoryInfo", handle)
        return SimpleNamespace(used=gpu.memory_used, total=gpu.memory_total, free=gpu.memory_total - gpu.memory_used)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:  # noqa: N802
        return self._gpu("nvmlDeviceGetPowerUsage", handle).power_milliwatts

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:  # noqa: N802
        self._known(sensor, {0})
        return self._gpu("nvmlDeviceGetTemperature", handle).temperature

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:  # noqa: N802
        self._known(kind, {1, 2})
        gpu = self._gpu("nvmlDeviceGetClockInfo", handle)
        return gpu.sm_clock if kind == 1 else gpu.memory_clock

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: int) -> int:  # noqa: N802
        return self._gpu("nvmlDeviceGetCurrentClocksEventReasons", handle).throttle_reasons

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:  # noqa: N802
        return self._gpu("nvmlDeviceGetCurrentClocksThrottleReasons", handle).throttle_reasons

    def nvmlDeviceGetTotalEccErrors(self, handle: int, kind: int, counter: int) -> int:  # noqa: N802
        self._known(counter, {0})
        return self._gpu("nvmlDeviceGetTotalEccErrors", handle).ecc[kind]

    def nvmlDeviceGetPcieReplayCounter(self, handle: int) -> int:  # noqa: N802
        return self._gpu("nvmlDeviceGetPcieReplayCounter", handle).pcie_replays

    def nvmlEventSetCreate(self) -> object:  # noqa: N802
        self._enter("nvmlEventSetCreate")
        self._registered = set()
        return object()

    def nvmlEventSetFree(self, events: object) -> None:  # noqa: N802
        self._enter("nvmlEventSetFree")
        self._registered = set()

    def nvmlDeviceRegisterEvents(self, handle: int, kinds: int, events: object) -> None:  # noqa: N802
        self._gpu("nvmlDeviceRegisterEvents", handle)
        self._registered.add(handle)

    def nvmlEventSetWait_v2(self, events: object, timeout_ms: int) -> SimpleNamespace:  # noqa: N802
        """The next event; GPU_IS_LOST as long as a lost GPU is in the set, TIMEOUT when there is none."""
        self._enter("nvmlEventSetWait_v2")
        if any(self.gpus[index].lost for index in self._registered):
            raise self._error("NVML_ERROR_GPU_IS_LOST")
        if not self.xids or self.xids[0][0] not in self._registered:
            raise self._error("NVML_ERROR_TIMEOUT")
        index, code = self.xids.popleft()
        return SimpleNamespace(device=index, eventType=CONSTANTS["nvmlEventTypeXidCriticalError"], eventData=code)

    # --- how they fail

    def _enter(self, name: str, *, initialised: bool = False) -> None:
        self.calls[name] += 1
        if not self._open.is_set():
            self._hanging.set()
            self._open.wait()
        if not self._initialised and not initialised:
            raise self._error("NVML_ERROR_UNINITIALIZED")
        if name in self.missing:
            raise self._error("NVML_ERROR_NOT_SUPPORTED")

    def _gpu(self, name: str, handle: int) -> FakeGpu:
        self._enter(name)
        gpu = self.gpus[handle]
        if gpu.lost:
            raise self._error("NVML_ERROR_GPU_IS_LOST")
        return gpu

    def _known(self, value: int, known: set[int]) -> None:
        if value not in known:
            raise self._error("NVML_ERROR_INVALID_ARGUMENT")

    def _error(self, name: str) -> Exception:
        return self.NVMLError(getattr(self, name))

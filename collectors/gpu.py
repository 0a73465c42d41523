"""GPUs of this node, read through NVML (`pynvml` of the package nvidia-ml-py).

NVML may hang with a broken driver: the agent runs each collector in a thread of its own and detects that. A field that
a GPU lacks is NaN, with one log line; a GPU that fell off the bus gives one `gpu.lost` event and NaN from then on;
without library, driver or GPU the collector sets `unavailable` to the reason, returns nothing and tries again after
`retry_s`.
"""

import contextlib
import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from eagle_eye.clock import Clock, SystemClock
from eagle_eye.gpu_devices import pci_address, text_of
from eagle_eye.ranges import Seconds
from eagle_eye.types import Event, Kind, Reading

from .agent.unsigned_event import unsigned_event

log = logging.getLogger(__name__)

Read = Callable[[Any, Any], tuple[float, ...]]
"""(nvml, device handle) → one number for each name of its field."""


def _memory(nvml: Any, handle: Any) -> tuple[float, ...]:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return memory.used, 100.0 * memory.used / memory.total if memory.total else math.nan


def _throttle(nvml: Any, handle: Any) -> tuple[float, ...]:
    newer = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)  # older packages know the old name alone
    if newer is not None:
        try:
            return (newer(handle),)
        except nvml.NVMLError as error:
            if error.value != nvml.NVML_ERROR_FUNCTION_NOT_FOUND:  # an older driver under a newer package
                raise
    return (nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),)


def _ecc(kind: str) -> Read:
    def read(nvml: Any, handle: Any) -> tuple[float, ...]:
        return (nvml.nvmlDeviceGetTotalEccErrors(handle, getattr(nvml, kind), nvml.NVML_VOLATILE_ECC),)

    return read


GAUGES: dict[tuple[str, ...], Read] = {
    ("utilisation_percent",): lambda nvml, handle: (nvml.nvmlDeviceGetUtilizationRates(handle).gpu,),
    ("memory_used_bytes", "memory_percent"): _memory,
    ("power_watts",): lambda nvml, handle: (nvml.nvmlDeviceGetPowerUsage(handle) / 1000,),
    ("temperature_celsius",): lambda nvml, handle: (nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),),
    ("sm_clock_mhz",): lambda nvml, handle: (nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),),
    ("memory_clock_mhz",): lambda nvml, handle: (nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),),
    ("throttle_reasons",): _throttle,
}
"""Read as they are. `throttle_reasons` is NVML's bit mask as a float: exact, its bits end below 2^24."""

COUNTERS: dict[str, Read] = {
    "ecc_corrected_per_s": _ecc("NVML_MEMORY_ERROR_TYPE_CORRECTED"),
    "ecc_uncorrected_per_s": _ecc("NVML_MEMORY_ERROR_TYPE_UNCORRECTED"),
    "pcie_replays_per_s": lambda nvml, handle: (nvml.nvmlDeviceGetPcieReplayCounter(handle),),
}
"""Volatile counters of the driver, returned as rates."""

NAMES = (*(name for names in GAUGES for name in names), *COUNTERS)
ABSENT = ("NVML_ERROR_LIBRARY_NOT_FOUND", "NVML_ERROR_DRIVER_NOT_LOADED", "NVML_ERROR_NO_PERMISSION")
GONE = ("NVML_ERROR_UNINITIALIZED", "NVML_ERROR_DRIVER_NOT_LOADED")
LOST = ("NVML_ERROR_GPU_IS_LOST", "NVML_ERROR_RESET_REQUIRED")
MOST_XIDS = 64
"""Xid events taken in one run: a broken GPU can produce very many."""


@dataclass
class _Device:
    name: str
    index: int
    handle: Any
    pci: str = ""
    lost: bool = False
    counted: dict[str, float] = field(default_factory=dict)
    counted_at: float = math.nan


@dataclass
class GpuCollector:
    """Utilisation, memory, power, temperature, clocks, throttling, ECC and Xid events of each GPU."""

    retry_s: Seconds = 60.0
    """Seconds between two attempts to find a library, driver or GPU that was missing."""
    nvml: Any = None
    """The module `pynvml`, or a stand-in for it; None imports it when it is first needed."""
    clock: Clock = field(default_factory=SystemClock)

    interval_s: ClassVar[float] = 1.0
    timeout_s: ClassVar[float] = 3.0

    def __post_init__(self) -> None:
        self.unavailable = ""
        self._devices: list[_Device] = []
        self._events: Any = None
        self._missing: set[tuple[str, str]] = set()
        self._retry_at = -math.inf

    def collect(self) -> list[Reading | Event]:
        if not self._devices and not self._begin():
            return []
        now = self.clock.now()
        found: list[Reading | Event] = list(self._xids(now))
        matrix = np.full((len(self._devices), len(NAMES)), np.nan, np.float32)
        for row, device in enumerate(self._devices):
            if device.lost:
                continue
            try:
                matrix[row] = self._row(device)
            except self.nvml.NVMLError as error:
                if not self._is(error, LOST):
                    self._devices = []  # the driver is gone: initialise again; the agent reports the error
                    raise
                device.lost = True
                message = f"GPU {device.index} ({device.name}) is gone: {error}"
                found.append(_event("gpu.lost", device, now, message, reason=error))
        names = tuple(device.name for device in self._devices)
        found.append(Reading(source="gpu", kind=Kind.GPU, entities=names, names=NAMES, matrix=matrix, time=now))
        return found

    # --- initialisation

    def _begin(self) -> bool:
        """Find library, driver and GPUs; False if there are none, with the reason in `unavailable`."""
        if self.clock.monotonic() < self._retry_at:
            return False
        self._retry_at = self.clock.monotonic() + self.retry_s
        reason = self._initialise()
        if reason and reason != self.unavailable:
            log.info("no GPU is watched: %s; looking again every %.0f s", reason, self.retry_s)
        self.unavailable = reason
        return not reason

    def _initialise(self) -> str:
        if self.nvml is None:
            try:
                import pynvml
            except ImportError:
                return "the module pynvml is missing (pip install 'eagle-eye[gpu]')"
            self.nvml = pynvml
        try:
            self.nvml.nvmlInit()
            self._devices = [self._device(index) for index in range(self.nvml.nvmlDeviceGetCount())]
        except self.nvml.NVMLError as error:
            if self._is(error, ABSENT):
                return f"NVML says: {error}"
            raise
        if not self._devices:
            return "this node has no GPU"
        self._subscribe()
        return ""

    def _device(self, index: int) -> _Device:
        try:
            handle = self.nvml.nvmlDeviceGetHandleByIndex(index)
            return _Device(text_of(self.nvml.nvmlDeviceGetUUID(handle)), index, handle, pci_address(self.nvml, handle))
        except self.nvml.NVMLError as error:
            if self._is(error, LOST):
                return _Device(f"gpu-{index}", index, None)  # its UUID can no longer be asked for
            raise

    # --- readings

    def _row(self, device: _Device) -> list[float]:
        row = [value for names, read in GAUGES.items() for value in self._read(device, names, read)]
        now = self.clock.monotonic()
        elapsed, device.counted_at = now - device.counted_at, now
        for name, read in COUNTERS.items():
            (count,) = self._read(device, (name,), read)
            change = count - device.counted.get(name, math.nan)
            device.counted[name] = count
            row.append(change / elapsed if change >= 0 and elapsed > 0 else math.nan)
        return row

    def _read(self, device: _Device, names: tuple[str, ...], read: Read) -> tuple[float, ...]:
        """One field; NaN where this GPU has none. Raises NVMLError if the whole GPU, or the driver, is gone."""
        if device.handle is None:
            raise self.nvml.NVMLError(self.nvml.NVML_ERROR_GPU_IS_LOST)
        try:
            return read(self.nvml, device.handle)
        except self.nvml.NVMLError as error:
            if self._is(error, LOST + GONE):
                raise
            if (device.name, names[0]) not in self._missing:
                self._missing.add((device.name, names[0]))
                log.info("gpu %s has no %s: %s", device.name, " and ".join(names), error)
            return (math.nan,) * len(names)

    # --- Xid events

    def _subscribe(self) -> None:
        """Register for Xid events of every working GPU; one that has none is logged once."""
        nvml = self.nvml
        try:
            self._events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError as error:
            self._events = None
            log.info("no Xid events: %s", error)
            return
        for device in self._devices:
            if device.lost or device.handle is None:
                continue
            try:
                nvml.nvmlDeviceGetUUID(device.handle)  # a lost GPU must not get into the set
                nvml.nvmlDeviceRegisterEvents(device.handle, nvml.nvmlEventTypeXidCriticalError, self._events)
            except nvml.NVMLError as error:
                log.info("gpu %s gives no Xid events: %s", device.name, error)

    def _xids(self, now: float) -> Iterator[Event]:
        nvml = self.nvml
        for _ in range(MOST_XIDS if self._events is not None else 0):
            try:
                data = nvml.nvmlEventSetWait_v2(self._events, 0)
            except nvml.NVMLError as error:
                if error.value != nvml.NVML_ERROR_TIMEOUT:
                    self._resubscribe(error)
                return
            if data.eventType & nvml.nvmlEventTypeXidCriticalError:
                device = self._whose(data.device)
                code = int(data.eventData)
                yield _event("gpu.xid", device, now, f"Xid {code} on GPU {device.index} ({device.name})", code=code)

    def _resubscribe(self, error: Exception) -> None:
        """An event set with a lost GPU only returns errors: create one with the remaining GPUs."""
        log.log(logging.DEBUG if self._is(error, LOST) else logging.WARNING, "Xid events cannot be read: %s", error)
        with contextlib.suppress(self.nvml.NVMLError):  # nothing to be done about a set that will not go
            self.nvml.nvmlEventSetFree(self._events)
        self._events = None
        if self._is(error, LOST):
            self._subscribe()

    def _whose(self, handle: Any) -> _Device:
        try:
            name = text_of(self.nvml.nvmlDeviceGetUUID(handle))
        except self.nvml.NVMLError:
            name = "unknown"
        return next((device for device in self._devices if device.name == name), _Device(name, -1, handle))

    def _is(self, error: Any, codes: tuple[str, ...]) -> bool:
        return error.value in {getattr(self.nvml, code) for code in codes}


def _event(name: str, device: _Device, now: float, message: str, **attributes: object) -> Event:
    attributes |= {"index": device.index, "pci": device.pci}
    return unsigned_event(name, Kind.GPU, device.name, now, message, "", **attributes)

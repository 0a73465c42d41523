"""A stand-in for NVIDIA's C library below the real nvidia-ml-py: what that package hands to C, with C's names and structures.

`use(monkeypatch, gpus)` puts it in the place of libnvidia-ml.so.1, so that a test goes through the package's own code.
"""

import ctypes
from typing import Any

import pytest

from .nvml_gpu import NOT_SUPPORTED, FakeGpu, FakeMigInstance

SUCCESS, INVALID_ARGUMENT, NOT_FOUND, INSUFFICIENT_SIZE, TIMEOUT, VERSION_MISMATCH = 0, 2, 6, 7, 10, 25
XID = 8
"""nvmlEventTypeXidCriticalError."""
GPU_IS_LOST = 15
INSTANCE = 100
"""Handles of MIG instances are above those of GPUs."""
WITHOUT_HANDLE = ("nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2")
"""Functions of devices that get no handle of one."""


def use(monkeypatch: pytest.MonkeyPatch, gpus: list[FakeGpu]) -> Any:
    """The module `pynvml`, over a library with these GPUs. Skips where the package is not installed."""
    pynvml = pytest.importorskip("pynvml")
    monkeypatch.setattr(pynvml, "nvmlLib", NvmlLibrary(gpus))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    return pynvml


def _number(handle: Any) -> int:
    return int(ctypes.cast(handle, ctypes.c_void_p).value or 0) - 1


def _point(reference: Any, number: int) -> int:
    """Write a handle to where the caller wants it."""
    ctypes.c_void_p.from_buffer(reference._obj).value = number + 1
    return SUCCESS


def _set(reference: Any, value: float) -> int:
    reference._obj.value = value
    return SUCCESS


class NvmlLibrary:
    """libnvidia-ml.so.1."""

    def __init__(self, gpus: list[FakeGpu]) -> None:
        self.gpus = gpus
        self.xids: list[tuple[int, int]] = []

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if not name.startswith("nvmlDevice") or name in WITHOUT_HANDLE:
            return found

        def of_device(handle: Any, *arguments: Any) -> int:
            """What NVML answers of a GPU that has fallen off the bus, whatever it is asked; of an instance that was removed."""
            gpu, instance = self.gpus[_number(handle) % INSTANCE], _number(handle) // INSTANCE
            if gpu.lost or instance > len(gpu.instances):
                return GPU_IS_LOST if gpu.lost else NOT_FOUND
            return int(found(handle, *arguments))

        return of_device

    def nvmlInitWithFlags(self, _: int) -> int:  # noqa: N802
        return SUCCESS

    def nvmlShutdown(self) -> int:  # noqa: N802
        return SUCCESS

    def nvmlSystemGetDriverVersion(self, text: Any, _: Any) -> int:  # noqa: N802
        text.value = b"590.44.01"
        return SUCCESS

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802
        return _set(count, len(self.gpus))

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:  # noqa: N802
        return _point(handle, index.value)

    def nvmlDeviceGetUUID(self, handle: Any, text: Any, _: Any) -> int:  # noqa: N802
        text.value = self._of(handle).uuid.encode()
        return SUCCESS

    def nvmlDeviceGetPciInfo_v3(self, handle: Any, info: Any) -> int:  # noqa: N802
        info._obj.busId = f"00000000:{0x17 + _number(handle):02X}:00.0".encode()
        return SUCCESS

    def nvmlDeviceGetFieldValues(self, handle: Any, count: Any, values: Any) -> int:  # noqa: N802
        for value in values._obj[: count.value]:
            value.nvmlReturn, told = self.gpus[_number(handle)].value_of(value.fieldId, value.scopeId)
            value.valueType, value.value.ullVal = 3, told
        return SUCCESS

    def nvmlDeviceGetUtilizationRates(self, handle: Any, rates: Any) -> int:  # noqa: N802
        gpu = self.gpus[_number(handle)]
        rates._obj.gpu, rates._obj.memory = gpu.utilisation, 40
        return NOT_SUPPORTED if gpu.mig else SUCCESS

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:  # noqa: N802
        of = self._of(handle)
        memory._obj.used, memory._obj.total = of.memory_used, of.memory_total
        return SUCCESS

    def nvmlDeviceGetTemperature(self, handle: Any, _: Any, temperature: Any) -> int:  # noqa: N802
        return _set(temperature, self.gpus[_number(handle)].temperature)

    def nvmlDeviceGetClockInfo(self, handle: Any, kind: Any, clock: Any) -> int:  # noqa: N802
        gpu = self.gpus[_number(handle)]
        return _set(clock, gpu.sm_clock if kind.value == 1 else gpu.memory_clock)

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: Any, reasons: Any) -> int:  # noqa: N802
        return _set(reasons, self.gpus[_number(handle)].throttle_reasons)

    def nvmlDeviceGetCurrPcieLinkGeneration(self, handle: Any, generation: Any) -> int:  # noqa: N802
        return _set(generation, self.gpus[_number(handle)].pcie_generation)

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: Any, width: Any) -> int:  # noqa: N802
        return _set(width, self.gpus[_number(handle)].pcie_width)

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Any, count: Any, processes: Any) -> int:  # noqa: N802
        running, room = self._of(handle).processes, count._obj.value
        _set(count, running)
        return INSUFFICIENT_SIZE if running > room or processes is None else SUCCESS

    def nvmlDeviceGetNvLinkRemotePciInfo_v2(self, _: Any, link: int, info: Any) -> int:  # noqa: N802
        info._obj.busId = f"00000000:{0xC0 + link % 4:02X}:00.0".encode()
        return SUCCESS

    def nvmlDeviceGetGpuFabricInfoV(self, handle: Any, info: Any) -> int:  # noqa: N802
        fabric = self.gpus[_number(handle)].fabric
        newest = hasattr(info._obj, "healthSummary")
        if newest and "healthSummary" not in fabric:
            return VERSION_MISMATCH
        info._obj.state, info._obj.status, info._obj.healthMask = fabric["state"], fabric["status"], fabric["healthMask"]
        if newest:
            info._obj.healthSummary = fabric["healthSummary"]
        return SUCCESS

    def nvmlDeviceGetMigMode(self, handle: Any, current: Any, pending: Any) -> int:  # noqa: N802
        mode = int(bool(self.gpus[_number(handle)].mig))
        return _set(current, mode) or _set(pending, mode)

    def nvmlDeviceGetMaxMigDeviceCount(self, _: Any, count: Any) -> int:  # noqa: N802
        return _set(count, 7)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, index: Any, instance: Any) -> int:  # noqa: N802
        number = _number(handle)
        return _point(instance, number + INSTANCE * (index.value + 1)) if index.value < len(self.gpus[number].instances) else NOT_FOUND

    def nvmlEventSetCreate(self, events: Any) -> int:  # noqa: N802
        return _point(events, 0)

    def nvmlDeviceRegisterEvents(self, _: Any, kinds: Any, events: Any) -> int:  # noqa: N802
        return SUCCESS if kinds.value == XID and _number(events) == 0 else INVALID_ARGUMENT

    def nvmlEventSetWait_v2(self, _: Any, data: Any, timeout: Any) -> int:  # noqa: N802
        if not self.xids or timeout.value:
            return TIMEOUT
        index, code = self.xids.pop(0)
        ctypes.c_void_p.from_buffer(data._obj, type(data._obj).device.offset).value = index + 1
        data._obj.eventType, data._obj.eventData = XID, code
        return SUCCESS

    def _of(self, handle: Any) -> FakeGpu | FakeMigInstance:
        """The GPU, or the instance of one."""
        number = _number(handle)
        return self.gpus[number % INSTANCE].instances[number // INSTANCE - 1] if number >= INSTANCE else self.gpus[number]

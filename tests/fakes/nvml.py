"""A stand-in for the module `pynvml`: a node with GPUs that break when told to.

It knows the functions that `collectors.nvml` and `eagle_eye.gpu_devices` call, with the arguments, units and errors of nvidia-ml-py. Where
that package is installed, the constants, the structures and the exception classes are its own.

>>> fake = FakeNvml(gpus=1)
>>> fake.nvmlInit()
>>> fake.nvmlDeviceGetPowerUsage(fake.nvmlDeviceGetHandleByIndex(0))
300000
"""

import threading
from collections import Counter, deque
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from .nvml_gpu import (
    CONSTANTS,
    FIELD_VALUE,
    LARGEST,
    STATE_FIELDS,
    STRUCTURES,
    UNSIGNED_INT,
    UNSIGNED_LONG_LONG,
    FakeGpu,
    FakeHandle,
    FakeMigInstance,
)

MOST_ASKED = 128
"""Batches of fields that are remembered, at least."""


class _Error(Exception):
    """NVMLError where nvidia-ml-py is not installed."""

    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


class FakeNvml:
    """`pynvml` at its border. Knobs: `missing`, `refuses`, `hang` and `release`, `gpus[i]`, `xids`, `absent`, `driver`."""

    NVML_NVLINK_MAX_LINKS = 18

    def __init__(self, gpus: int = 2) -> None:
        try:
            import pynvml
        except ImportError:
            vocabulary: Any = SimpleNamespace(**CONSTANTS, **STRUCTURES, NVMLError=_Error)
        else:
            vocabulary = pynvml
        for name in (*CONSTANTS, *STRUCTURES, "NVMLError"):
            setattr(self, name, getattr(vocabulary, name))
        self.NVMLError: type[Exception] = vocabulary.NVMLError
        self.gpus = [FakeGpu(uuid=f"GPU-{index:08x}") for index in range(gpus)]
        self.driver = "590.44.01"
        self.missing: set[str] = set()
        """Functions that answer NVML_ERROR_NOT_SUPPORTED."""
        self.refuses: dict[str, str] = {}
        """Function → name of the error that it answers with."""
        self.absent = ""
        """Name of the error with which nvmlInit fails, e.g. NVML_ERROR_LIBRARY_NOT_FOUND."""
        self.xids: deque[tuple[int, int]] = deque()
        """(index of the GPU, code) of the events to come."""
        self.calls: Counter[str] = Counter()
        self.asked: list[Sequence[tuple[int, int]]] = []
        """The newest batches of fields, in the order in which they were asked for."""
        self._opened = 0
        """How often it was opened and not closed; handles are of the first of these."""
        self._opening = 0
        self._dead: set[FakeHandle] = set()
        """A GPU that was lost stays so until the library is opened anew."""
        self._registered: set[FakeHandle] = set()
        self._hangs_in = self._hangs_of = ""
        self._hanging = threading.Event()
        self._open = threading.Event()
        self._open.set()

    def hang(self, function: str = "", uuid: str = "") -> None:
        """Let every further call hang until `release`, or those of one function, or of one GPU."""
        self._hangs_in, self._hangs_of = function, uuid
        self._hanging.clear()
        self._open.clear()

    def release(self) -> None:
        """Let the calls that hang go on."""
        self._open.set()

    def wait_until_hanging(self, timeout: float) -> bool:
        """Block until a call hangs."""
        return self._hanging.wait(timeout)

    def reload_driver(self) -> None:
        """Unload and load the driver: counters begin again, and whoever had it open has to open it anew."""
        self._opened = 0
        for gpu in self.gpus:
            gpu.ecc = {0: 0, 1: 0}
            gpu.pcie_replays = 0
            gpu.fields[83] = 0
            gpu.link_errors.clear()

    # --- the functions of pynvml

    def nvmlInit(self) -> None:  # noqa: N802
        self._enter("nvmlInit", initialised=True)
        if self.absent:
            raise self._error(self.absent)
        self._opening += not self._opened
        self._opened += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self._enter("nvmlShutdown")
        self._opened -= 1

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        self._enter("nvmlSystemGetDriverVersion")
        return self.driver

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        self._enter("nvmlDeviceGetCount")
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeHandle:  # noqa: N802
        handle = FakeHandle(index, self._opening)
        self._gpu("nvmlDeviceGetHandleByIndex", handle)
        return handle

    def nvmlDeviceGetUUID(self, handle: FakeHandle) -> str:  # noqa: N802
        return self._part("nvmlDeviceGetUUID", handle).uuid

    def nvmlDeviceGetPciInfo(self, handle: FakeHandle) -> SimpleNamespace:  # noqa: N802
        self._gpu("nvmlDeviceGetPciInfo", handle)
        return SimpleNamespace(busId=f"00000000:{0x17 + handle.index:02X}:00.0")

    def nvmlDeviceGetFieldValues(self, handle: FakeHandle, fieldIds: Sequence[tuple[int, int]]) -> Any:  # noqa: N802, N803
        gpu = self._gpu("nvmlDeviceGetFieldValues", handle)
        self.asked.append(tuple(fieldIds))
        if len(self.asked) > 2 * MOST_ASKED:  # whoever looks at the memory of an hour sees that of the agent
            del self.asked[:MOST_ASKED]
        values = (self.c_nvmlFieldValue_t * len(fieldIds))()  # type: ignore[attr-defined]
        for index, query in enumerate(fieldIds):  # as nvidia-ml-py does it, so that it costs what it costs there
            values[index].fieldId, values[index].scopeId = query
        for index, (number, scope) in enumerate(fieldIds):  # the driver's part, which costs no Python
            code, told = gpu.value_of(number, scope)
            kind = UNSIGNED_INT if number in STATE_FIELDS else UNSIGNED_LONG_LONG
            FIELD_VALUE.pack_into(values, index * FIELD_VALUE.size, number, scope, 0, 0, kind, code, told & LARGEST)
        return values

    def nvmlDeviceGetUtilizationRates(self, handle: FakeHandle) -> SimpleNamespace:  # noqa: N802
        gpu = self._gpu("nvmlDeviceGetUtilizationRates", handle)
        if gpu.mig:
            raise self._error("NVML_ERROR_NOT_SUPPORTED")
        return SimpleNamespace(gpu=gpu.utilisation, memory=40)

    def nvmlDeviceGetMemoryInfo(self, handle: FakeHandle) -> SimpleNamespace:  # noqa: N802
        part = self._part("nvmlDeviceGetMemoryInfo", handle)
        return SimpleNamespace(used=part.memory_used, total=part.memory_total, free=part.memory_total - part.memory_used)

    def nvmlDeviceGetPowerUsage(self, handle: FakeHandle) -> int:  # noqa: N802
        return self._gpu("nvmlDeviceGetPowerUsage", handle).power_milliwatts

    def nvmlDeviceGetTemperature(self, handle: FakeHandle, sensor: int) -> int:  # noqa: N802
        self._known(sensor, {0})
        return self._gpu("nvmlDeviceGetTemperature", handle).temperature

    def nvmlDeviceGetClockInfo(self, handle: FakeHandle, type: int) -> int:  # noqa: A002, N802
        self._known(type, {1, 2})
        gpu = self._gpu("nvmlDeviceGetClockInfo", handle)
        return gpu.sm_clock if type == 1 else gpu.memory_clock

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: FakeHandle) -> int:  # noqa: N802
        return self._gpu("nvmlDeviceGetCurrentClocksEventReasons", handle).throttle_reasons

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: FakeHandle) -> int:  # noqa: N802
        return self._gpu("nvmlDeviceGetCurrentClocksThrottleReasons", handle).throttle_reasons

    def nvmlDeviceGetTotalEccErrors(self, handle: FakeHandle, errorType: int, counterType: int) -> int:  # noqa: N802, N803
        self._known(counterType, {0})
        gpu = self._gpu("nvmlDeviceGetTotalEccErrors", handle)
        if gpu.unknown_fields >= {3, 4}:  # ECC is off
            raise self._error("NVML_ERROR_NOT_SUPPORTED")
        return gpu.ecc[errorType]

    def nvmlDeviceGetMemoryErrorCounter(self, handle: FakeHandle, errorType: int, counterType: int, locationType: int) -> int:  # noqa: N802, N803
        self._known(locationType, {2, 7})
        gpu = self._gpu("nvmlDeviceGetMemoryErrorCounter", handle)
        if gpu.unknown_fields >= {3, 4}:  # ECC is off
            raise self._error("NVML_ERROR_NOT_SUPPORTED")
        return gpu.ecc_at.get((errorType, counterType, locationType), 0)

    def nvmlDeviceGetPcieReplayCounter(self, handle: FakeHandle) -> int:  # noqa: N802
        return self._gpu("nvmlDeviceGetPcieReplayCounter", handle).pcie_replays

    def nvmlDeviceGetCurrPcieLinkGeneration(self, handle: FakeHandle) -> int:  # noqa: N802
        return self._gpu("nvmlDeviceGetCurrPcieLinkGeneration", handle).pcie_generation

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: FakeHandle) -> int:  # noqa: N802
        return self._gpu("nvmlDeviceGetCurrPcieLinkWidth", handle).pcie_width

    def nvmlDeviceGetComputeRunningProcesses(self, handle: FakeHandle) -> list[SimpleNamespace]:  # noqa: N802
        return [SimpleNamespace(pid=4000 + number) for number in range(self._part("nvmlDeviceGetComputeRunningProcesses", handle).processes)]

    def nvmlDeviceGetNvLinkState(self, device: FakeHandle, link: int) -> int:  # noqa: N802
        gpu = self._gpu("nvmlDeviceGetNvLinkState", device)
        self._known(link, set(range(len(gpu.links))))
        return gpu.links[link]

    def nvmlDeviceGetNvLinkRemotePciInfo(self, device: FakeHandle, link: int) -> SimpleNamespace:  # noqa: N802
        gpu = self._gpu("nvmlDeviceGetNvLinkRemotePciInfo", device)
        if not gpu.links[link]:
            raise self._error("NVML_ERROR_NOT_SUPPORTED")
        return SimpleNamespace(busId=f"00000000:{0xC0 + link % 4:02X}:00.0")

    def nvmlDeviceGetGpuFabricInfoV(self, device: FakeHandle, gpuFabricInfo: Any) -> int:  # noqa: N802, N803
        """`gpuFabricInfo`: a reference, as ctypes.byref gives it."""
        gpu, info = self._gpu("nvmlDeviceGetGpuFabricInfoV", device), gpuFabricInfo._obj
        if not hasattr(info, "healthSummary") and "healthSummary" not in gpu.fabric:
            newer = {}
        elif "healthSummary" not in gpu.fabric:  # an older driver
            raise self._error("NVML_ERROR_ARGUMENT_VERSION_MISMATCH")
        else:
            newer = {"healthSummary": gpu.fabric["healthSummary"]}
        for name, value in ({key: gpu.fabric[key] for key in ("state", "status", "healthMask")} | newer).items():
            setattr(info, name, value)
        return 0

    def nvmlDeviceGetMigMode(self, device: FakeHandle) -> list[int]:  # noqa: N802
        gpu = self._gpu("nvmlDeviceGetMigMode", device)
        if gpu.mig is None:
            raise self._error("NVML_ERROR_NOT_SUPPORTED")
        return [int(gpu.mig), int(gpu.mig)]

    def nvmlDeviceGetMaxMigDeviceCount(self, device: FakeHandle) -> int:  # noqa: N802
        return 0 if self._gpu("nvmlDeviceGetMaxMigDeviceCount", device).mig is None else 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: FakeHandle, index: int) -> FakeHandle:  # noqa: N802
        gpu = self._gpu("nvmlDeviceGetMigDeviceHandleByIndex", device)
        if index >= len(gpu.instances):
            raise self._error("NVML_ERROR_NOT_FOUND")
        return FakeHandle(device.index, device.opening, index)

    def nvmlEventSetCreate(self) -> object:  # noqa: N802
        self._enter("nvmlEventSetCreate")
        self._registered = set()
        return object()

    def nvmlEventSetFree(self, eventSet: object) -> None:  # noqa: N802, N803
        self._enter("nvmlEventSetFree")
        self._registered = set()

    def nvmlDeviceRegisterEvents(self, handle: FakeHandle, eventTypes: int, eventSet: object) -> None:  # noqa: N802, N803
        self._gpu("nvmlDeviceRegisterEvents", handle)
        self._registered.add(handle)

    def nvmlEventSetWait_v2(self, eventSet: object, timeoutms: int) -> SimpleNamespace:  # noqa: N802, N803
        """The next event; GPU_IS_LOST as long as a lost GPU is in the set, TIMEOUT when there is none."""
        self._enter("nvmlEventSetWait_v2")
        if any(self.gpus[handle.index].lost for handle in self._registered):
            raise self._error("NVML_ERROR_GPU_IS_LOST")
        of = {handle.index: handle for handle in self._registered if handle.opening == self._opening}
        if not self.xids or self.xids[0][0] not in of:
            raise self._error("NVML_ERROR_TIMEOUT")
        index, code = self.xids.popleft()
        return SimpleNamespace(device=of[index], eventType=CONSTANTS["nvmlEventTypeXidCriticalError"], eventData=code)

    # --- how they fail

    def _enter(self, name: str, *, initialised: bool = False, uuid: str = "") -> None:
        self.calls[name] += 1
        if not self._open.is_set() and self._hangs_in in {"", name} and self._hangs_of in {"", uuid}:
            self._hanging.set()
            self._open.wait()
        if not self._opened and not initialised:
            raise self._error("NVML_ERROR_UNINITIALIZED")
        if name in self.missing:
            raise self._error("NVML_ERROR_NOT_SUPPORTED")
        if name in self.refuses:
            raise self._error(self.refuses[name])

    def _gpu(self, name: str, handle: FakeHandle) -> FakeGpu:
        gpu = self.gpus[handle.index]
        self._enter(name, uuid=gpu.uuid)
        if handle.opening != self._opening:
            raise self._error("NVML_ERROR_INVALID_ARGUMENT")
        if gpu.lost or handle in self._dead:
            self._dead.add(FakeHandle(handle.index, handle.opening))
            raise self._error("NVML_ERROR_GPU_IS_LOST")
        if gpu.error:
            raise self._error(gpu.error)
        return gpu

    def _part(self, name: str, handle: FakeHandle) -> FakeGpu | FakeMigInstance:
        """The whole GPU or one of its MIG instances."""
        gpu = self._gpu(name, handle)
        if handle.instance < 0:
            return gpu
        if handle.instance >= len(gpu.instances):
            raise self._error("NVML_ERROR_NOT_FOUND")
        return gpu.instances[handle.instance]

    def _known(self, value: int, known: set[int]) -> None:
        if value not in known:
            raise self._error("NVML_ERROR_INVALID_ARGUMENT")

    def _error(self, name: str) -> Exception:
        return self.NVMLError(getattr(self, name))

"""One GPU of `fakes.nvml`, in NVML's own units, and the constants and structures of nvidia-ml-py for where that package is not installed."""

import ctypes
import struct
from dataclasses import dataclass, field

LINKS = 18
"""NVLinks of a Hopper GPU."""
UNSIGNED_INT, UNSIGNED_LONG_LONG = 1, 3
"""NVML_VALUE_TYPE_…"""
FIELD_VALUE = struct.Struct("=IIqqIIQ")
"""c_nvmlFieldValue_t, to write an answer at once as the driver does."""
LARGEST = (1 << 64) - 1
NOT_SUPPORTED = 3
STATE_FIELDS = {31, 82, 142, 143, 144, 145, 165, 230}
"""Fields that come as an unsigned int; the others as an unsigned long long."""
LINK_FIELDS = (161, 162, 163, 165)
"""Asked of one link each; a Hopper GPU knows these."""
NAMED_FIELDS = frozenset({3, 4, 94, 185, 186})
"""Those that are an attribute of the GPU."""
COUNTERS = (
    *range(5, 18), *range(18, 32), *range(74, 80), 83, 142, 143, 144, 145, 169, *range(173, 184), 186, 230, 269, 270, 271,
)  # fmt: skip
"""Further fields that a Hopper GPU with a driver of 2026 knows; 0 unless a test sets them."""


CONSTANTS = {
    "NVML_TEMPERATURE_GPU": 0,
    "NVML_CLOCK_SM": 1,
    "NVML_CLOCK_MEM": 2,
    "NVML_VOLATILE_ECC": 0,
    "NVML_AGGREGATE_ECC": 1,
    "NVML_MEMORY_LOCATION_DRAM": 2,
    "NVML_MEMORY_LOCATION_SRAM": 7,
    "NVML_MEMORY_ERROR_TYPE_CORRECTED": 0,
    "NVML_MEMORY_ERROR_TYPE_UNCORRECTED": 1,
    "nvmlEventTypeXidCriticalError": 8,
    "NVML_ERROR_UNINITIALIZED": 1,
    "NVML_ERROR_INVALID_ARGUMENT": 2,
    "NVML_ERROR_NOT_SUPPORTED": 3,
    "NVML_ERROR_NO_PERMISSION": 4,
    "NVML_ERROR_NOT_FOUND": 6,
    "NVML_ERROR_DRIVER_NOT_LOADED": 9,
    "NVML_ERROR_TIMEOUT": 10,
    "NVML_ERROR_LIBRARY_NOT_FOUND": 12,
    "NVML_ERROR_FUNCTION_NOT_FOUND": 13,
    "NVML_ERROR_GPU_IS_LOST": 15,
    "NVML_ERROR_RESET_REQUIRED": 16,
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": 18,
    "NVML_ERROR_ARGUMENT_VERSION_MISMATCH": 25,
    "NVML_ERROR_DEPRECATED": 26,
    "NVML_ERROR_UNKNOWN": 999,
}
"""As in nvml.h; used where nvidia-ml-py is not installed."""


class Value(ctypes.Union):
    """c_nvmlValue_t."""

    _fields_ = (
        ("dVal", ctypes.c_double), ("uiVal", ctypes.c_uint), ("ulVal", ctypes.c_ulong), ("ullVal", ctypes.c_ulonglong),
        ("sllVal", ctypes.c_longlong), ("siVal", ctypes.c_int), ("usVal", ctypes.c_ushort),
    )  # fmt: skip


class FieldValue(ctypes.Structure):
    """c_nvmlFieldValue_t."""

    _fields_ = (
        ("fieldId", ctypes.c_uint32), ("scopeId", ctypes.c_uint32), ("timestamp", ctypes.c_int64), ("latencyUsec", ctypes.c_int64),
        ("valueType", ctypes.c_uint), ("nvmlReturn", ctypes.c_uint), ("value", Value),
    )  # fmt: skip


class FabricInfo2(ctypes.Structure):
    """c_nvmlGpuFabricInfo_v2_t."""

    _fields_ = (
        ("version", ctypes.c_uint), ("clusterUuid", ctypes.c_uint8 * 16), ("status", ctypes.c_uint), ("cliqueId", ctypes.c_uint32),
        ("state", ctypes.c_uint), ("healthMask", ctypes.c_uint32),
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__(version=0x02000024)


class FabricInfo3(ctypes.Structure):
    """c_nvmlGpuFabricInfo_v3_t."""

    _fields_ = (*FabricInfo2._fields_, ("healthSummary", ctypes.c_uint8))

    def __init__(self) -> None:
        super().__init__(version=0x3000028)


STRUCTURES = {
    "c_nvmlValue_t": Value, "c_nvmlFieldValue_t": FieldValue, "c_nvmlGpuFabricInfo_v2_t": FabricInfo2, "c_nvmlGpuFabricInfo_v3_t": FabricInfo3,
}  # fmt: skip


@dataclass(frozen=True)
class FakeHandle:
    """Opaque, as NVML's: of one opening of the library, and of a MIG instance or (-1) the whole GPU."""

    index: int
    opening: int
    instance: int = -1


@dataclass
class FakeMigInstance:
    """One MIG instance."""

    uuid: str
    memory_used: int = 4 << 30
    memory_total: int = 10 << 30
    processes: int = 1


@dataclass
class FakeGpu:
    """A Hopper GPU in a node with NVSwitches."""

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
    ecc_at: dict[tuple[int, int, int], int] = field(default_factory=dict)
    """(kind of error, volatile or aggregate, NVML_MEMORY_LOCATION_…) → count: device memory (2) and SRAM (7)."""
    pcie_replays: int = 0
    pcie_generation: int = 5
    pcie_width: int = 16
    processes: int = 1
    fields: dict[int, int] = field(default_factory=lambda: dict.fromkeys(COUNTERS, 0) | {82: 61, 83: 1_000_000})
    """Number of a field → its value; a field that is not here is not supported. Those with a name above are taken from there."""
    link_errors: dict[tuple[int, int], int] = field(default_factory=dict)
    """(number of a field, link) → count."""
    links: list[int] = field(default_factory=lambda: [1] * LINKS)
    """NVML_NVLINK_STATE_… of each link."""
    unknown_fields: set[int] = field(default_factory=set)
    """Fields that this GPU or driver does not support, although a Hopper does."""
    fabric: dict[str, int] = field(default_factory=lambda: {"state": 3, "status": 0, "healthMask": 0, "healthSummary": 1})
    mig: bool | None = None
    """None: the GPU cannot be divided."""
    instances: list[FakeMigInstance] = field(default_factory=list)
    lost: bool = False
    error: str = ""
    """Name of the error that every function answers with, also for its handle."""
    field_error: int = 0
    """Number of the error that each of its fields comes back with."""

    def value_of(self, number: int, scope: int) -> tuple[int, int]:
        """(nvmlReturn, value) of a field; `scope`: number of a link."""
        if self.field_error:
            return self.field_error, 0
        if number in self.unknown_fields:
            return NOT_SUPPORTED, 0
        if number in LINK_FIELDS:
            if scope >= len(self.links):
                return NOT_SUPPORTED, 0
            return 0, self.links[scope] if number == 165 else self.link_errors.get((number, scope), 0)
        value = self._named(number) if number in NAMED_FIELDS else self.fields.get(number)
        return (NOT_SUPPORTED, 0) if value is None else (0, value)

    def _named(self, number: int) -> int:
        if number in (3, 4):
            return self.ecc[number - 3]
        return self.pcie_replays if number == 94 else self.power_milliwatts

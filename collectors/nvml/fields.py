"""The metrics of a GPU that NVML gives as fields: all of one GPU are read by a single `nvmlDeviceGetFieldValues`.

Sources: names and numbers of the fields are those of nvidia-ml-py 13.615 (`NVML_FI_DEV_…`), units those of NVIDIA's NVML API reference.
"""

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple


class FieldId(IntEnum):
    """NVML's number of a field; with `NVML_FI_DEV_` before it the name is NVIDIA's (but for the three `…_575`)."""

    ECC_SBE_VOL_TOTAL = 3
    ECC_DBE_VOL_TOTAL = 4
    ECC_SBE_AGG_TOTAL = 5
    ECC_DBE_AGG_TOTAL = 6
    ECC_SBE_VOL_L1 = 7
    ECC_DBE_VOL_L1 = 8
    ECC_SBE_VOL_L2 = 9
    ECC_DBE_VOL_L2 = 10
    ECC_SBE_VOL_DEV = 11
    ECC_DBE_VOL_DEV = 12
    ECC_SBE_VOL_REG = 13
    ECC_DBE_VOL_REG = 14
    ECC_SBE_VOL_TEX = 15
    ECC_DBE_VOL_TEX = 16
    ECC_DBE_VOL_CBU = 17
    ECC_SBE_AGG_L1 = 18
    ECC_DBE_AGG_L1 = 19
    ECC_SBE_AGG_L2 = 20
    ECC_DBE_AGG_L2 = 21
    ECC_SBE_AGG_DEV = 22
    ECC_DBE_AGG_DEV = 23
    ECC_SBE_AGG_REG = 24
    ECC_DBE_AGG_REG = 25
    ECC_SBE_AGG_TEX = 26
    ECC_DBE_AGG_TEX = 27
    ECC_DBE_AGG_CBU = 28
    RETIRED_SBE = 29
    RETIRED_DBE = 30
    RETIRED_PENDING = 31
    PERF_POLICY_POWER = 74
    PERF_POLICY_THERMAL = 75
    PERF_POLICY_SYNC_BOOST = 76
    PERF_POLICY_BOARD_LIMIT = 77
    PERF_POLICY_RELIABILITY = 79
    MEMORY_TEMP = 82
    TOTAL_ENERGY_CONSUMPTION = 83
    PCIE_REPLAY_COUNTER = 94
    REMAPPED_COR = 142
    REMAPPED_UNC = 143
    REMAPPED_PENDING = 144
    REMAPPED_FAILURE = 145
    NVLINK_ERROR_DL_REPLAY = 161
    NVLINK_ERROR_DL_RECOVERY = 162
    NVLINK_ERROR_DL_CRC = 163
    NVLINK_GET_STATE = 165
    PCIE_L0_TO_RECOVERY_COUNTER = 169
    PCIE_COUNT_CORRECTABLE_ERRORS = 173
    PCIE_COUNT_NAKS_RECEIVED = 174
    PCIE_COUNT_RECEIVER_ERROR = 175
    PCIE_COUNT_BAD_TLP = 176
    PCIE_COUNT_NAKS_SENT = 177
    PCIE_COUNT_BAD_DLLP = 178
    PCIE_COUNT_NON_FATAL_ERROR = 179
    PCIE_COUNT_FATAL_ERROR = 180
    PCIE_COUNT_LCRC_ERROR = 182
    PCIE_COUNT_LANE_ERROR = 183
    POWER_AVERAGE = 185
    POWER_INSTANT = 186
    NVLINK_COUNT_MALFORMED_PACKET_ERRORS = 206
    NVLINK_COUNT_BUFFER_OVERRUN_ERRORS = 207
    NVLINK_COUNT_RCV_ERRORS = 208
    NVLINK_COUNT_RCV_REMOTE_ERRORS = 209
    NVLINK_COUNT_RCV_GENERAL_ERRORS = 210
    NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS = 211
    NVLINK_COUNT_XMIT_DISCARDS = 212
    NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS = 214
    NVLINK_COUNT_LINK_RECOVERY_EVENTS = 215
    NVLINK_COUNT_EFFECTIVE_ERRORS = 219
    GET_GPU_RECOVERY_ACTION = 230
    CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN_575 = 251
    CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_575 = 252
    CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_575 = 253
    CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN = 269
    CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN = 270
    CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN = 271


class FieldKind(Enum):
    """What becomes of a field's number."""

    GAUGE = "as it is, in our unit"
    COUNTER = "its change a second; NaN at first, and when it went backwards: the driver was loaded anew"
    STATE = "as it is: how things stand, until they change"


class FieldScope(Enum):
    """Of what a field is asked."""

    GPU = "the whole GPU"
    LINK = "each NVLink, by `scopeId`; the metric is their sum"


FieldQuery = tuple[int, int]
"""(number of the field, scope: number of the NVLink, else 0), as `nvmlDeviceGetFieldValues` takes them."""


class DriverSpan(NamedTuple):
    """Drivers from one version (major, minor) on, up to and without another one."""

    since: tuple[int, int] = (0, 0)
    until: tuple[int, int] = (1_000_000, 0)


EVERY_DRIVER = DriverSpan()
OLDER_NUMBERS = DriverSpan((575, 0), (580, 83))
NEWER_NUMBERS = DriverSpan((580, 126))
"""Throttle reasons by time have the numbers 251 to 253 in nvidia-ml-py 12.575 to 13.580.82, and 269 to 271 from 13.580.126 on, where 251 to 253 mean
something else. A driver in between is asked for neither: a number of another field would be a lie."""


@dataclass(frozen=True, slots=True)
class FieldMetric:
    """One metric of ours from one or several fields. Of two rows with one name the later one counts where a GPU knows both."""

    name: str
    fields: tuple[FieldId, ...]
    """Added together, as far as the GPU knows them."""
    kind: FieldKind
    factor: float = 1.0
    """NVML's unit → ours."""
    scope: FieldScope = FieldScope.GPU
    slow: bool = False
    """Read every `slow_s` and repeated from memory in between."""
    drivers: DriverSpan = EVERY_DRIVER


_GAUGE, _COUNTER, _STATE = FieldKind.GAUGE, FieldKind.COUNTER, FieldKind.STATE
_NANOSECONDS = 1e-7
"""Nanoseconds in a second → percent."""


def _gauge(name: str, field: FieldId, factor: float = 1.0) -> FieldMetric:
    return FieldMetric(name, (field,), _GAUGE, factor)


def _rate(name: str, *fields: FieldId, slow: bool = False) -> FieldMetric:
    return FieldMetric(name, fields, _COUNTER, slow=slow)


def _throttled(name: str, field: FieldId, drivers: DriverSpan = EVERY_DRIVER, *, slow: bool = False) -> FieldMetric:
    return FieldMetric(name, (field,), _COUNTER, _NANOSECONDS, slow=slow, drivers=drivers)


def _of_links(name: str, *fields: FieldId) -> FieldMetric:
    return FieldMetric(name, fields, _COUNTER, scope=FieldScope.LINK)


def _state(name: str, *fields: FieldId) -> FieldMetric:
    return FieldMetric(name, fields, _STATE, slow=True)


_F = FieldId
POWER = (
    _gauge("power_watts", _F.POWER_INSTANT, 1e-3),
    _gauge("power_watts", _F.POWER_AVERAGE, 1e-3),
    FieldMetric("power_mean_watts", (_F.TOTAL_ENERGY_CONSUMPTION,), _COUNTER, 1e-3, slow=True),
    _gauge("memory_temperature_celsius", _F.MEMORY_TEMP),
)
"""Milliwatts, millijoules since the driver was loaded, degrees. `power_watts`: mean of the last second where the GPU has it (as nvidia-smi's
power.draw), else of the moment; `power_mean_watts`: from the energy counter, so that no peak between two looks is missed. That counter alone takes
3.3 ms of an H100's driver (`python -m benchmarks.collect.gpu_beside_nvidia_smi`): every `slow_s`."""

THROTTLING = (
    _throttled("throttled_power_percent", _F.PERF_POLICY_POWER),
    _throttled("throttled_thermal_percent", _F.PERF_POLICY_THERMAL, slow=True),
    _throttled("throttled_sync_boost_percent", _F.PERF_POLICY_SYNC_BOOST),
    _throttled("throttled_board_limit_percent", _F.PERF_POLICY_BOARD_LIMIT),
    _throttled("throttled_reliability_percent", _F.PERF_POLICY_RELIABILITY),
    _throttled("throttled_software_thermal_percent", _F.CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN_575, OLDER_NUMBERS),
    _throttled("throttled_software_thermal_percent", _F.CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN, NEWER_NUMBERS),
    _throttled("throttled_hardware_thermal_percent", _F.CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_575, OLDER_NUMBERS, slow=True),
    _throttled("throttled_hardware_thermal_percent", _F.CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN, NEWER_NUMBERS, slow=True),
    _throttled("throttled_power_brake_percent", _F.CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_575, OLDER_NUMBERS, slow=True),
    _throttled("throttled_power_brake_percent", _F.CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN, NEWER_NUMBERS, slow=True),
)
"""Nanoseconds since the driver was loaded in which this reason held the clocks down. Slow: what takes an H100's driver 0.6 ms each; what holds the
clocks down at the moment is in `throttle_reasons`, each second."""

ECC = (
    _rate("ecc_corrected_per_s", _F.ECC_SBE_VOL_TOTAL),
    _rate("ecc_uncorrected_per_s", _F.ECC_DBE_VOL_TOTAL),
    _rate("ecc_memory_corrected_per_s", _F.ECC_SBE_VOL_DEV),
    _rate("ecc_memory_uncorrected_per_s", _F.ECC_DBE_VOL_DEV),
    _rate("ecc_cache_corrected_per_s", _F.ECC_SBE_VOL_L1, _F.ECC_SBE_VOL_L2, _F.ECC_SBE_VOL_TEX),
    _rate("ecc_cache_uncorrected_per_s", _F.ECC_DBE_VOL_L1, _F.ECC_DBE_VOL_L2, _F.ECC_DBE_VOL_TEX),
    _rate("ecc_registers_corrected_per_s", _F.ECC_SBE_VOL_REG),
    _rate("ecc_registers_uncorrected_per_s", _F.ECC_DBE_VOL_REG, _F.ECC_DBE_VOL_CBU),
    _state("ecc_corrected_total", _F.ECC_SBE_AGG_TOTAL),
    _state("ecc_uncorrected_total", _F.ECC_DBE_AGG_TOTAL),
    _state("ecc_memory_uncorrected_total", _F.ECC_DBE_AGG_DEV),
    _state("ecc_cache_uncorrected_total", _F.ECC_DBE_AGG_L1, _F.ECC_DBE_AGG_L2, _F.ECC_DBE_AGG_TEX),
    _state("ecc_registers_uncorrected_total", _F.ECC_DBE_AGG_REG, _F.ECC_DBE_AGG_CBU),
)
"""Rates are of the volatile counters (since the driver was loaded), totals are the aggregate ones (of the GPU's whole life). Places: device memory;
L1, L2 and texture caches; register files with the convergence barrier unit. With ECC off NVML gives none."""

MEMORY_REPAIR = (
    _state("remapped_rows", _F.REMAPPED_COR, _F.REMAPPED_UNC),
    _state("remapped_rows_uncorrected", _F.REMAPPED_UNC),
    _state("remap_pending", _F.REMAPPED_PENDING),
    _state("remap_failed", _F.REMAPPED_FAILURE),
    _state("retired_pages", _F.RETIRED_SBE, _F.RETIRED_DBE),
    _state("retired_pages_pending", _F.RETIRED_PENDING),
)
"""Rows of Ampere and later that were replaced by spare ones, pages of older GPUs that were given up; pending, failed: 1 or 0."""

PCIE = (
    _rate("pcie_replays_per_s", _F.PCIE_REPLAY_COUNTER, slow=True),
    _rate("pcie_recoveries_per_s", _F.PCIE_L0_TO_RECOVERY_COUNTER, slow=True),
    _rate("pcie_correctable_errors_per_s", _F.PCIE_COUNT_CORRECTABLE_ERRORS, slow=True),
    _rate("pcie_naks_per_s", _F.PCIE_COUNT_NAKS_RECEIVED, _F.PCIE_COUNT_NAKS_SENT, slow=True),
    _rate("pcie_bad_packets_per_s", _F.PCIE_COUNT_BAD_TLP, _F.PCIE_COUNT_BAD_DLLP, _F.PCIE_COUNT_LCRC_ERROR, slow=True),
    _rate("pcie_lane_errors_per_s", _F.PCIE_COUNT_RECEIVER_ERROR, _F.PCIE_COUNT_LANE_ERROR, slow=True),
    _rate("pcie_non_fatal_errors_per_s", _F.PCIE_COUNT_NON_FATAL_ERROR, slow=True),
    _rate("pcie_fatal_errors_per_s", _F.PCIE_COUNT_FATAL_ERROR),
)
"""0.2 ms of an H100's driver each; those that end a link's work are asked for each second."""

NVLINK = (
    _of_links("nvlink_replays_per_s", _F.NVLINK_ERROR_DL_REPLAY),
    _of_links("nvlink_recoveries_per_s", _F.NVLINK_ERROR_DL_RECOVERY),
    _of_links("nvlink_recoveries_per_s", _F.NVLINK_COUNT_LINK_RECOVERY_EVENTS),
    _of_links("nvlink_crc_errors_per_s", _F.NVLINK_ERROR_DL_CRC),
    _of_links("nvlink_failed_recoveries_per_s", _F.NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS),
    _of_links(
        "nvlink_receive_errors_per_s",
        _F.NVLINK_COUNT_MALFORMED_PACKET_ERRORS, _F.NVLINK_COUNT_BUFFER_OVERRUN_ERRORS, _F.NVLINK_COUNT_RCV_ERRORS,
        _F.NVLINK_COUNT_RCV_REMOTE_ERRORS, _F.NVLINK_COUNT_RCV_GENERAL_ERRORS,
    ),
    _of_links("nvlink_integrity_errors_per_s", _F.NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS),
    _of_links("nvlink_discards_per_s", _F.NVLINK_COUNT_XMIT_DISCARDS),
    _of_links("nvlink_effective_errors_per_s", _F.NVLINK_COUNT_EFFECTIVE_ERRORS),
)  # fmt: skip
"""Replays, recoveries (162) and CRC errors are known up to Hopper, the others from Blackwell on."""

ADVICE = (FieldMetric("recovery_action", (_F.GET_GPU_RECOVERY_ACTION,), _STATE),)
"""The driver's own advice, each second: watched_gpu.StateChanges names it."""

FIELD_METRICS = (*POWER, *THROTTLING, *ECC, *MEMORY_REPAIR, *PCIE, *NVLINK, *ADVICE)
FIELD_NAMES = tuple(dict.fromkeys(metric.name for metric in FIELD_METRICS))


def metrics_of(driver: tuple[int, int]) -> tuple[FieldMetric, ...]:
    """What a driver of this version (major, minor) is asked for; (0, 0): it does not say which it is."""
    return tuple(metric for metric in FIELD_METRICS if metric.drivers.since <= driver < metric.drivers.until)

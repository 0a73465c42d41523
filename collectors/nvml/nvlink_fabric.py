"""The NVLink fabric (NVSwitch, NVLink domains) as one GPU is part of it."""

import ctypes
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .driver import NvmlDriver
from .gpu_change import GpuChange

COMPLETED = 3
"""NVML_GPU_FABRIC_STATE_COMPLETED: the fabric manager has set this GPU up; 0 there is no fabric, 1 not begun, 2 under way."""
HEALTHY, UNHEALTHY, LIMITED = 1, 2, 3
"""NVML_GPU_FABRIC_HEALTH_SUMMARY_…"""
TRUE = 1
COMPLAINTS = {
    0: "degraded bandwidth",
    2: "route recovery in progress",
    4: "a route is unhealthy",
    6: "recovery from an access time-out in progress",
}
"""Shift in the health mask (NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_…) → what the two bits say where they are TRUE."""
CONFIGURATIONS = {
    2: "wrong system GUID",
    3: "wrong chassis number",
    4: "no partition",
    5: "too few NVLinks",
    6: "firmware does not fit",
    7: "wrong place",
    8: "invalid state of the GPU",
}
"""NVML_GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_…, four bits from the ninth on; 0 not told, 1 none."""
CONFIGURATION_SHIFT = 8
VERSIONS = ("c_nvmlGpuFabricInfo_v3_t", "c_nvmlGpuFabricInfo_v2_t")
"""Newest first: a driver refuses one that it does not know."""


@dataclass(frozen=True, slots=True)
class FabricLook:
    """What one look at the fabric gave."""

    state: float = math.nan
    """1 to 3; NaN: this GPU has no fabric, or the driver does not know."""
    healthy: float = math.nan
    """1 or 0; NaN: not told, or not set up yet."""
    complaint: str = ""


class NvLinkFabric:
    """State and health of the fabric at one GPU."""

    def __init__(self, driver: NvmlDriver, whom: str) -> None:
        self._driver, self._whom = driver, whom
        self._latest = FabricLook()

    def look(self, handle: Any) -> Iterator[GpuChange]:
        """Compare with the look before. Raises NVMLError if the GPU or the driver is gone."""
        before, self._latest = self._latest, self._ask(handle)
        now = self._latest
        if now.healthy == 0 and (before.healthy == 1 or (before.healthy == 0 and before.complaint != now.complaint)):
            yield GpuChange("gpu.fabric_unhealthy", f"its NVLink fabric is unhealthy: {now.complaint}", {"reason": now.complaint})

    def values(self) -> dict[str, float]:
        return {"fabric_state": self._latest.state, "fabric_healthy": self._latest.healthy}

    def _ask(self, handle: Any) -> FabricLook:
        for version in filter(self._driver.has, VERSIONS):
            info = getattr(self._driver.nvml, version)()
            if self._driver.call_or(None, "nvmlDeviceGetGpuFabricInfoV", self._whom, handle, ctypes.byref(info)) is not None:
                return _judged(info)
        return FabricLook()


def _judged(info: Any) -> FabricLook:
    if not info.state:
        return FabricLook()
    if info.state != COMPLETED:
        return FabricLook(float(info.state))
    if info.status:
        return FabricLook(COMPLETED, 0.0, f"setting it up failed with NVML error {info.status}")
    complaint = "; ".join(_complaints(info.healthMask))
    summary = getattr(info, "healthSummary", 0)
    if summary in (UNHEALTHY, LIMITED) or complaint:
        return FabricLook(COMPLETED, 0.0, complaint or ("limited capacity" if summary == LIMITED else "no reason given"))
    return FabricLook(COMPLETED, 1.0 if summary == HEALTHY or info.healthMask else math.nan)


def _complaints(mask: int) -> Iterator[str]:
    for shift, word in COMPLAINTS.items():
        if mask >> shift & 0b11 == TRUE:
            yield word
    configuration = mask >> CONFIGURATION_SHIFT & 0b1111
    if configuration > 1:
        yield f"incorrect configuration: {CONFIGURATIONS.get(configuration, configuration)}"

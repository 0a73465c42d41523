"""MIG: a GPU that is divided into instances, each with a UUID (MIG-…) of its own."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from eagle_eye.gpu_devices import text_of

from .calls import memory_of
from .driver import NvmlDriver
from .gpu_change import GpuChange

MIG_NAMES = ("memory_used_bytes", "memory_percent", "processes")
"""What NVML gives of one instance."""


class MigInstance(NamedTuple):
    """One instance."""

    uuid: str
    handle: Any


class MigInstances:
    """Whether a GPU is divided, and into what."""

    def __init__(self, driver: NvmlDriver, whom: str) -> None:
        self._driver, self._whom = driver, whom
        self._mode = math.nan
        self._instances: tuple[MigInstance, ...] = ()
        self._processes: dict[str, float] = {}
        self._known: tuple[float, list[str]] | None = None
        """Mode and UUIDs of the last look that the driver answered."""

    @property
    def enabled(self) -> bool:
        """NVML gives no utilisation of a GPU that is divided."""
        return self._mode == 1.0

    def look(self, handle: Any) -> Iterator[GpuChange]:
        """Compare with the look before. Raises NVMLError if the GPU or the driver is gone."""
        self._mode = self._ask_mode(handle)
        self._instances = tuple(self._find(handle)) if self.enabled else ()
        self._processes = {each.uuid: self._count(each) for each in self._instances}
        if math.isnan(self._mode):
            return
        names = [each.uuid for each in self._instances]
        before, self._known = self._known, (self._mode, names)
        if before not in (None, self._known):
            message = f"MIG is {'on' if self.enabled else 'off'}, {len(names)} instances"
            yield GpuChange("gpu.mig_changed", message, {"enabled": int(self.enabled), "instances": ",".join(names)})

    def values(self) -> dict[str, float]:
        return {"mig_enabled": self._mode}

    def rows(self) -> Iterator[tuple[str, tuple[float, ...]]]:
        """(UUID, one number for each of MIG_NAMES) of each instance. Raises NVMLError if the GPU or the driver is gone."""
        for each in self._instances:
            memory = self._driver.call_or(None, "nvmlDeviceGetMemoryInfo", self._named(each), each.handle)
            used = (math.nan, math.nan) if memory is None else memory_of(memory)  # None: it was removed since; the next look says so
            yield each.uuid, (*used, self._processes.get(each.uuid, math.nan))

    def _ask_mode(self, handle: Any) -> float:
        return float(self._driver.call_or((math.nan,), "nvmlDeviceGetMigMode", self._whom, handle)[0])

    def _find(self, handle: Any) -> Iterator[MigInstance]:
        for index in range(self._driver.call_or(0, "nvmlDeviceGetMaxMigDeviceCount", self._whom, handle)):
            instance = self._driver.call_or(None, "nvmlDeviceGetMigDeviceHandleByIndex", self._whom, handle, index)
            uuid = instance and self._driver.call_or("", "nvmlDeviceGetUUID", self._whom, instance)
            if uuid:  # else nothing is in this place
                yield MigInstance(text_of(uuid), instance)

    def _count(self, instance: MigInstance) -> float:
        running = self._driver.call_or(None, "nvmlDeviceGetComputeRunningProcesses", self._named(instance), instance.handle)
        return math.nan if running is None else float(len(running))

    def _named(self, instance: MigInstance) -> str:
        return f"{self._whom}, {instance.uuid}"

"""One GPU: how it is found, what is read of it in one run, and what changed."""

import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from eagle_eye.gpu_devices import pci_address, text_of
from eagle_eye.xids import RECOVERY_ACTIONS

from .calls import CALL_METRICS, CallReader
from .driver import GONE, LOST, NOT_GIVEN, NvmlDriver
from .field_reader import FieldReader
from .fields import FIELD_METRICS, FIELD_NAMES, metrics_of
from .gpu_change import GpuChange
from .mig import MigInstances
from .nvlink_fabric import NvLinkFabric
from .nvlinks import NvLinks

log = logging.getLogger(__name__)

SILENT_LOOKS = 5
"""Looks in succession that give nothing but errors, after which a GPU counts as lost: a busy driver refuses one or two."""
_OF_CALLS = tuple(name for metric in CALL_METRICS if not metric.instead for name in metric.names)
_OF_LOOKS = ("nvlinks_active", "nvlinks_down", "nvlink_worst", "fabric_state", "fabric_healthy", "mig_enabled")
NAMES = (*_OF_CALLS, *FIELD_NAMES, *_OF_LOOKS)
"""Metrics of a GPU, in the order of a row. `nvlink_worst`: number of the NVLink with the most errors since the last look, NaN if none has any."""
STATES = frozenset(
    (*_OF_LOOKS, "pcie_generation", "pcie_width", "processes", "ecc_sram_uncorrected_total", *(metric.name for metric in FIELD_METRICS if metric.kind.name == "STATE"))
)
"""Those that say how things stand, not how much happens."""


@dataclass(frozen=True, slots=True)
class FoundGpu:
    """A GPU as NVML lists it."""

    index: int
    handle: Any = None
    """None: it does not answer."""
    uuid: str = ""
    """'' if it can no longer be asked for."""
    pci: str = ""
    problem: Any = None
    """The NVMLError that it gives instead."""


def found_gpus(driver: NvmlDriver) -> list[FoundGpu]:
    """All GPUs of the node that this user may ask. Raises NVMLError if the driver refuses: of one GPU among others an error is that GPU's alone."""
    found = [_found(driver, index) for index in range(driver.call("nvmlDeviceGetCount"))]
    refused = next((gpu.problem for gpu in found if gpu.problem is not None and not driver.is_one_of(gpu.problem, LOST)), None)
    if refused is not None and not any(gpu.uuid for gpu in found):
        raise refused
    return [gpu for gpu in found if gpu.uuid or not _is_of_others(driver, gpu)]


def _found(driver: NvmlDriver, index: int) -> FoundGpu:
    """Raises NVMLError if the driver is gone."""
    whom = f"GPU {index}"
    try:
        handle = driver.call("nvmlDeviceGetHandleByIndex", whom, index)
        uuid = text_of(driver.call("nvmlDeviceGetUUID", whom, handle))
        return FoundGpu(index, handle, uuid, driver.run("nvmlDeviceGetPciInfo", whom, pci_address, driver.nvml, handle))
    except driver.nvml.NVMLError as error:
        if driver.is_one_of(error, GONE):
            raise
        return FoundGpu(index, problem=error)


def _is_of_others(driver: NvmlDriver, gpu: FoundGpu) -> bool:
    """It may not be asked here, as in a container that was given some of the GPUs: none of ours, and not broken."""
    if gpu.problem is None or not driver.is_one_of(gpu.problem, NOT_GIVEN):
        return False
    log.info("GPU %d is not watched: %s", gpu.index, gpu.problem)
    return True


class WatchedGpu:
    """Readers and memory of one GPU; it keeps its name while its handle changes."""

    def __init__(self, driver: NvmlDriver, found: FoundGpu) -> None:
        self._driver = driver
        self.index, self.handle, self.pci = found.index, found.handle, found.pci
        self.name = found.uuid or f"gpu-{found.index}"
        self.whom = f"GPU {self.index} ({self.name})"
        """As a person knows it."""
        self.lost_since = math.nan
        """Monotonic time; NaN: it answers."""
        self.was = ""
        """The name under which it was told lost, where its UUID was not known then."""
        self.problem: Any = None
        """The NVMLError that was all that the last look gave; None: it answered."""
        self._silent_looks = 0
        self._ready = False

    @property
    def silent(self) -> bool:
        """It has given nothing but errors for so long that it counts as lost."""
        return self._silent_looks >= SILENT_LOOKS

    @property
    def lost(self) -> bool:
        return not math.isnan(self.lost_since)

    def row(self, now: float, *, slow: bool) -> tuple[list[float], list[GpuChange]]:
        """One number for each of NAMES at the monotonic time `now`, and what changed. Raises NVMLError if the GPU or the driver is gone."""
        if self.handle is None and not self._found_again():
            return [math.nan] * len(NAMES), []
        began = not self._ready
        if began:
            self._prepare()
        numbers, changes = self._numbers(now, slow=slow or began)
        answered = self._fields.answered or self._calls.answered
        self._heard(None if answered else self._calls.problem or self._fields.problem)
        self._ready = self.problem is None or not began  # what a GPU has is not known from errors
        return numbers, changes

    def _numbers(self, now: float, *, slow: bool) -> tuple[list[float], list[GpuChange]]:
        self._fields.read(self.handle, now, slow=slow)
        changes = list(self._look()) if slow else []
        values = self._fields.values() | self._calls.read(self.handle, now, slow=slow, by_field=self._fields.knows)
        values |= {"nvlink_worst": self._fields.worst_link(), **self._links.values(), **self._fabric.values(), **self._mig.values()}
        if self._mig.enabled:
            values["utilisation_percent"] = values["memory_utilisation_percent"] = math.nan  # NVML has none of a divided GPU: 0 would be a lie
        changes += self._states.compare(values)
        return [values.get(name, math.nan) for name in NAMES], changes

    def _heard(self, problem: Any) -> None:
        """What the look gave: None, or the error that was all."""
        self.problem = problem
        self._silent_looks = 0 if problem is None else self._silent_looks + 1

    def _found_again(self) -> bool:
        """Ask once more for one that gave an error instead of its handle. Raises NVMLError if the GPU or the driver is gone."""
        found = _found(self._driver, self.index)
        if found.problem is not None and self._driver.is_one_of(found.problem, LOST):
            raise found.problem
        self._heard(found.problem)
        if found.uuid:
            self.take(found)
        return bool(found.uuid)

    def instances(self) -> Iterator[tuple[str, tuple[float, ...]]]:
        """MIG instances: UUID, and one number for each of MIG_NAMES. Raises NVMLError if the GPU or the driver is gone."""
        return self._mig.rows() if self._ready else iter(())

    def _prepare(self) -> None:
        """What is known of it begins here: at the agent's start, and after a reset."""
        self._links = NvLinks(self._driver, self.whom, self.handle)
        self._fields = FieldReader(self._driver, self.whom, metrics_of(self._driver.version()), self._links.numbers)
        self._calls = CallReader(self._driver, self.whom)
        self._fabric = NvLinkFabric(self._driver, self.whom)
        self._mig = MigInstances(self._driver, self.whom)
        self._states = StateChanges()
        self._ready = True

    def _look(self) -> Iterator[GpuChange]:
        """What changes slowly and is no field."""
        changes = [*self._links.look(self.handle, self._fields.link_states()), *self._fabric.look(self.handle), *self._mig.look(self.handle)]
        if any(change.name in ("gpu.nvlink_up", "gpu.mig_changed") for change in changes):
            self._fields.ask_again()
            self._calls.ask_again()
        yield from changes

    # --- lost and found

    def lose(self, now: float) -> None:
        """It does not answer at the monotonic time `now`."""
        self.lost_since, self._ready, self._silent_looks = now, False, 0

    def take(self, found: FoundGpu) -> None:
        """The driver was opened anew: its handle is another one, and a GPU whose UUID was unknown has a name."""
        self.index, self.handle, self.pci = found.index, found.handle, found.pci or self.pci
        self.was = self.name if self.name != found.uuid else ""
        self.name = found.uuid
        self.whom = f"GPU {self.index} ({self.name})"


class StateChanges:
    """What changed in the states of a GPU: rows of its memory that were remapped, a remapping that failed, the driver's advice.

    It keeps the states as they were known last. One that is NaN for a while is compared with what it was before.
    """

    def __init__(self) -> None:
        self._known: dict[str, float] = {}

    def compare(self, values: Mapping[str, float]) -> Iterator[GpuChange]:
        """What is told of these values. What was so when the agent began is none, but an advice."""
        yield from self._rows(values)
        if self._rose("remap_failed", values):
            yield GpuChange("gpu.remap_failed", "a row of its memory could not be remapped", {"rows": _count(values["remapped_rows"])})
        yield from self._advice(values)
        self._known |= {name: value for name, value in values.items() if not math.isnan(value)}

    def _rows(self, values: Mapping[str, float]) -> Iterator[GpuChange]:
        if not self._rose("remapped_rows", values) and not self._rose("remap_pending", values):
            return
        rows, before = values["remapped_rows"], self._known.get("remapped_rows", math.nan)
        pending = values["remap_pending"] == 1
        message = f"{_count(rows)} rows of its memory are remapped, {_count(before)} before{'; a reset of the GPU completes it' if pending else ''}"
        attributes = {"rows": _count(rows), "before": _count(before), "uncorrected": _count(values["remapped_rows_uncorrected"]), "pending": int(pending)}
        yield GpuChange("gpu.rows_remapped", message, attributes)

    def _advice(self, values: Mapping[str, float]) -> Iterator[GpuChange]:
        advice = values["recovery_action"]
        if math.isnan(advice) or advice == self._known.get("recovery_action", 0.0):
            return
        code = int(advice)
        action = RECOVERY_ACTIONS[code][0] if code in RECOVERY_ACTIONS else f"action {code}"  # what 5 and above mean differs between drivers
        yield GpuChange("gpu.recovery_action", f"the driver advises: {action}", {"action": action, "code": code})

    def _rose(self, name: str, values: Mapping[str, float]) -> bool:
        return values[name] > self._known.get(name, math.inf)


def _count(value: float) -> str:
    return "unknown" if math.isnan(value) else f"{value:.0f}"

"""The metrics of a GPU for which NVML has a function and no field, and those that older drivers have as functions alone."""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .driver import NOT_GIVEN, NvmlDriver
from .fields import FieldKind

log = logging.getLogger(__name__)

NvmlCall = Callable[..., Any]
"""(NVML's function, its arguments after the handle) → what it returns for one GPU."""


@dataclass(frozen=True, slots=True)
class CallMetric:
    """One or several metrics of ours from one function."""

    names: tuple[str, ...]
    read: Callable[[NvmlDriver, NvmlCall], tuple[float, ...]]
    """One number for each name, in our unit."""
    kind: FieldKind = FieldKind.GAUGE
    slow: bool = False
    """Read every `slow_s` and repeated from memory in between."""
    instead: bool = False
    """Only where the GPU does not give it as a field."""


def _utilisation(_: NvmlDriver, ask: NvmlCall) -> tuple[float, ...]:
    rates = ask("nvmlDeviceGetUtilizationRates")
    return rates.gpu, rates.memory


def _memory(_: NvmlDriver, ask: NvmlCall) -> tuple[float, ...]:
    return memory_of(ask("nvmlDeviceGetMemoryInfo"))


def memory_of(memory: Any) -> tuple[float, float]:
    """(bytes that are used, percent of all) of an `nvmlMemory_t`."""
    return memory.used, 100.0 * memory.used / memory.total if memory.total else math.nan


def _throttle(driver: NvmlDriver, ask: NvmlCall) -> tuple[float, ...]:
    if driver.has("nvmlDeviceGetCurrentClocksEventReasons"):  # older packages know the old name alone
        try:
            return (ask("nvmlDeviceGetCurrentClocksEventReasons"),)
        except driver.nvml.NVMLError as error:
            if not driver.is_one_of(error, ("NVML_ERROR_FUNCTION_NOT_FOUND",)):  # an older driver under a newer package
                raise
    return (ask("nvmlDeviceGetCurrentClocksThrottleReasons"),)


def _one(function: str, *constants: str, factor: float = 1.0) -> Callable[[NvmlDriver, NvmlCall], tuple[float, ...]]:
    """A function that takes constants of NVML and returns one number. One that the package does not know is as one that the GPU does not know."""

    def read(driver: NvmlDriver, ask: NvmlCall) -> tuple[float, ...]:
        if not all(driver.has(name) for name in (function, *constants)):
            raise driver.nvml.NVMLError(driver.nvml.NVML_ERROR_NOT_SUPPORTED)
        return (ask(function, *(getattr(driver.nvml, name) for name in constants)) * factor,)

    return read


def _processes(_: NvmlDriver, ask: NvmlCall) -> tuple[float, ...]:
    return (len(ask("nvmlDeviceGetComputeRunningProcesses")),)


def _ecc(kind: str) -> Callable[[NvmlDriver, NvmlCall], tuple[float, ...]]:
    return _one("nvmlDeviceGetTotalEccErrors", kind, "NVML_VOLATILE_ECC")


_CORRECTED, _UNCORRECTED = "NVML_MEMORY_ERROR_TYPE_CORRECTED", "NVML_MEMORY_ERROR_TYPE_UNCORRECTED"


def _ecc_at(location: str, kind: str, counter: str = "NVML_VOLATILE_ECC") -> Callable[[NvmlDriver, NvmlCall], tuple[float, ...]]:
    return _one("nvmlDeviceGetMemoryErrorCounter", kind, counter, f"NVML_MEMORY_LOCATION_{location}")


CALL_METRICS = (
    CallMetric(("utilisation_percent", "memory_utilisation_percent"), _utilisation),
    CallMetric(("memory_used_bytes", "memory_percent"), _memory),
    CallMetric(("temperature_celsius",), _one("nvmlDeviceGetTemperature", "NVML_TEMPERATURE_GPU")),
    CallMetric(("sm_clock_mhz",), _one("nvmlDeviceGetClockInfo", "NVML_CLOCK_SM")),
    CallMetric(("memory_clock_mhz",), _one("nvmlDeviceGetClockInfo", "NVML_CLOCK_MEM")),
    CallMetric(("throttle_reasons",), _throttle),
    CallMetric(("pcie_generation",), _one("nvmlDeviceGetCurrPcieLinkGeneration"), slow=True),
    CallMetric(("pcie_width",), _one("nvmlDeviceGetCurrPcieLinkWidth"), slow=True),
    CallMetric(("processes",), _processes, slow=True),
    CallMetric(("power_watts",), _one("nvmlDeviceGetPowerUsage", factor=1e-3), instead=True),
    CallMetric(("ecc_corrected_per_s",), _ecc(_CORRECTED), FieldKind.COUNTER, instead=True),
    CallMetric(("ecc_uncorrected_per_s",), _ecc(_UNCORRECTED), FieldKind.COUNTER, instead=True),
    CallMetric(("ecc_memory_corrected_per_s",), _ecc_at("DRAM", _CORRECTED), FieldKind.COUNTER, slow=True, instead=True),
    CallMetric(("ecc_memory_uncorrected_per_s",), _ecc_at("DRAM", _UNCORRECTED), FieldKind.COUNTER, slow=True, instead=True),
    CallMetric(("ecc_memory_uncorrected_total",), _ecc_at("DRAM", _UNCORRECTED, "NVML_AGGREGATE_ECC"), slow=True, instead=True),
    CallMetric(("ecc_sram_corrected_per_s",), _ecc_at("SRAM", _CORRECTED), FieldKind.COUNTER, slow=True),
    CallMetric(("ecc_sram_uncorrected_per_s",), _ecc_at("SRAM", _UNCORRECTED), FieldKind.COUNTER, slow=True),
    CallMetric(("ecc_sram_uncorrected_total",), _ecc_at("SRAM", _UNCORRECTED, "NVML_AGGREGATE_ECC"), slow=True),
    CallMetric(("pcie_replays_per_s",), _one("nvmlDeviceGetPcieReplayCounter"), FieldKind.COUNTER, slow=True, instead=True),
)
"""`throttle_reasons` is NVML's bit mask as a float: exact, its bits end below 2^24. `pcie_generation`, `pcie_width`: of the link as it runs now;
an idle GPU lowers its generation by itself. `processes`: those with a CUDA context. ECC by place: an H100 knows none of the fields for it, and tells
memory (DRAM) and all that is on the chip (SRAM: caches, registers, shared memory) by calls."""


class CallReader:
    """The functions of one GPU: one that it does not know is not called again; what changes slowly is repeated from memory."""

    def __init__(self, driver: NvmlDriver, whom: str) -> None:
        self._driver, self._whom = driver, whom
        self._counts: dict[str, tuple[float, float]] = {}
        self._latest: dict[str, float] = {}
        self._unknown: set[str] = set()
        self._told: set[str] = set()
        self.answered = False
        """The last look gave a number."""
        self.problem: Any = None
        """An NVMLError of the last look that is no lack of this GPU or driver."""

    def ask_again(self) -> None:
        """Ask for everything once more, also for what the GPU did not know."""
        self._unknown.clear()
        self._latest.clear()

    def read(self, handle: Any, now: float, *, slow: bool, by_field: Callable[[str], bool]) -> dict[str, float]:
        """Metric → value; `by_field` says which the fields give. Raises NVMLError if the GPU or the driver is gone."""

        def ask(name: str, *arguments: Any) -> Any:
            return self._driver.call(name, self._whom, handle, *arguments)

        self.answered, self.problem = False, None
        found: dict[str, float] = {}
        for metric in CALL_METRICS:
            first = metric.names[0]
            if metric.instead and by_field(first):
                continue
            if metric.slow and not slow and first in self._latest:
                found.update({name: self._latest[name] for name in metric.names})
                continue
            numbers = self._numbers(metric, ask)
            if metric.kind is FieldKind.COUNTER:
                numbers = (self._rate(first, numbers[0], now),)
            found.update(zip(metric.names, numbers, strict=True))
        self._latest = found
        return found

    def _numbers(self, metric: CallMetric, ask: NvmlCall) -> tuple[float, ...]:
        first = metric.names[0]
        if first not in self._unknown:
            try:
                numbers = metric.read(self._driver, ask)
            except self._driver.nvml.NVMLError as error:
                if self._driver.ends_the_look(error):
                    raise
                self._failed(metric, error)
            else:
                self.answered = True
                return numbers
        return (math.nan,) * len(metric.names)

    def _failed(self, metric: CallMetric, error: Exception) -> None:
        first = metric.names[0]
        if self._driver.is_one_of(error, NOT_GIVEN):
            self._unknown.add(first)
        else:
            self.problem = error
        if first not in self._told:
            self._told.add(first)
            log.info("%s has no %s: %s", self._whom, " and ".join(metric.names), error)

    def _rate(self, name: str, count: float, now: float) -> float:
        before, at = self._counts.get(name, (math.nan, now))
        self._counts[name] = (count, now)
        return (count - before) / (now - at) if count >= before and now > at else math.nan

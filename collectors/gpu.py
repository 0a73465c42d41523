"""GPUs of this node, read through NVML (`pynvml` of the package nvidia-ml-py); the parts are in collectors/nvml/.

One call gives all fields of a GPU, each second; what changes slowly is read every `slow_s` and repeated in between. States (remapped rows, links that
are down) stay states, counters become rates, and changes that matter are events at once. A GPU that fell off the bus gives one `gpu.lost` event and
NaN from then on; every `retry_s` the driver is opened anew to look for it. NVML may hang with a broken driver: the agent runs each collector in a
thread of its own, detects that, and names the call by `doing`. Without library, driver or GPU `unavailable` says why, and what to do.
"""

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from eagle_eye.clock import Clock, SystemClock
from eagle_eye.ranges import Seconds
from eagle_eye.types import Event, Kind, Reading

from .agent.unsigned_event import unsigned_event
from .nvml.driver import LOST, NvmlDriver, NvmlUnavailable
from .nvml.mig import MIG_NAMES
from .nvml.watched_gpu import NAMES, SILENT_LOOKS, FoundGpu, WatchedGpu, found_gpus
from .nvml.xid_events import XidEvents

log = logging.getLogger(__name__)


@dataclass
class GpuCollector:
    """Load, power, temperatures, clocks, throttling, ECC, memory repair, PCIe, NVLink, fabric, MIG and Xid events of each GPU."""

    retry_s: Seconds = 60.0
    """Seconds between two attempts to find a library, driver or GPU that is missing, or a GPU that was lost."""
    slow_s: Seconds = 10.0
    """Seconds between two looks at what changes slowly, or takes the driver long: remapped rows, retired pages, errors and state of the PCIe link,
    energy, time throttled by heat or by the hardware, NVLink state, fabric, MIG, processes."""
    nvml: Any = None
    """The module `pynvml`, or a stand-in for it; None imports it when it is first needed."""
    clock: Clock = field(default_factory=SystemClock)

    interval_s: ClassVar[float] = 1.0
    timeout_s: ClassVar[float] = 3.0

    def __post_init__(self) -> None:
        self.unavailable = ""
        self._driver = NvmlDriver(self.nvml)
        self._xids = XidEvents(self._driver)
        self._gpus: list[WatchedGpu] = []
        self._told_lost: dict[str, float] = {}
        """Names of lost GPUs, until they are read again → monotonic time of the loss; also over a driver that is loaded anew."""
        self._had_gpus = False
        self._retry_at = self._slow_at = -math.inf

    @property
    def doing(self) -> str:
        """The call of NVML that has not returned yet, and its GPU; '' between two calls. May be asked by any thread."""
        return self._driver.doing

    def collect(self) -> list[Reading | Event]:
        if not self._gpus and not self._begin():
            return []
        now, monotonic = self.clock.now(), self.clock.monotonic()
        if any(gpu.lost for gpu in self._gpus) and monotonic >= self._retry_at:
            self._look_for_lost(monotonic)
        found: list[Reading | Event] = list(self._xid_events(now))
        slow = monotonic >= self._slow_at
        if slow:
            self._slow_at = monotonic + self.slow_s
        matrix = np.full((len(self._gpus), len(NAMES)), np.nan, np.float32)
        instances: dict[str, tuple[float, ...]] = {}
        for row, gpu in zip(matrix, self._gpus, strict=True):
            if gpu.handle is not None or not gpu.lost:
                found += self._read(gpu, row, instances, slow=slow)
        names = tuple(gpu.name for gpu in self._gpus)
        found.append(Reading(source="gpu", kind=Kind.GPU, entities=names, names=NAMES, matrix=matrix, time=now))
        if instances:
            values = np.array(list(instances.values()), np.float32)
            found.append(Reading(source="mig", kind=Kind.GPU, entities=tuple(instances), names=MIG_NAMES, matrix=values, time=now))
        return found

    def _read(self, gpu: WatchedGpu, row: Any, instances: dict[str, tuple[float, ...]], *, slow: bool) -> Iterator[Event]:
        """Fill in its row and those of its instances; yields what changed. Raises NVMLError if the driver is gone."""
        now, monotonic = self.clock.now(), self.clock.monotonic()
        unasked = gpu.handle is None
        try:
            numbers, changes = gpu.row(monotonic, slow=slow)
            instances |= dict(gpu.instances())
        except self._driver.nvml.NVMLError as error:
            if not self._driver.is_one_of(error, LOST):
                self._forget()
                raise
            yield from self._lost(gpu, now, monotonic, f"is gone: {error}", error)
            return
        if gpu.problem is not None and (gpu.lost or gpu.silent):
            yield from self._lost(gpu, now, monotonic, f"gave nothing but errors in {SILENT_LOOKS} looks: {gpu.problem}", gpu.problem)
            return
        row[:] = numbers
        if gpu.problem is None and gpu.name in self._told_lost:
            yield self._returned(gpu, now, monotonic)
        elif unasked and gpu.handle is not None:
            self._xids.register(gpu.whom, gpu.handle)
        for change in changes:
            yield _event(change.name, gpu, now, f"{gpu.whom}: {change.message}", **change.attributes)

    def _lost(self, gpu: WatchedGpu, now: float, monotonic: float, what: str, reason: object) -> Iterator[Event]:
        """Told once; it is looked for from then on."""
        gpu.handle = None
        if not gpu.lost:
            gpu.lose(monotonic)
            self._told_lost[gpu.name] = monotonic
            yield _event("gpu.lost", gpu, now, f"{gpu.whom} {what}", reason=reason)

    # --- opening the driver

    def _begin(self) -> bool:
        """Find library, driver and GPUs; False if there are none, with the reason in `unavailable`. Raises NVMLError, and NvmlUnavailable
        where there were GPUs before: that they are gone is no state to be silent about."""
        if self.clock.monotonic() < self._retry_at:
            return False
        try:
            self._gpus = [self._watched(found) for found in self._open()]
            reason = "" if self._gpus else "this node has no GPU"
        except NvmlUnavailable as error:
            if self._had_gpus:
                raise
            reason = str(error)
        if reason and reason != self.unavailable:
            log.info("no GPU is watched: %s; looking again every %.0f s", reason, self.retry_s)
        self.unavailable = reason
        self._retry_at = self.clock.monotonic() + self.retry_s
        if reason:
            return False
        self._had_gpus = True
        self._xids.subscribe(self._answering())
        return True

    def _watched(self, found: FoundGpu) -> WatchedGpu:
        gpu, nameless = WatchedGpu(self._driver, found), f"gpu-{found.index}"
        if found.uuid and nameless in self._told_lost:
            self._rename(gpu, nameless)
        return gpu

    def _open(self) -> list[FoundGpu]:
        """Raises NvmlUnavailable, and NVMLError for what is no known lack."""
        self._xids.forget()
        self._driver.open()
        try:
            return found_gpus(self._driver)
        except self._driver.nvml.NVMLError as error:
            raise self._driver.unavailable(error) from error

    def _answering(self) -> Iterator[tuple[str, Any]]:
        return ((gpu.whom, gpu.handle) for gpu in self._gpus if not gpu.lost and gpu.handle is not None)

    # --- lost GPUs

    def _look_for_lost(self, monotonic: float) -> None:
        """Open the driver anew: NVML finds a GPU that came back only then, and one that we still held could not be reset."""
        self._retry_at = monotonic + self.retry_s
        try:
            present = self._open()
        except (NvmlUnavailable, self._driver.nvml.NVMLError):
            self._forget()
            raise
        known = {gpu.name: gpu for gpu in self._gpus}
        for gpu in self._gpus:
            gpu.handle = None
        for found in present:
            if found.uuid:
                self._find(found, known)
        self._xids.subscribe(self._answering())

    def _find(self, found: FoundGpu, known: dict[str, WatchedGpu]) -> None:
        gpu = known.get(found.uuid) or known.get(f"gpu-{found.index}")
        if gpu is None:
            self._gpus.append(self._watched(found))
            return
        gpu.take(found)
        if gpu.was in self._told_lost:
            self._rename(gpu, gpu.was)

    def _rename(self, gpu: WatchedGpu, before: str) -> None:
        gpu.was = before
        self._told_lost[gpu.name] = self._told_lost.pop(before)

    def _returned(self, gpu: WatchedGpu, now: float, monotonic: float) -> Event:
        """It was told lost, and is read."""
        away_s = monotonic - self._told_lost.pop(gpu.name)
        gpu.lost_since = math.nan
        self._xids.register(gpu.whom, gpu.handle)
        return _event("gpu.returned", gpu, now, f"{gpu.whom} is read again", lost_s=f"{away_s:.0f}", was=gpu.was or gpu.name)

    def _forget(self) -> None:
        """The driver is gone: open it anew at the next run; what the agent remembers of counters and states is of the driver before."""
        self._gpus = []
        self._retry_at = -math.inf

    # --- Xid events

    def _xid_events(self, now: float) -> Iterator[Event]:
        for xid in self._xids.poll(list(self._answering())):
            gpu = next((each for each in self._gpus if each.name == xid.uuid), None)
            whom = "an unknown GPU" if gpu is None else gpu.whom
            yield _event("gpu.xid", gpu, now, f"Xid {xid.code} on {whom}", code=xid.code)


def _event(name: str, gpu: WatchedGpu | None, now: float, message: str, **attributes: object) -> Event:
    attributes |= {"index": -1 if gpu is None else gpu.index, "pci": "" if gpu is None else gpu.pci}
    return unsigned_event(name, Kind.GPU, "unknown" if gpu is None else gpu.name, now, message, "", **attributes)

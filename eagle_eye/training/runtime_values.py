"""What Python and torch do beside a step: pauses of the garbage collector, graphs that torch.compile makes anew, memory of the GPU's allocator, model FLOPs utilisation.

Nothing is asked of the GPU. A step costs two comparisons and a look into a dictionary; memory is read once a second.
Utilisation is what share of its GPU's peak a worker's model computes with, by the floating-point operations that a step logs (`flops`).
"""

import gc
import math
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

PAUSE, GRAPHS = "garbage_collection_s", "compiled_graphs"
"""Of each step that has some."""
MEMORY = {
    "allocated_bytes": "gpu_memory_allocated_bytes",
    "reserved_bytes": "gpu_memory_reserved_bytes",
}
"""Name in torch.cuda.memory_stats → ours; what is held now, by all pools together."""
RETRIES, FAILURES = "gpu_memory_retries", "gpu_memory_failures"
"""Since the process began: how often the allocator gave back all that it kept and tried again, and found nothing even then."""
UTILISATION = "mfu_percent"
EVERY_NS = 1_000_000_000
PEAK_VARIABLE = "EAGLE_EYE_PEAK_FLOPS"
"""Variable with the peak of one GPU, for GPUs and precisions that are not in the table."""
PEAKS = {
    "GB300": 2.5e15, "B300": 2.25e15, "GB200": 2.5e15, "B200": 2.25e15, "B100": 1.75e15,
    "GH200": 989e12, "H200 NVL": 835e12, "H200": 989e12, "H100 PCIe": 756e12, "H100 NVL": 835e12, "H100": 989e12, "H800": 989e12, "H20": 148e12,
    "A100": 312e12, "A800": 312e12, "A40": 150e12, "A10G": 70e12, "A10": 125e12, "A30": 165e12, "V100": 125e12, "T4": 65e12,
    "L40S": 362e12, "L40": 181e12, "L4": 121e12,
    "MI355X": 2.5e15, "MI350X": 2.3e15, "MI325X": 1307e12, "MI300X": 1307e12, "MI300A": 981e12, "MI250X": 192e12, "MI210": 181e12,
}  # fmt: skip
"""Part of a GPU's name → its peak in operations a second for dense bfloat16 (float16 where it has none), of the makers' data sheets: the first that fits; of an MI250X one of its two dies, which is a GPU to torch."""


class RuntimeValues:
    """Of this process, into the values of its steps. `column_of`: name → column, negative where there is no more room."""

    def __init__(self, column_of: Callable[[str], int], clock_ns: Callable[[], int]) -> None:
        self._column_of, self._clock = column_of, clock_ns
        self._began = self._paused = 0
        self._next = 0
        self._counters: Mapping[str, Mapping[str, int]] | None = None
        """Of torch.compile; None: it is not used."""
        self._graphs = 0
        self._peak = math.nan
        """Operations a second of this worker's GPU."""

    def watch(self) -> None:
        """Be told of each garbage collection, for the life of the process."""
        gc.callbacks.append(self._collected)

    def take(self, values: dict[int, float], now_ns: int) -> None:
        """Add what there is to tell to a step that ends."""
        if self._paused:
            self._put(values, PAUSE, self._paused / 1e9)
            self._paused = 0
        if now_ns >= self._next:
            self._next = now_ns + EVERY_NS
            self._counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
            self._memory(values)
            if math.isnan(self._peak):
                self._peak = peak_flops(os.environ)
        if self._counters is not None:
            graphs = self._counters["stats"].get("unique_graphs", 0) if "stats" in self._counters else 0
            if graphs > self._graphs:
                self._put(values, GRAPHS, float(graphs - self._graphs))
            self._graphs = graphs

    def utilise(self, values: dict[int, float], flops: float, seconds: float) -> None:
        """Add what share of its GPU's peak a step's model computed with. `flops`: as the script logged them, of this worker."""
        share = utilisation_percent(flops, seconds, self._peak)
        if math.isfinite(share):
            self._put(values, UTILISATION, share)

    def _collected(self, phase: str, _information: object) -> None:
        """By the collector, in whichever thread it runs: all others wait meanwhile."""
        if phase == "start":
            self._began = self._clock()
        elif self._began:
            self._paused += self._clock() - self._began
            self._began = 0

    def _memory(self, values: dict[int, float]) -> None:
        cuda = _cuda_in_use()
        if cuda is None:
            return
        told = cuda.memory_stats_as_nested_dict()
        for name, ours in MEMORY.items():
            if name in told:
                self._put(values, ours, float(told[name]["all"]["current"]))
        for name, ours in (("num_alloc_retries", RETRIES), ("num_ooms", FAILURES)):
            if told.get(name):
                self._put(values, ours, float(told[name]))

    def _put(self, values: dict[int, float], name: str, value: float) -> None:
        column = self._column_of(name)
        if column >= 0:
            values[column] = value


def peak_flops(environment: Mapping[str, str]) -> float:
    """Of the GPU that this process uses now; NaN: unknown. Asks torch for a name alone, and only where CUDA is in use."""
    told = environment.get(PEAK_VARIABLE, "")
    if told:
        return _positive(told)
    cuda = _cuda_in_use()
    return math.nan if cuda is None else peak_of(str(cuda.get_device_name()))


def peak_of(name: str) -> float:
    """By a GPU's name.

    >>> peak_of("NVIDIA H100 80GB HBM3"), peak_of("NVIDIA GeForce GTX 1080")
    (989000000000000.0, nan)
    """
    words = f" {name.replace('-', ' ')} "
    return next((peak for part, peak in PEAKS.items() if f" {part} " in words), math.nan)


def utilisation_percent(flops: float, seconds: float, peak: float) -> float:
    """NaN where one of them is not known."""
    return 100.0 * flops / seconds / peak if seconds > 0.0 and peak > 0.0 else math.nan


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if 0.0 < value < math.inf else math.nan


def _cuda_in_use() -> Any:
    """The module torch.cuda; None where this process does not use it (yet), for a question would begin that."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None

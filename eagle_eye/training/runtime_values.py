"""What Python and torch do beside a step: pauses of the garbage collector, graphs that torch.compile makes anew, memory of the GPU's allocator.

Nothing is asked of the GPU. A step costs two comparisons and a look into a dictionary; memory is read once a second.
"""

import gc
import math
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from .model_flops import peak_flops, utilisation_percent

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
        cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
        if cuda is None or not cuda.is_initialized():
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

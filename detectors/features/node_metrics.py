"""The metrics of each node of a job as one row: its own, and the means of its GPUs'. For detectors that judge all of them together."""

import numpy as np

from eagle_eye.frames import Frame
from eagle_eye.types import Floats, Integers, Kind

GPU_PREFIX = "gpu."
LARGEST = 1e30
"""Of a metric: float32 holds eight orders more."""
CONSTANT = frozenset({
    "processors", "file_descriptors_percent", "clock_offset_s", "clock_synchronised",
    "agent_cpu_percent", "agent_memory_bytes", "spool_records", "spool_age_s", "spool_dropped_per_s",
})  # fmt: skip
"""Metrics that say what a machine is, that drift for days, or that are our agent's: not how the machine does."""
STATES_OF_GPUS = frozenset({
    "ecc_corrected_total", "ecc_uncorrected_total", "ecc_memory_uncorrected_total", "ecc_cache_uncorrected_total", "ecc_registers_uncorrected_total", "ecc_sram_uncorrected_total",
    "remapped_rows", "remapped_rows_uncorrected", "remap_pending", "remap_failed", "retired_pages", "retired_pages_pending",
    "pcie_generation", "pcie_width", "nvlinks_active", "nvlinks_down", "nvlink_worst", "fabric_state", "fabric_healthy",
    "recovery_action", "mig_enabled", "processes",
})  # fmt: skip
"""Metrics that say how a GPU stands. What of them changed is an event; a node would be unusual for ever for one old remapped row."""

MASKS_OF_GPUS = frozenset({"throttle_reasons"})
"""Metrics that are sets of bits: the mean of two of them is a reason that nobody gave. What they hold the clocks down for shows in throttled_*_percent."""


def features(frame: Frame) -> tuple[tuple[str, ...], tuple[str, ...], Floats]:
    """(nodes, metric names, nodes × names) of a tick frame: a node's own metrics and the means of its GPUs."""
    nodes = frame.entities.get(Kind.NODE, ())
    columns = {name: values for name, values in sorted(frame.metrics.get(Kind.NODE, {}).items()) if name not in CONSTANT}
    gpus = frame.entities.get(Kind.GPU, ())
    if gpus and nodes:
        place = {node: index for index, node in enumerate(nodes)}
        home = np.array([place.get(frame.topology.gpus.get(gpu, ""), len(nodes)) for gpu in gpus])
        for name, values in sorted(frame.metrics.get(Kind.GPU, {}).items()):
            if name not in STATES_OF_GPUS | MASKS_OF_GPUS:
                columns[GPU_PREFIX + name] = _means(values, home, len(nodes))
    if not columns:
        return nodes, (), np.zeros((len(nodes), 0), dtype=np.float32)
    return nodes, tuple(columns), np.stack(list(columns.values()), axis=1)


def _means(values: Floats, home: Integers, nodes: int) -> Floats:
    """Mean per node of what was read; NaN where nothing was."""
    read = np.isfinite(values)
    counts = np.bincount(home[read], minlength=nodes + 1)[:nodes]
    sums = np.bincount(home[read], weights=values[read], minlength=nodes + 1)[:nodes]
    means: Floats = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan).astype(np.float32)
    return means

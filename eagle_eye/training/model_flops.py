"""Model FLOPs utilisation: what share of the peak of its GPU a worker's model computes with, by the floating-point operations that a step logs (`flops`).

The peaks are those of the makers' data sheets for dense bfloat16 (float16 where a GPU has no bfloat16), in operations a second.
"""

import math
import sys
from collections.abc import Mapping
from typing import Any

PEAK = "EAGLE_EYE_PEAK_FLOPS"
"""Variable with the peak of one GPU, for GPUs and precisions that are not in the table."""
PEAKS = {
    "GB300": 2.5e15, "B300": 2.25e15, "GB200": 2.5e15, "B200": 2.25e15, "B100": 1.75e15,
    "GH200": 989e12, "H200 NVL": 835e12, "H200": 989e12, "H100 PCIe": 756e12, "H100 NVL": 835e12, "H100": 989e12, "H800": 989e12, "H20": 148e12,
    "A100": 312e12, "A800": 312e12, "A40": 150e12, "A10G": 70e12, "A10": 125e12, "A30": 165e12, "V100": 125e12, "T4": 65e12,
    "L40S": 362e12, "L40": 181e12, "L4": 121e12,
    "MI355X": 2.5e15, "MI350X": 2.3e15, "MI325X": 1307e12, "MI300X": 1307e12, "MI300A": 981e12, "MI250X": 192e12, "MI210": 181e12,
}  # fmt: skip
"""Part of a GPU's name → peak, the first that fits; of an MI250X one of its two dies, which is a GPU to torch."""


def peak_flops(environment: Mapping[str, str]) -> float:
    """Of the GPU that this process uses now; NaN: unknown. Asks torch for a name alone, and only where CUDA is in use."""
    told = environment.get(PEAK, "")
    if told:
        return _positive(told)
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return math.nan
    return peak_of(str(cuda.get_device_name()))


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

"""The eight physical numbers of the performance model, with their units, and what a data sheet lets one expect."""

from dataclasses import astuple, dataclass, fields
from typing import Self

import numpy as np
from numpy.typing import NDArray

from .hardware import Hardware


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """What a cluster achieves of what its data sheet promises."""

    compute_share: float
    """Of the peak FLOP/s that a very large matrix product reaches; 1."""
    half_width: float
    """Width of a matrix (hidden / sqrt(tensor parallel)) at which a product reaches half of that; elements."""
    memory_bytes_s: float
    """At which norms, dropout, softmax and the optimizer stream; bytes/s."""
    link_bytes_s: float
    """Of a ring all-reduce inside a node, per GPU; bytes/s."""
    network_bytes_s: float
    """A GPU's share of what its node sends to others; bytes/s."""
    latency_s: float
    """Of one collective per doubling of its ranks; seconds."""
    kernel_s: float
    """That a layer's pass on the GPU takes beside its work, however large: its kernels start and run out; seconds."""
    launch_s: float
    """Least time of one layer's pass, however little there is to compute: the host launches its kernels; seconds."""

    @classmethod
    def expected(cls, hardware: Hardware) -> Self:
        """Before anything was measured: what public measurements reach of their data sheets.

        half_width, kernel_s and launch_s were set by looking at vTrain's public iterations of Megatron on A100.
        """
        return cls(
            compute_share=0.75,
            half_width=200.0,
            memory_bytes_s=0.75 * hardware.memory_bytes_s,
            link_bytes_s=0.7 * hardware.link_bytes_s,
            network_bytes_s=1.0 * hardware.network_bytes_s,
            latency_s=20e-6,
            kernel_s=0.2e-3,
            launch_s=0.9e-3,
        )

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> Self:
        """From `values()`."""
        return cls(**{field.name: float(value) for field, value in zip(fields(cls), values, strict=True)})

    def values(self) -> NDArray[np.float64]:
        """(8,) in the order of the fields."""
        return np.array(astuple(self))


UNITS = {
    "compute_share": "of peak FLOP/s",
    "half_width": "elements",
    "memory_bytes_s": "bytes/s",
    "link_bytes_s": "bytes/s",
    "network_bytes_s": "bytes/s",
    "latency_s": "s",
    "kernel_s": "s",
    "launch_s": "s",
}
UNCERTAINTY = np.array([0.15, 1.0, 0.4, 0.4, 0.4, 0.7, 0.6, 0.4])
"""Standard deviation of each's logarithm around what is expected: how far a few measurements may move it."""

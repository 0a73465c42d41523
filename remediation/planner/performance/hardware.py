"""What the data sheet says of a GPU and its surroundings: where the calibration starts from, and what memory there is."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from eagle_eye.errors import ConfigError

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """Nodes of one kind."""

    name: str
    peak_flops: float
    """Dense half-precision matrix FLOP/s of one GPU."""
    memory_bytes: float
    """Of one GPU."""
    memory_bytes_s: float
    """Bandwidth of its memory, bytes/s."""
    link_bytes_s: float
    """To its neighbours in the node, bytes/s in one direction."""
    network_bytes_s: float
    """Its share of the node's network, bytes/s in one direction."""
    gpus_per_node: int = 8

    def __post_init__(self) -> None:
        for field in ("peak_flops", "memory_bytes", "memory_bytes_s", "link_bytes_s", "network_bytes_s", "gpus_per_node"):
            if not getattr(self, field) > 0:
                raise ConfigError(f"hardware {self.name!r}: {field} is {getattr(self, field)}; it must be above zero")


def _kind(name: str, teraflops: float, gib: float, memory: float, link: float, network: float) -> Hardware:
    """memory, link and network in GB/s."""
    return Hardware(
        name=name, peak_flops=teraflops * 1e12, memory_bytes=gib * GIB, memory_bytes_s=memory * 1e9, link_bytes_s=link * 1e9, network_bytes_s=network * 1e9
    )


DATA_SHEETS: Mapping[str, Hardware] = MappingProxyType(
    {
        hardware.name: hardware
        for hardware in (
            _kind("V100-16GB", 125, 16, 900, 150, 1.25),
            _kind("V100-32GB", 125, 32, 900, 150, 12.5),
            _kind("A40", 150, 48, 696, 16, 12.5),
            _kind("A100-40GB", 312, 40, 1555, 300, 25),
            _kind("A100-80GB", 312, 80, 2039, 300, 25),
            _kind("A800", 312, 80, 2039, 200, 12.5),
            _kind("H800", 989, 80, 3350, 200, 50),
            _kind("H100", 989, 80, 3350, 450, 50),
            _kind("H200", 989, 141, 4800, 450, 50),
            _kind("B200", 2250, 180, 8000, 900, 50),
        )
    }
)
"""NVIDIA's data sheets: dense half precision, SXM where there is one, NVLink in one direction. The network is the usual
one of such nodes (one adapter of 200 or 400 Gb/s a GPU; 12.5: four of 200 Gb/s for eight); give your own where it differs."""


def hardware_of(name: str) -> Hardware:
    """By name. Raises ConfigError that lists the names."""
    if name not in DATA_SHEETS:
        raise ConfigError(f"no GPU is known as {name!r}; known are {', '.join(DATA_SHEETS)}")
    return DATA_SHEETS[name]

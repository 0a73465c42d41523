"""Something about a GPU changed: an event of it, before the collector adds GPU and time."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class GpuChange:
    """One change that is told at once."""

    name: str
    """Of the event, such as `gpu.nvlink_down`."""
    message: str
    """What happened, without the name of the GPU."""
    attributes: Mapping[str, object] = field(default_factory=dict)

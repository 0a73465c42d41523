"""What the demo breaks, in which order, and what a right answer is."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoFault:
    """One row of the demo."""

    kind: str
    """A drill of eagle_eye/app/drills.py."""
    name: str
    culprit: Literal["worker", "node", "nobody"]
    causes: tuple[str, ...]
    """Words of the diagnosis that are right; empty: there must be no incident that blames anybody."""
    target: Literal["any", "coordinator", "other"] = "any"
    """Which node it hits, where it hits a node."""


FAULTS = (
    DemoFault(kind="kill", name="worker killed (kill -9)", culprit="worker", causes=("worker killed",)),
    DemoFault(kind="stop", name="worker stopped (SIGSTOP)", culprit="worker", causes=("worker stopped",)),
    DemoFault(kind="hang", name="hang in Python, GIL free", culprit="worker", causes=("python hang",)),
    DemoFault(kind="hang-gil", name="hang in Python, GIL held", culprit="worker", causes=("python hang",)),
    DemoFault(kind="exception", name="CUDA-like error", culprit="worker", causes=("cuda error", "illegal memory access")),
    DemoFault(kind="nan", name="NaN in a live parameter", culprit="worker", causes=("loss not finite",)),
    DemoFault(kind="stream", name="stream stopped", culprit="nobody", causes=()),
    DemoFault(kind="slow-node", name="node slowed down", culprit="node", causes=("slow node",)),
    DemoFault(kind="node", name="node killed, not the coordinator's", culprit="node", causes=("node lost",), target="other"),
    DemoFault(kind="node", name="node killed, the coordinator's", culprit="node", causes=("node lost",), target="coordinator"),
)
"""In this order: what costs a node comes last, since it has to be brought back each time."""

"""What the demo runs: its configuration, its cluster and job, and the faults that it injects in their order."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from eagle_eye.errors import LaunchError

CONFIG = """\
# The demo's configuration. What differs from the defaults is the mode, the limits that ten faults in two minutes
# would otherwise hit, and times that fit a job whose step takes a tenth of a second.
[server]
listen = "127.0.0.1:{port}"
http = "127.0.0.1:{http}"
lease_s = 1.5

[history]
file_s = 5.0

[engine]
mode = "auto"
relapse_s = 6.0
verify_s = 30.0

[guards.blast_radius]
nodes = 10
share = 1.0

[guards.cooldown]
job_s = 0.0
node_s = 0.0
"""

NODES = ("node-a", "node-b")
WORKERS_PER_NODE = 2
RESTARTS = 40
JOB = "demo/gpt"
MODEL = ("--micro-batches", "8", "--checkpoint-every", "10", "--evaluate-every", "50")


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoFault:
    """One row of the demo."""

    kind: str
    """A drill of eagle_eye/app/drills.py."""
    name: str
    culprit: Literal["worker", "node", "none"]
    causes: tuple[str, ...]
    """Causes that are right; empty: there must be no incident with a culprit."""
    target: Literal["any", "coordinator", "other"] = "any"
    """Which node it hits, where it hits a node."""


FAULTS = (
    DemoFault(kind="kill", name="worker killed (kill -9)", culprit="worker", causes=("worker killed",)),
    DemoFault(kind="stop", name="worker stopped (SIGSTOP)", culprit="worker", causes=("worker stopped",)),
    DemoFault(kind="hang", name="hang in Python, GIL free", culprit="worker", causes=("python hang",)),
    DemoFault(kind="hang-gil", name="hang in Python, GIL held", culprit="worker", causes=("python hang",)),
    DemoFault(kind="exception", name="CUDA-like error", culprit="worker", causes=("cuda error", "illegal memory access")),
    DemoFault(kind="nan", name="NaN in a live parameter", culprit="worker", causes=("loss not finite",)),
    DemoFault(kind="stream", name="stream stopped", culprit="none", causes=()),
    DemoFault(kind="slow-node", name="node slowed down", culprit="node", causes=("slow node",)),
    DemoFault(kind="node", name="node killed, not the coordinator's", culprit="node", causes=("node lost",), target="other"),
    DemoFault(kind="node", name="node killed, the coordinator's", culprit="node", causes=("node lost",), target="coordinator"),
)
"""In this order: what costs a node comes last, since it has to be brought back each time."""


def script() -> Path:
    """The training script: the file in examples/, unchanged. Raises LaunchError."""
    here = Path(__file__).resolve().parents[3] / "examples" / "train_gpt.py"
    if not here.is_file():
        raise LaunchError(f"{here} is missing: run the demo from a checkout of the project")
    return here

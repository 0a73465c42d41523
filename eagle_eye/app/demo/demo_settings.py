"""The demo's own limits: printed before it begins, so that nobody has to guess what was made easy."""

from pathlib import Path

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


def script() -> Path:
    """The training script: the file in examples/, unchanged. Raises LaunchError."""
    here = Path(__file__).resolve().parents[3] / "examples" / "train_gpt.py"
    if not here.is_file():
        raise LaunchError(f"{here} is missing: run the demo from a checkout of the project")
    return here

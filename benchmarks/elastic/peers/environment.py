"""Environments of their own for peers whose requirements are not ours: made once, kept under benchmarks/.environments."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".environments"
TORCHFT = "torchft==0.2.0"


def environment(requirement: str) -> Path:
    """The folder of programs of an environment with this pinned package and the torch that we use ourselves."""
    place = FOLDER / requirement.replace("==", "-")
    ready = place / ".ready"
    torch = f"torch=={version('torch').partition('+')[0]}"
    if not ready.exists() or ready.read_text() != torch:
        print(f"setting up {place.name} with {torch} (once; about a minute)", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True)
        words = ["-m", "pip", "install", "-q", "--disable-pip-version-check", torch, requirement]
        done = subprocess.run([str(place / "bin" / "python"), *words], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{requirement} cannot be installed beside {torch}:\n{done.stderr[-2000:]}")
        ready.write_text(torch)
    return place / "bin"

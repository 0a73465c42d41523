"""Another user of this machine: a process of `nobody` that runs a piece of Python. Needs root; tests that use it are left out elsewhere."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

USER = 65_534
ROOT = Path(__file__).parents[2]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may run a process as another user")
BECOME = f"""
import os
os.setgroups([])
os.setresgid({USER}, {USER}, {USER})
os.setresuid({USER}, {USER}, {USER})
"""


def as_other_user(imports: str, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Import as root (the interpreter may lie where `nobody` may not look), then run `code` as `nobody`; never raises for what it does."""
    command = [sys.executable, "-c", f"import sys, socket, encodings.idna, concurrent.futures.thread\n{imports}\n{BECOME}\n{code}", *arguments]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)


@contextlib.contextmanager
def sleeping_process() -> Iterator[int]:
    """Pid of a process of `nobody` that does nothing."""
    process = subprocess.Popen(["sleep", "600"], user=USER, group=USER, extra_groups=[])
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()

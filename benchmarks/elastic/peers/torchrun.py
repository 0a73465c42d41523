"""torchrun, as good as it gets: checkpoints of each step in memory, and the fix without which it does not come back."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from benchmarks.elastic.commits import FOLDER, Commits

ROOT = Path(__file__).parents[3]
FAST_MONITOR_S = "0.1"
"""Seconds between its looks at the workers, the shipped value."""


class Torchrun:
    """One `torchrun --standalone --max-restarts` with all workers."""

    def __init__(self, folder: Path, workers: int, timeout_s: float = 1800.0) -> None:
        self.name = "torchrun" if timeout_s >= 1800 else f"torchrun, time-out of collectives {timeout_s:g} s"
        self.workers = workers
        self.commits = Commits(folder / "commits")
        self._log = (folder / "torchrun.log").open("wb")
        words = ["--standalone", "--nproc-per-node", str(workers), "--max-restarts", "1000", "--monitor-interval", FAST_MONITOR_S]
        script = ["-m", "benchmarks.elastic.peers.torchrun_worker", "--checkpoints", str(folder), "--timeout", str(timeout_s)]
        environment = os.environ | {
            # without this torch 2.13 reads stale addresses after a restart and burns them all
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
            "PYTHONPATH": str(ROOT), FOLDER: str(self.commits.folder),
        }  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *words, *script], stdout=self._log, stderr=self._log, env=environment
        )

    def pids(self) -> dict[str, int]:
        running = children(self._process.pid)
        return {commit.worker: commit.pid for commit in self.commits.all if commit.pid in running}

    def failed(self) -> str:
        return "" if self._process.poll() is None else f"torchrun ended with {self._process.returncode}"

    def repair(self, worker: str) -> None:
        """It restarts all of them by itself."""

    def end(self) -> None:
        for pid in children(self._process.pid):
            os.kill(pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        self._log.close()


def children(pid: int) -> list[int]:
    """Direct children of a process."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []

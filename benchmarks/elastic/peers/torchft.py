"""torchft: a lighthouse, and one replica a worker; with its shipped timings, or with the shortest that hold."""

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.elastic.commits import FOLDER, Commits
from benchmarks.elastic.peers.environment import TORCHFT, environment
from benchmarks.elastic.peers.torchrun import ROOT
from eagle_eye.ports import free_port

TUNED = ("--heartbeat_timeout_ms", "1000", "--join_timeout_ms", "1000")
TUNED_TIMEOUT_S = 5


class Torchft:
    """Replicas that a lighthouse makes into a quorum, step by step."""

    def __init__(self, folder: Path, workers: int, tuned: bool, reduction: str = "ddp") -> None:
        wrapper = {"ddp": "", "allreduce": ", one all-reduce instead of its DDP"}[reduction]
        self.name = f"torchft {'tuned' if tuned else 'default'}{wrapper}"
        self.workers = workers
        self.commits = Commits(folder / "commits")
        self._folder, self._tuned, self._reduction = folder, tuned, reduction
        self._programs = environment(TORCHFT)
        self._port = free_port()
        words = [str(self._programs / "torchft_lighthouse"), "--min_replicas", "1", "--bind", f"127.0.0.1:{self._port}"]
        self._lighthouse = self._popen("lighthouse", [*words, *(TUNED if tuned else ())])
        self._replicas: dict[str, subprocess.Popen[bytes]] = {}
        for slot in range(workers):
            self.repair(str(slot))

    def repair(self, worker: str) -> None:
        """Start a replica in this slot."""
        if (old := self._replicas.get(worker)) is not None:
            old.kill()
            old.wait()
        words = [str(self._programs / "python"), "-m", "benchmarks.elastic.peers.torchft_worker", "--slot", worker]
        words += ["--workers", str(self.workers), "--lighthouse", f"http://127.0.0.1:{self._port}", "--reduction", self._reduction]
        self._replicas[worker] = self._popen(worker, [*words, *(("--timeout", str(TUNED_TIMEOUT_S)) if self._tuned else ())])

    def _popen(self, name: str, words: Sequence[str]) -> subprocess.Popen[bytes]:
        environment = os.environ | {
            "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT), FOLDER: str(self.commits.folder),
            "PYTHONWARNINGS": "ignore",
        }  # fmt: skip
        with (self._folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(words, stdout=log, stderr=log, env=environment)

    def pids(self) -> dict[str, int]:
        return {slot: process.pid for slot, process in self._replicas.items() if process.poll() is None}

    def failed(self) -> str:
        """Whether replicas have died that nobody has killed."""
        ended = {slot: process.poll() for slot, process in self._replicas.items()}
        dead = [slot for slot, code in ended.items() if code not in (None, -signal.SIGKILL)]
        return "; ".join(f"replica {slot}: {self._last_words(slot)}" for slot in dead)

    def _last_words(self, slot: str) -> str:
        lines = (self._folder / f"{slot}.log").read_text(errors="replace").strip().splitlines()
        return lines[-1][:120] if lines else "no word"

    def end(self) -> None:
        for process in (*self._replicas.values(), self._lighthouse):
            process.kill()
            process.wait()

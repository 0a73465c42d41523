"""A node with eight workers at work, as an agent sees it: job file, rings, process groups and logs. The processes themselves sleep."""

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from eagle_eye.clock import Clock
from eagle_eye.training import group_progress
from eagle_eye.training.messages import PHASES
from eagle_eye.training.ring_buffer import BEGAN, MARKED, MARKS, PHASE, RUNNING, STEP, RingWriter, start_time_of

NODE, RUN = "node-a", "run-1"
JOB = f"bench/agent/{RUN}"
WORKERS = 8
TENTH_S = 0.1
LOG_BYTES = 1_000_000
"""A second, all logs together."""
LARGEST_LOG = 8 << 20
"""Bytes of a log before it is rotated."""
GROUPS = {"default_pg": 8, "mesh_dp": 2, "mesh_pp": 2, "mesh_tp": 2, "mesh_cp": 1, "mesh_ep": 2, "mesh_dp_pp": 4, "world_gloo": 8}
"""Description of a process group → its size."""
STEP_S = dict(zip(PHASES, (0.002, 0.03, 0.05, 0.01), strict=False))
ERROR_EVERY = 300
"""Tenths between two errors in a log."""


@dataclass
class BusyNode:
    """Writes what the workers of a node write, a tenth of a second at a time."""

    folder: Path
    clock: Clock
    tenths: int = 0
    _processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    _rings: list[RingWriter] = field(default_factory=list)
    _columns: dict[int, float] = field(default_factory=dict)

    def start(self) -> None:
        """Start the processes and register them as a launcher does."""
        (self.folder / "jobs").mkdir(parents=True)
        self._processes = [subprocess.Popen(["sleep", "infinity"]) for _ in range(WORKERS)]
        offset_ns = int((self.clock.now() - self.clock.monotonic()) * 1e9)
        for rank, process in enumerate(self._processes):
            self._rings.append(RingWriter.create(self._path(rank, "ring"), pid=process.pid, epoch=1, worker=_worker(rank), offset_ns=offset_ns))
        ring = self._rings[0]
        self._columns = {ring.column("step_s"): TENTH_S, ring.column("loss"): 2.5, ring.column("tokens"): 8192.0}
        self._columns |= {ring.column(f"{phase}_s"): seconds for phase, seconds in STEP_S.items()}
        self.register()

    def register(self) -> None:
        """Write the job file."""
        workers = [
            {
                "worker": _worker(rank), "slot": rank, "rank": rank, "pid": process.pid, "start_time": start_time_of(process.pid), "epoch": 1,
                "ring": str(self._path(rank, "ring")), "socket": str(self._path(rank, "sock")), "log": str(self._path(rank, "log")),
            }
            for rank, process in enumerate(self._processes)
        ]  # fmt: skip
        body = {"version": 1, "job": JOB, "run": RUN, "node": NODE, "epoch": 1, "launcher_pid": self._processes[0].pid, "workers": workers}
        (self.folder / "jobs" / f"{RUN}.json").write_bytes(msgspec.json.encode(body))

    def tenth(self) -> None:
        """A step of each worker, its share of the logs, and once a second its process groups."""
        now_ns = int(self.clock.monotonic() * 1e9)
        for rank, ring in enumerate(self._rings):
            _step(ring, self.tenths, now_ns, self._columns)
            self._log(rank)
            if self.tenths % 10 == rank:
                self._write_groups(rank, now_ns)
        self.tenths += 1

    def stop(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.wait()
        for ring in self._rings:
            ring.close()

    def _path(self, rank: int, kind: str) -> Path:
        return self.folder / f"{rank}.{kind}"

    def _log(self, rank: int) -> None:
        path = self._path(rank, "log")
        line = f"[rank{rank}]: step {self.tenths} | loss 2.{self.tenths % 1000:03d} | lr 3.0e-04 | 81,920 tokens/s | 412.3 TFLOP/s | {'.' * 40}\n"
        text = line * (int(LOG_BYTES * TENTH_S) // WORKERS // len(line))
        if self.tenths % ERROR_EVERY == ERROR_EVERY - 1:
            text += f"[rank{rank}]: RuntimeError: CUDA error: an illegal memory access was encountered, in step {self.tenths}\n"
        with path.open("a") as file:
            file.write(text)
            size = file.tell()
        if size > LARGEST_LOG:
            path.replace(path.with_suffix(".log.1"))

    def _write_groups(self, rank: int, now_ns: int) -> None:
        groups = [
            {
                "name": str(number), "description": description, "position": rank % size, "size": size, "members": f"{rank // size:012x}",
                "backends": {"nccl": {"begun": self.tenths * 12, "over": self.tenths * 12 - rank % 2, "pending_ns": rank % 2 * 1_000_000}},
            }
            for number, (description, size) in enumerate(GROUPS.items())
        ]  # fmt: skip
        path = Path(group_progress.path_beside(str(self._path(rank, "sock"))))
        new = path.with_suffix(".new")
        new.write_text(json.dumps({"version": 1, "pid": self._processes[rank].pid, "monotonic_ns": now_ns, "groups": groups}))
        new.replace(path)


def run_in_real_time(node: BusyNode, over: Callable[[], bool]) -> None:
    """Ten times a second until `over` says so."""
    next_at = node.clock.monotonic()
    while not over():
        node.tenth()
        next_at += TENTH_S
        node.clock.sleep(max(0.0, next_at - node.clock.monotonic()))


def _worker(rank: int) -> str:
    return f"{RUN}/{NODE}/{rank}"


def _step(ring: RingWriter, number: int, now_ns: int, columns: dict[int, float]) -> None:
    ring.now[MARKS] += len(STEP_S) + 1
    ring.now[STEP] = number
    ring.now[BEGAN] = ring.now[MARKED] = now_ns
    ring.now[PHASE] = 0
    ring.now[RUNNING] = max(1, ring.now[MARKS])
    ring.append(number, now_ns, columns)

"""`jobs/<run>.json` in the run directory: the only thing that agent and launcher have in common."""

import os
from pathlib import Path

import msgspec

from eagle_eye.training import atomic_file
from eagle_eye.training.ring_buffer import start_time_of
from remediation.launcher.worker.worker_process import Worker

VERSION = 1


class JobFile:
    """Writes the file whole at each change, and removes it at the end."""

    def __init__(self, run_dir: Path, job: str, node: str, pid: int, checkpoints: Path | None = None) -> None:
        """`checkpoints`: where the job's checkpoints lie, whose storage the agent then watches."""
        self._checkpoints = str(checkpoints.resolve()) if checkpoints is not None else ""
        self._job, self._node, self._pid = job, node, pid
        self._run = job.rsplit("/", 1)[-1]
        self.path = run_dir / "jobs" / f"{self._run}.json"

    def write(self, epoch: int, workers: tuple[Worker, ...], state: str = "running") -> None:
        """Say which processes are which worker now."""
        body = {
            "version": VERSION, "job": self._job, "run": self._run, "node": self._node, "epoch": epoch,
            "launcher_pid": self._pid, "launcher_start_time": start_time_of(self._pid),
            "workers": [_words(worker) for worker in workers], "checkpoints": self._checkpoints, "state": state,
        }  # fmt: skip
        self.path.parent.mkdir(parents=True, exist_ok=True)
        content = msgspec.json.encode(body)
        try:
            atomic_file.replace(self.path, content, durable=False)
        except PermissionError:  # in a directory of several users another one has taken the name: the agent knows ours by the user id
            self.path = self.path.with_name(f"{self._run}.{os.geteuid()}.json")
            atomic_file.replace(self.path, content, durable=False)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


def _words(worker: Worker) -> dict[str, object]:
    return {
        "worker": worker.name, "slot": worker.place.local_rank, "rank": worker.place.rank, "pid": worker.pid,
        "start_time": worker.start_time, "ring": str(worker.ring), "socket": str(worker.socket), "log": str(worker.log), "epoch": worker.epoch, "born": worker.born,
    }  # fmt: skip

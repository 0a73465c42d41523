"""`jobs/<run>.json` in the run directory: the only thing that agent and launcher have in common."""

import asyncio
import contextlib
import logging
import os
from pathlib import Path

import msgspec

from eagle_eye.training import atomic_file
from eagle_eye.training.object_path import StoragePath
from eagle_eye.training.ring_buffer import start_time_of
from eagle_eye.writable_text import writable
from remediation.launcher.worker.worker_process import Worker

log = logging.getLogger(__name__)

VERSION = 1
RETRY_S = 5.0


class JobFile:
    """Writes the file whole at each change, and removes it at the end."""

    def __init__(self, run_dir: Path, job: str, node: str, pid: int, checkpoints: StoragePath | None = None) -> None:
        """`checkpoints`: where the job's checkpoints lie, whose storage the agent then watches: that of a directory."""
        self._checkpoints = str(checkpoints.resolve()) if isinstance(checkpoints, Path) else ""
        self._job, self._node, self._pid = job, node, pid
        self._run = job.rsplit("/", 1)[-1]
        self.path = run_dir / "jobs" / f"{self._run}.json"
        self._content: bytes | None = None
        """What it is to hold; None: it is to be none."""
        self._told = False
        """It was said that it cannot be written."""

    def write(self, epoch: int, workers: tuple[Worker, ...], state: str = "running") -> None:
        """Say which processes are which worker now. Where that cannot be written the agent knows less, and the workers go on."""
        body = {
            "version": VERSION, "job": self._job, "run": self._run, "node": self._node, "epoch": epoch,
            "launcher_pid": self._pid, "launcher_start_time": start_time_of(self._pid),
            "workers": [_words(worker) for worker in workers], "checkpoints": self._checkpoints, "state": state,
        }  # fmt: skip
        self._put(msgspec.json.encode(writable(body)))

    async def keep(self) -> None:
        """Write again what could not be written, or is there no more; until cancelled."""
        while True:
            await asyncio.sleep(RETRY_S)
            if self._content is not None and (self._told or not self.path.exists()):
                self._put(self._content)

    def _put(self, content: bytes) -> None:
        self._content = content
        try:
            self._write(content)
            self._told = False
        except OSError as error:
            if not self._told:
                log.warning("%s cannot be written, so that the agent of this node does not see the job: %s; it is tried again", self.path, error)
            self._told = True

    def _write(self, content: bytes) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            atomic_file.replace(self.path, content, durable=False)
        except PermissionError:  # in a directory of several users another one has taken the name: the agent knows ours by the user id
            if not _is_of_another(self.path):  # it is read-only for now: under a second name the run would be there twice
                raise
            self.path = self.path.with_name(f"{self._run}.{os.geteuid()}.json")
            atomic_file.replace(self.path, content, durable=False)

    def remove(self) -> None:
        self._content = None
        with contextlib.suppress(OSError):  # the agent sees that the launcher is gone
            self.path.unlink(missing_ok=True)


def _is_of_another(path: Path) -> bool:
    try:
        return path.lstat().st_uid != os.geteuid()
    except OSError:
        return False


def _words(worker: Worker) -> dict[str, object]:
    return {
        "worker": worker.name, "slot": worker.place.local_rank, "rank": worker.place.rank, "pid": worker.pid,
        "start_time": worker.start_time, "ring": str(worker.ring), "socket": str(worker.socket), "log": str(worker.log), "log_from": worker.log_from,
        "epoch": worker.epoch, "born": worker.born,
    }  # fmt: skip

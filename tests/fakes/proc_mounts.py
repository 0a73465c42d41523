"""A small /proc of processes with mounts, open files and a mount namespace."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MINE = "mnt:[1]"
DISK = ("/", "ext4", "/dev/vda", "rw")
NFS = ("/mnt/data", "nfs4", "server:/data", "rw")


@dataclass
class ProcMounts:
    """`root` is what a collector gets for /proc; `run_dir` for its run directory."""

    root: Path
    run_dir: Path

    def __post_init__(self) -> None:
        self.mounts("self", DISK)

    def mounts(self, pid: int | str, *mounts: tuple[str, str, str, str], namespace: str = MINE) -> None:
        """Each as (mount point, type, source, options); spaces in names as the kernel writes them."""
        folder = self.root / str(pid)
        (folder / "ns").mkdir(parents=True, exist_ok=True)
        lines = [f"{25 + index} 1 8:{index} / {point} {options} shared:1 - {kind} {source} rw" for index, (point, kind, source, options) in enumerate(mounts)]
        (folder / "mountinfo").write_text("\n".join(lines) + "\n")
        (folder / "ns" / "mnt").unlink(missing_ok=True)
        (folder / "ns" / "mnt").symlink_to(namespace)

    def worker(self, pid: int, *mounts: tuple[str, str, str, str], cwd: str = "/", files: Sequence[str] = (), namespace: str = MINE) -> None:
        """A process with a working directory and open files; its mounts are also ours if it is in our namespace."""
        self.mounts(pid, *mounts, namespace=namespace)
        if namespace == MINE:
            self.mounts("self", *mounts)
        (self.root / str(pid) / "cwd").unlink(missing_ok=True)
        (self.root / str(pid) / "cwd").symlink_to(cwd)
        (self.root / str(pid) / "fd").mkdir(exist_ok=True)
        for number, path in enumerate(files):
            (self.root / str(pid) / "fd" / str(number)).symlink_to(path)

    def job(self, *pids: int, run: str = "r1", checkpoints: str = "", state: str = "running") -> str:
        """The job file of a launcher. Returns the job's name."""
        workers = [{"worker": f"{run}/n1/{slot}", "slot": slot, "rank": slot, "pid": pid} for slot, pid in enumerate(pids)]
        body = {"version": 1, "job": f"team/gpt/{run}", "run": run, "node": "n1", "workers": workers, "checkpoints": checkpoints, "state": state}
        (self.run_dir / "jobs").mkdir(parents=True, exist_ok=True)
        (self.run_dir / "jobs" / f"{run}.json").write_text(json.dumps(body))
        return f"team/gpt/{run}"

"""The files in which the kernel tells of the memory of a cgroup, v1 and v2, in a temporary folder."""

from dataclasses import dataclass, field
from pathlib import Path

from eagle_eye.clock import FakeClock
from remediation.launcher.worker.memory_cgroup import OomKill, OomWatch

PID = 4711
GB = 1 << 30


@dataclass
class Kernel:
    """/proc and one mounted hierarchy: the cgroup /pod of a node with a limit, and /pod/job within it without one."""

    home: Path
    version: int
    path: str = "/pod/job"
    root: str = "/"
    clock: FakeClock = field(default_factory=lambda: FakeClock(1000.0))

    def __post_init__(self) -> None:
        kind, options = ("cgroup2", "rw") if self.version == 2 else ("cgroup", "rw,memory")
        self.put("proc/self/mountinfo", f"30 1 0:1 / / rw - ext4 /dev/a rw\n35 31 0:32 {self.root} {self.mount} rw,relatime - {kind} {kind} {options}\n")
        self.member(PID)
        for name in ("pod/job", "pod"):
            self.limit(name, None)
            self.count(name)

    @property
    def mount(self) -> Path:
        return self.home / "sys"

    def put(self, file: str, text: str) -> None:
        path = self.home / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def member(self, pid: int) -> None:
        self.put(f"proc/{pid}/cgroup", f"0::{self.path}\n" if self.version == 2 else f"11:cpu:/\n4:memory:{self.path}\n0::/\n")

    def limit(self, name: str, limit: int | None, peak: int = GB) -> None:
        if self.version == 2:
            self.put(f"sys/{name}/memory.max", "max\n" if limit is None else f"{limit}\n")
            self.put(f"sys/{name}/memory.peak", f"{peak}\n")
        else:
            self.put(f"sys/{name}/memory.limit_in_bytes", f"{(1 << 63) - 4096 if limit is None else limit}\n")
            self.put(f"sys/{name}/memory.max_usage_in_bytes", f"{peak}\n")

    def explain(self, watch: OomWatch, pid: int = PID) -> OomKill | None:
        """A moment after what was counted."""
        self.clock.advance(0.01)
        return watch.explain(pid)

    def count(self, name: str, kills: int = 0, hits: int = 0) -> None:
        if self.version == 2:
            self.put(f"sys/{name}/memory.events", f"low 0\nhigh 0\nmax {hits * 7}\noom {hits}\noom_kill {kills}\n")
        else:
            self.put(f"sys/{name}/memory.oom_control", f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n")
            self.put(f"sys/{name}/memory.failcnt", f"{hits}\n")

    def watch(self) -> OomWatch:
        return OomWatch(self.home / "proc", self.clock.monotonic)

"""The memory limit that a worker runs under; files of cgroup v1 and v2 in a temporary folder."""

import math
from dataclasses import dataclass
from pathlib import Path

import pytest

from collectors.worker.memory_limit import LOOK_S, UNKNOWN, MemoryLimit

PID = 4711
GIB = 1 << 30


@dataclass
class Kernel:
    """/proc and one mounted hierarchy: the cgroup /pod of a node, and /pod/job within it; neither has a limit at first."""

    home: Path
    version: int

    def __post_init__(self) -> None:
        kind, options = ("cgroup2", "rw") if self.version == 2 else ("cgroup", "rw,memory")
        self.put("proc/self/mountinfo", f"30 1 0:1 / / rw - ext4 /dev/a rw\n35 31 0:32 / {self.home / 'sys'} rw - {kind} {kind} {options}\n")
        self.put(f"proc/{PID}/cgroup", "0::/pod/job\n" if self.version == 2 else "4:memory:/pod/job\n0::/\n")
        for name in ("pod", "pod/job"):
            self.limit(name, None)
            self.use(name, GIB, cached=0)
            self.count(name)

    def put(self, file: str, text: str) -> None:
        path = self.home / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def limit(self, name: str, limit: int | None) -> None:
        v1, v2 = 9223372036854771712 if limit is None else limit, "max" if limit is None else limit
        self.put(f"sys/{name}/{'memory.max' if self.version == 2 else 'memory.limit_in_bytes'}", f"{v2 if self.version == 2 else v1}\n")

    def use(self, name: str, used: int, cached: int) -> None:
        self.put(f"sys/{name}/{'memory.current' if self.version == 2 else 'memory.usage_in_bytes'}", f"{used}\n")
        self.put(f"sys/{name}/memory.stat", f"anon 5\n{'inactive_file' if self.version == 2 else 'total_inactive_file'} {cached}\n")

    def count(self, name: str, kills: int = 0, high: int = 0) -> None:
        if self.version == 2:
            self.put(f"sys/{name}/memory.events", f"low 0\nhigh {high}\nmax 0\noom {kills}\noom_kill {kills}\n")
        else:
            self.put(f"sys/{name}/memory.oom_control", f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n")

    def memory(self) -> MemoryLimit:
        return MemoryLimit(PID, self.home / "proc")


@pytest.fixture(params=[1, 2])
def kernel(request: pytest.FixtureRequest, tmp_path: Path) -> Kernel:
    return Kernel(tmp_path, request.param)


def test_without_a_limit_there_is_no_share_of_it(kernel: Kernel) -> None:
    use = kernel.memory().look(0.0)
    assert math.isnan(use.limit_bytes)
    assert math.isnan(use.used_percent)


def test_the_limit_that_is_nearest_counts_also_that_of_a_cgroup_around(kernel: Kernel) -> None:
    kernel.limit("pod/job", 16 * GIB)
    kernel.use("pod/job", 4 * GIB, cached=0)
    kernel.limit("pod", 8 * GIB)
    kernel.use("pod", 6 * GIB, cached=0)
    use = kernel.memory().look(0.0)
    assert (use.limit_bytes, use.used_percent) == (8 * GIB, 75.0)


def test_twin_cached_files_that_fill_the_limit_are_no_use_of_it(kernel: Kernel) -> None:
    kernel.limit("pod/job", 8 * GIB)
    kernel.use("pod/job", 8 * GIB, cached=6 * GIB)
    assert kernel.memory().look(0.0).used_percent == 25.0


def test_fault_kills_and_slow_downs_are_rates_since_the_look_before(kernel: Kernel) -> None:
    kernel.count("pod/job", kills=3, high=100)
    memory = kernel.memory()
    assert math.isnan(memory.look(0.0).oom_kills_per_s)
    kernel.count("pod/job", kills=5, high=150)
    use = memory.look(10.0)
    assert use.oom_kills_per_s == 0.2
    assert use.memory_high_events_per_s == 5.0 if kernel.version == 2 else math.isnan(use.memory_high_events_per_s)


def test_it_looks_every_five_seconds_only(kernel: Kernel) -> None:
    kernel.limit("pod/job", 8 * GIB)
    memory = kernel.memory()
    assert memory.look(0.0).used_percent == 12.5
    kernel.use("pod/job", 2 * GIB, cached=0)
    assert memory.look(LOOK_S - 0.1).used_percent == 12.5
    assert memory.look(LOOK_S).used_percent == 25.0


def test_counts_of_another_cgroup_are_no_rise(kernel: Kernel) -> None:
    memory = kernel.memory()
    memory.look(0.0)
    kernel.count("pod", kills=50)
    kernel.put(f"proc/{PID}/cgroup", "0::/pod\n" if kernel.version == 2 else "4:memory:/pod\n0::/\n")
    assert math.isnan(memory.look(10.0).oom_kills_per_s)


def test_kills_of_the_cgroup_around_are_no_rise_while_its_own_cannot_be_read(kernel: Kernel) -> None:
    kernel.count("pod", kills=50)
    memory = kernel.memory()
    memory.look(0.0)
    file = kernel.home / "sys/pod/job" / ("memory.events" if kernel.version == 2 else "memory.oom_control")
    content = file.read_bytes()
    file.unlink()
    assert math.isnan(memory.look(10.0).oom_kills_per_s)
    file.write_bytes(content)
    assert math.isnan(memory.look(20.0).oom_kills_per_s)
    assert memory.look(30.0).oom_kills_per_s == 0.0


def test_a_process_that_is_gone_and_files_that_hold_anything_are_not_known(kernel: Kernel) -> None:
    (kernel.home / "proc" / str(PID) / "cgroup").unlink()
    assert kernel.memory().look(0.0) == UNKNOWN
    kernel.put(f"proc/{PID}/cgroup", "0::/pod/job\n" if kernel.version == 2 else "4:memory:/pod/job\n0::/\n")
    for path in (kernel.home / "sys" / "pod" / "job").iterdir():
        path.write_bytes(b"\xff\x00 -1")
    kernel.limit("pod", 0)
    assert all(math.isnan(value) for value in kernel.memory().look(0.0))

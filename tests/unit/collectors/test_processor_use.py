"""A worker without a ring that begins to use far less of the processor is noticed, once; the CPU quota that it runs under, by files of cgroup v1 and v2 in a temporary folder."""

import math
from dataclasses import dataclass
from pathlib import Path

import pytest

from collectors.worker.processor_use import CpuQuota, ProcessorUse

TICK_S = 0.01
PID = 4711


def falls(*shares: tuple[float, float]) -> list[float]:
    """Moments at which it falls; (seconds, share of a processor) one after another, a sample each 0.2 s, in the kernel's ticks."""
    use, now, cpu_s, found = ProcessorUse(), 100.0, 0.0, list[float]()
    for seconds, share in shares:
        for _ in range(round(seconds / 0.2)):
            if use.falls(round(cpu_s / TICK_S) * TICK_S, now):
                found.append(round(now - 100.0, 1))
            now, cpu_s = now + 0.2, cpu_s + 0.2 * share
    return found


def test_a_training_loop_that_hangs_is_noticed_within_a_second_although_service_threads_go_on():
    [moment, *_] = falls((20.0, 0.06), (5.0, 0.01))
    assert 20.0 < moment <= 21.4


def test_a_loop_that_uses_all_of_a_processor_and_hangs_is_noticed():
    [moment, *_] = falls((20.0, 1.0), (5.0, 0.0))
    assert 20.0 < moment <= 21.4


def test_one_that_hangs_soon_after_its_start_is_noticed_although_it_started_with_far_more():
    assert any(6.0 < moment <= 7.4 for moment in falls((3.0, 1.0), (3.0, 0.06), (3.0, 0.0)))


def test_twin_a_steady_one_is_not_noticed_again_and_again():
    assert falls((60.0, 0.3)) == []


# --- quota


@dataclass
class Kernel:
    """/proc and one mounted hierarchy: the cgroup /pod of a node, and /pod/job within it; neither has a quota at first."""

    home: Path
    version: int
    path: str = "/pod/job"

    def __post_init__(self) -> None:
        kind, options = ("cgroup2", "rw") if self.version == 2 else ("cgroup", "rw,cpu,cpuacct")
        self.put("proc/self/mountinfo", f"30 1 0:1 / / rw - ext4 /dev/a rw\n35 31 0:32 / {self.home / 'sys'} rw - {kind} {kind} {options}\n")
        self.move(self.path)
        for name in ("pod", "pod/job", "other"):
            self.limit(name, None)
            self.count(name, 0, 0)

    def put(self, file: str, text: str) -> None:
        path = self.home / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def move(self, path: str) -> None:
        self.put(f"proc/{PID}/cgroup", f"0::{path}\n" if self.version == 2 else f"4:memory:/\n1:cpu,cpuacct:{path}\n0::/\n")

    def limit(self, name: str, processors: float | None) -> None:
        quota = None if processors is None else round(100_000 * processors)
        if self.version == 2:
            self.put(f"sys/{name}/cpu.max", f"{'max' if quota is None else quota} 100000\n")
        else:
            self.put(f"sys/{name}/cpu.cfs_quota_us", f"{-1 if quota is None else quota}\n")
            self.put(f"sys/{name}/cpu.cfs_period_us", "100000\n")

    def count(self, name: str, periods: int, throttled: int) -> None:
        self.put(f"sys/{name}/cpu.stat", f"usage_usec 12\nnr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec 99\n")

    def quota(self) -> CpuQuota:
        quota = CpuQuota(PID, self.home / "proc")
        quota.look()
        return quota


@pytest.fixture(params=[1, 2])
def kernel(request: pytest.FixtureRequest, tmp_path: Path) -> Kernel:
    return Kernel(tmp_path, request.param)


def test_without_a_quota_nothing_is_throttled(kernel: Kernel) -> None:
    throttled, processors = kernel.quota().look()
    assert throttled == 0.0
    assert math.isnan(processors)


@pytest.mark.parametrize("name", ["pod/job", "pod"])
def test_a_quota_of_its_own_cgroup_or_of_one_around_it_with_the_share_of_periods_that_used_it_up(kernel: Kernel, name: str) -> None:
    kernel.limit(name, 0.5)
    kernel.count(name, 1000, 900)  # long before
    quota = kernel.quota()
    kernel.count(name, 1010, 906)
    assert quota.look() == (60.0, 0.5)
    assert quota.look() == (0.0, 0.5), "no period has passed: it was idle"


def test_of_two_quotas_the_one_that_bites(kernel: Kernel) -> None:
    kernel.limit("pod", 4.0)
    kernel.limit("pod/job", 0.5)
    quota = kernel.quota()
    kernel.count("pod", 10, 10)
    kernel.count("pod/job", 10, 2)
    assert quota.look() == (100.0, 4.0)


def test_a_quota_that_is_set_and_lifted_while_it_runs_and_a_move_to_another_cgroup(kernel: Kernel) -> None:
    quota = kernel.quota()
    kernel.limit("pod/job", 0.25)
    quota.look()
    kernel.count("pod/job", 10, 9)
    assert quota.look() == (90.0, 0.25)
    kernel.limit("pod/job", None)
    assert quota.look().throttled_percent == 0.0
    kernel.limit("other", 2.0)
    kernel.move("/other")
    assert quota.look() == (0.0, 2.0)


def test_a_process_that_is_gone_or_files_that_cannot_be_read_are_not_known(kernel: Kernel, tmp_path: Path) -> None:
    assert all(math.isnan(value) for value in CpuQuota(PID + 1, tmp_path / "proc").look())
    kernel.limit("pod/job", 0.5)
    quota = kernel.quota()
    (tmp_path / "sys/pod/job/cpu.stat").unlink()
    assert quota.look() == (0.0, 0.5)


def test_counts_that_could_not_be_read_for_a_look_are_no_rise(kernel: Kernel) -> None:
    kernel.limit("pod/job", 0.5)
    kernel.count("pod/job", 1000, 900)  # long before
    quota = kernel.quota()
    kernel.put("sys/pod/job/cpu.stat", "")
    quota.look()
    kernel.count("pod/job", 1001, 900)
    assert quota.look() == (0.0, 0.5)
    kernel.count("pod/job", 1011, 906)
    assert quota.look() == (60.0, 0.5)

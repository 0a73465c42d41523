"""Deaths for want of memory, by the kernel's counters; files of cgroup v1 and v2 in a temporary folder."""

from pathlib import Path

import pytest

from eagle_eye.cgroups import memory_cgroups_of
from fakes.memory_cgroup_files import GB, PID, Kernel
from remediation.launcher.worker.memory_cgroup import TOGETHER_S, OomWatch


@pytest.fixture(params=[1, 2])
def kernel(request: pytest.FixtureRequest, tmp_path: Path) -> Kernel:
    return Kernel(tmp_path, request.param)


def test_a_kill_at_the_limit_of_a_cgroup_around_is_explained_by_that_cgroup(kernel: Kernel) -> None:
    kernel.limit("pod", 2 * GB, peak=2 * GB - 4096)
    kernel.limit("pod/job", 3 * GB)
    kernel.count("pod/job", kills=3, hits=5)  # long before
    watch = kernel.watch()
    watch.watch(PID)
    kernel.clock.advance(60)
    kernel.count("pod/job", kills=4, hits=5)
    kernel.count("pod", kills=4 if kernel.version == 2 else 0, hits=1)
    found = kernel.explain(watch)
    assert found is not None
    assert (found.cgroup, found.limit_bytes, found.peak_bytes) == ("/pod", 2 * GB, 2 * GB - 4096)
    assert found.words == "the kernel's out-of-memory killer ended it: cgroup /pod reached its limit of 2.15 GB, 2.15 GB were used at most"


def test_a_kill_without_a_limit_is_the_machines_own_want_of_memory(kernel: Kernel) -> None:
    watch = kernel.watch()
    watch.watch(PID)
    kernel.count("pod/job", kills=1, hits=1)
    found = kernel.explain(watch)
    assert found is not None
    assert (found.cgroup, found.limit_bytes) == ("", None)
    assert "the machine had no memory left" in found.words


def test_twin_a_kill_that_the_kernel_did_not_count_is_somebody_elses(kernel: Kernel) -> None:
    kernel.limit("pod", 2 * GB)
    kernel.count("pod/job", kills=3, hits=5)
    watch = kernel.watch()
    watch.watch(PID)
    kernel.count("pod/job", kills=3, hits=50)  # the limit is reached and memory is reclaimed: nobody is killed for it
    assert kernel.explain(watch) is None


def test_twin_a_neighbour_was_killed_for_memory_and_this_one_by_hand_a_while_later(kernel: Kernel) -> None:
    watch = kernel.watch()
    watch.watch(PID)
    kernel.clock.advance(1.0)
    kernel.count("pod/job", kills=1)
    watch.look()
    kernel.clock.advance(TOGETHER_S + 1)
    assert kernel.explain(watch) is None


def test_a_kill_that_was_counted_just_before_the_death_was_noticed_is_its(kernel: Kernel) -> None:
    watch = kernel.watch()
    watch.watch(PID)
    kernel.clock.advance(1.0)
    kernel.count("pod/job", kills=1)
    watch.look()
    kernel.clock.advance(TOGETHER_S / 2)
    assert kernel.explain(watch) is not None


def test_a_worker_that_raises_is_asked_of_and_is_again_when_it_ends(kernel: Kernel) -> None:
    watch = kernel.watch()
    watch.watch(PID)
    assert watch.explain(PID, child=True, ended=False) is None
    kernel.clock.advance(0.01)
    kernel.count("pod/job", kills=1)
    kernel.clock.advance(0.01)
    found = watch.explain(PID, child=True, ended=False)
    assert found is not None
    assert found.words == "the kernel's out-of-memory killer ended a process beside it: the machine had no memory left"
    kernel.count("pod/job", kills=2)
    assert kernel.explain(watch) is not None


def test_one_kill_explains_one_death_and_two_explain_two(kernel: Kernel) -> None:
    for kills in (1, 2):
        before = 10 * kills
        kernel.count("pod/job", kills=before)
        watch = kernel.watch()
        for pid in (PID, PID + 1):
            kernel.member(pid)
            watch.watch(pid)
        kernel.count("pod/job", kills=before + kills)
        assert sum(kernel.explain(watch, pid) is not None for pid in (PID, PID + 1)) == kills


def test_what_was_counted_before_a_process_began_is_not_its(kernel: Kernel) -> None:
    watch = kernel.watch()
    watch.watch(PID)
    kernel.clock.advance(1.0)
    kernel.count("pod/job", kills=1)
    kernel.member(PID + 1)
    watch.watch(PID + 1)
    assert kernel.explain(watch, PID + 1) is None
    assert kernel.explain(watch) is not None, "it is that of the older one"


def test_a_container_that_sees_its_own_part_of_the_tree_alone(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, 1, path="/docker/abc/job", root="/docker/abc")
    assert [cgroup.name for cgroup in memory_cgroups_of(PID, tmp_path / "proc")] == ["/job", "/"]
    Kernel(tmp_path, 1, path="/elsewhere", root="/docker/abc")
    assert [cgroup.cgroup.folder for cgroup in memory_cgroups_of(PID, tmp_path / "proc")] == [kernel.mount]


def test_where_nothing_can_be_seen_nothing_is_said(tmp_path: Path) -> None:
    watch = OomWatch(tmp_path / "proc")
    watch.watch(PID)
    assert watch.explain(PID) is None
    kernel = Kernel(tmp_path, 2, path="/../other")
    kernel.put("other/memory.events", "oom 0\noom_kill 0\n")
    watch = kernel.watch()
    watch.watch(PID)
    kernel.put("other/memory.events", "oom 1\noom_kill 1\n")
    assert kernel.explain(watch) is None
    (tmp_path / "sys" / "pod" / "job" / "memory.events").unlink()  # a leaf without the controller: the one around it counts
    kernel = Kernel(tmp_path, 2)
    (tmp_path / "sys" / "pod" / "job" / "memory.events").unlink()
    watch = kernel.watch()
    watch.watch(PID)
    kernel.count("pod", kills=1)
    assert kernel.explain(watch) is not None

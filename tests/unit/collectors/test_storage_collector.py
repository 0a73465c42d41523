"""The storage collector over a small /proc and a prober that answers, answers late or never: what is watched, what is asked, what is told."""

import logging
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.node.mounts import mounts_of
from collectors.node.probe_process import ProbeAnswer, ProbeQuestion
from collectors.node.server_counters import ServerCounters, nfs_counts
from collectors.storage import StorageCollector
from eagle_eye.clock import FakeClock
from eagle_eye.types import Event, Kind, Reading
from fakes.proc_mounts import DISK, NFS, ProcMounts

PID, OTHER = 4711, 4712
CHECKPOINTS = "/mnt/data/checkpoints"


class Prober:
    """Answers at once, unless a mount is in `silent`."""

    def __init__(self) -> None:
        self.asked: list[ProbeQuestion] = []
        self.silent: set[str] = set()
        self.ended = 0
        self.waiting: list[ProbeQuestion] = []
        self.answer = ProbeAnswer(name="", stat_s=1e-4, read_s=1e-3, write_s=2e-3, free_bytes=5e9, free_inodes=1000.0)

    def ask(self, question: ProbeQuestion, /) -> bool:
        self.asked.append(question)
        self.waiting.append(question)
        return True

    def answers(self, wait_s: float, most: int, /) -> list[ProbeAnswer]:
        answered = [question for question in self.waiting if question.name not in self.silent]
        self.waiting = [question for question in self.waiting if question.name in self.silent]
        return [self._answer(question) for question in answered]

    def _answer(self, question: ProbeQuestion) -> ProbeAnswer:
        told = self.answer
        if not question.timed:
            return ProbeAnswer(name=question.name, free_bytes=told.free_bytes, free_inodes=told.free_inodes)
        write_s = told.write_s if question.write else math.nan
        return ProbeAnswer(name=question.name, stat_s=told.stat_s, read_s=told.read_s, write_s=write_s, free_bytes=told.free_bytes, free_inodes=told.free_inodes, errors=told.errors)


class Node:
    """A collector with a worker of a job on an NFS mount, and a clock that goes on by 5 s with each look."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.proc, self.clock, self.prober = ProcMounts(root / "proc", root / "run"), FakeClock(), Prober()
        counters = ServerCounters(root / "proc", (root / "lustre",))
        self.collector = StorageCollector(
            node="n1", run_dir=root / "run", proc=root / "proc", counters=counters, prober=self.prober, clock=self.clock, **options
        )
        self.rows: dict[str, dict[str, float]] = {}

    def look(self, times: int = 1) -> list[Event]:
        """The events of so many looks; `rows` holds the newest reading."""
        events: list[Event] = []
        for _ in range(times):
            self.rows = {}
            for found in self.collector.collect():
                if isinstance(found, Reading):
                    assert found.kind is Kind.MOUNT
                    self.rows = {name: dict(zip(found.names, row, strict=True)) for name, row in zip(found.entities, found.matrix.tolist(), strict=True)}
                else:
                    events.append(found)
            self.clock.advance(5.0)
        return events


@pytest.fixture
def node(tmp_path: Path) -> Node:
    found = Node(tmp_path)
    found.proc.worker(PID, DISK, NFS, cwd="/mnt/data/run")
    found.proc.job(PID)
    return found


# --- which mounts


def test_the_mounts_of_working_directory_open_files_and_checkpoints_are_watched(node: Node) -> None:
    mounts = [DISK, NFS, ("/scratch", "lustre", "10.0.0.1@o2ib:/scratch", "rw"), ("/ckpt", "xfs", "/dev/nvme0n1", "rw"), ("/unused", "nfs4", "server:/other", "rw")]
    node.proc.worker(PID, *mounts, cwd="/mnt/data/run", files=["/scratch/tokens.bin", "pipe:[12]", "socket:[13]", "/dev/null", "/root/gone (deleted)"])
    node.proc.job(PID, checkpoints="/ckpt/run")
    assert node.look() == []
    assert set(node.rows) == {"n1/mnt/data", "n1/scratch", "n1/ckpt"}


def test_file_systems_that_hold_no_files_are_left_out_and_shared_memory_is_not(node: Node) -> None:
    mounts = [DISK, ("/proc", "proc", "proc", "rw"), ("/dev", "tmpfs", "tmpfs", "rw"), ("/dev/shm", "tmpfs", "shm", "rw"), ("/sys/fs/cgroup", "cgroup2", "cgroup", "rw")]
    node.proc.worker(PID, *mounts, cwd="/sys/fs/cgroup/job", files=["/proc/1/stat", "/dev/nvidia0", "/dev/shm/ring"])
    node.look()
    assert set(node.rows) == {"n1/dev/shm"}


def test_a_node_without_a_job_and_a_job_that_has_stopped_ask_nothing(node: Node) -> None:
    node.proc.job(PID, state="stopped")
    assert node.look(2) == []
    assert (node.rows, node.prober.asked) == ({}, [])


def test_paths_of_the_configuration_are_watched_for_every_job(tmp_path: Path) -> None:
    node = Node(tmp_path, paths=("/mnt/data/x",), write_paths=("/home",))
    node.proc.mounts("self", DISK, NFS)
    node.look()
    assert {question.name: question.write for question in node.prober.asked} == {"/mnt/data": "", "/": "/home"}


def test_a_worker_in_a_container_is_asked_about_through_its_own_root(node: Node) -> None:
    node.proc.worker(PID, ("/", "overlay", "overlay", "rw"), ("/data", "nfs4", "server:/data", "rw"), cwd="/data", namespace="mnt:[7]")
    node.look()
    (question,) = node.prober.asked
    assert question.mount == str(node.proc.root / str(PID) / "root" / "data")


def test_an_agent_that_sees_a_read_only_tree_looks_at_that_of_the_machine(tmp_path: Path) -> None:
    """So systemd's ProtectSystem=strict shows it to the agent alone."""
    node = Node(tmp_path, write_paths=("/mnt/data",))
    node.proc.worker(PID, DISK, NFS, cwd="/home", namespace="mnt:[1]")
    node.proc.mounts("self", ("/", "ext4", "/dev/vda", "ro"), ("/mnt/data", "nfs4", "server:/data", "ro"), namespace="mnt:[9]")
    node.proc.mounts(1, DISK, NFS, namespace="mnt:[1]")
    node.proc.job(PID)
    assert node.look(2) == []
    assert {name: row["read_only"] for name, row in node.rows.items()} == {"n1/": 0.0, "n1/mnt/data": 0.0}
    assert {question.write for question in node.prober.asked} == {"", str(node.proc.root / str(PID) / "root" / "mnt" / "data")}


def test_a_mount_with_a_space_in_its_name(node: Node) -> None:
    node.proc.worker(PID, DISK, ("/mnt/my\\040data", "xfs", "/dev/sdb", "rw"), cwd="/mnt/my data/run")
    node.look()
    assert set(node.rows) == {"n1/mnt/my data"}


# --- what is asked


def test_free_space_is_asked_for_each_time_and_times_every_ten_seconds(node: Node) -> None:
    node.look(5)
    assert [question.timed for question in node.prober.asked] == [True, False, True, False, True]
    row = node.rows["n1/mnt/data"]
    assert (row["free_bytes"], row["free_inodes"], row["read_only"], row["hung"]) == (5e9, 1000.0, 0.0, 0.0)
    assert (row["stat_s"], row["read_s"]) == (pytest.approx(1e-4), pytest.approx(1e-3))
    assert math.isnan(row["write_s"])
    node.look()
    assert math.isnan(node.rows["n1/mnt/data"]["stat_s"]), "it was measured for the reading before"


def test_it_writes_into_the_checkpoint_folder_alone_and_once_a_minute(node: Node) -> None:
    node.proc.job(PID, checkpoints=CHECKPOINTS)
    node.look(25)
    written = [index for index, question in enumerate(node.prober.asked) if question.write]
    assert written == [0, 12, 24]
    assert {node.prober.asked[index].write for index in written} == {CHECKPOINTS}


def test_it_does_not_write_to_a_mount_that_is_read_only(node: Node) -> None:
    node.proc.worker(PID, DISK, ("/mnt/data", "nfs4", "server:/data", "ro"), cwd="/mnt/data")
    node.proc.job(PID, checkpoints=CHECKPOINTS)
    node.look(3)
    assert not any(question.write for question in node.prober.asked)


def test_what_a_mount_refuses_is_logged_once(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.prober.answer = ProbeAnswer(name="", stat_s=1e-4, errors={"read_s": "Permission denied"})
    with caplog.at_level(logging.INFO):
        node.look(10)
    assert math.isnan(node.rows["n1/mnt/data"]["read_s"])
    assert len([record for record in caplog.records if "Permission denied" in record.getMessage()]) == 1


# --- a mount that hangs


def test_fault_a_mount_that_hangs_is_told_once_is_left_alone_and_stops_no_other(node: Node) -> None:
    node.proc.worker(PID, DISK, NFS, cwd="/mnt/data/run", files=["/home/log"])
    job = node.proc.job(PID)
    node.prober.silent.add("/mnt/data")
    (event,) = node.look(30)
    assert (event.name, event.job, event.entity.name) == ("storage.hung", job, "n1/mnt/data")
    assert event.attributes == {"mount": "/mnt/data", "file_system": "nfs4", "source": "server:/data", "waited_s": "25.0"}
    assert [question.name for question in node.prober.asked].count("/mnt/data") == 1
    assert [question.name for question in node.prober.asked].count("/") == 30
    assert node.rows["n1/mnt/data"]["hung"] == 1.0
    assert node.rows["n1/"]["hung"] == 0.0
    node.prober.silent.clear()
    assert node.look(2) == []
    assert node.rows["n1/mnt/data"]["hung"] == 0.0
    assert [question.name for question in node.prober.asked].count("/mnt/data") == 2


def test_twin_a_slow_disk_that_answers_is_not_hung(node: Node) -> None:
    for _ in range(5):
        node.prober.silent.add("/mnt/data")
        assert node.look(4) == [], "15 s without an answer are slow"
        node.prober.silent.clear()
        assert node.look() == []
        assert node.rows["n1/mnt/data"]["hung"] == 0.0


def test_each_job_on_a_mount_is_told_of_it_and_no_other(node: Node) -> None:
    node.proc.worker(OTHER, DISK, NFS, cwd="/mnt/data")
    node.proc.mounts(4713, DISK, NFS)
    third = node.proc.root / "4713" / "cwd"
    third.symlink_to("/home")
    jobs = [node.proc.job(PID), node.proc.job(OTHER, run="r2")]
    node.proc.job(4713, run="r3")
    node.prober.silent.add("/mnt/data")
    assert [event.job for event in node.look(8)] == jobs


def test_twin_a_mount_that_hangs_and_is_used_by_no_job_any_more_is_not_told(node: Node) -> None:
    node.prober.silent.add("/mnt/data")
    node.look(2)
    node.proc.job(PID, state="stopped")
    assert node.look(10) == []


def test_what_a_process_was_asked_that_has_ended_is_asked_again(node: Node) -> None:
    node.prober.silent.add("/mnt/data")
    node.look(8)
    assert node.rows["n1/mnt/data"]["hung"] == 1.0
    node.prober.ended += 1
    node.prober.waiting.clear()
    node.prober.silent.clear()
    node.look()
    assert node.rows["n1/mnt/data"]["hung"] == 0.0
    assert len(node.prober.asked) == 2


# --- read-only


def test_fault_a_mount_that_becomes_read_only_is_told_once(node: Node) -> None:
    node.look(2)
    node.proc.worker(PID, DISK, ("/mnt/data", "ext4", "/dev/sdb", "ro,relatime"), cwd="/mnt/data/run")
    (event,) = node.look(4)
    assert (event.name, event.entity.name, event.attributes["file_system"]) == ("storage.read_only", "n1/mnt/data", "ext4")
    assert node.rows["n1/mnt/data"]["read_only"] == 1.0
    node.proc.worker(PID, DISK, NFS, cwd="/mnt/data/run")
    assert node.look() == []
    assert node.rows["n1/mnt/data"]["read_only"] == 0.0


def test_fault_an_error_that_ext4_shows_by_another_option_is_told(node: Node) -> None:
    node.look()
    node.proc.worker(PID, DISK, ("/mnt/data", "ext4", "/dev/sdb", "rw,emergency_ro"), cwd="/mnt/data/run")
    assert [event.name for event in node.look()] == ["storage.read_only"]


def test_twin_a_mount_that_is_read_only_from_the_start_is_no_news(node: Node) -> None:
    node.proc.worker(PID, DISK, ("/mnt/data", "nfs4", "server:/data", "ro"), cwd="/mnt/data/run")
    assert node.look(5) == []
    assert node.rows["n1/mnt/data"]["read_only"] == 1.0


def test_twin_another_file_system_that_is_mounted_read_only_at_the_same_point_is_no_news(node: Node) -> None:
    node.look()
    node.proc.worker(PID, DISK, ("/mnt/other", "nfs4", "server:/other", "rw"), ("/mnt/data", "nfs4", "server:/data", "ro"), cwd="/mnt/data/run")
    assert node.look(2) == []
    assert node.rows["n1/mnt/data"]["read_only"] == 1.0


def test_twin_a_full_disk_and_an_unmount_are_no_events(node: Node) -> None:
    node.prober.answer = ProbeAnswer(name="", free_bytes=0.0, free_inodes=0.0)
    assert node.look(3) == []
    assert node.rows["n1/mnt/data"]["free_bytes"] == 0.0
    node.proc.worker(PID, DISK, cwd="/")
    assert node.look(10) == []
    assert set(node.rows) == {"n1/"}


# --- what the kernel counts of the servers

MOUNTSTATS = """device /dev/vda mounted on / with fstype ext4
device server:/data mounted on /mnt/data with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.2
\txprt:\ttcp 0 1 2 0 0 1 1 0 1 1 2 0 0
\tper-op statistics
\t        NULL: 1 1 0 44 24 7 1 8 0
\t        READ: {ops} {sent} {timeouts} 100 200 3 {waited} 5 0
"""


def test_retransmissions_timeouts_and_round_trips_of_nfs(node: Node) -> None:
    path = node.proc.root / "self" / "mountstats"
    path.write_text(MOUNTSTATS.format(ops=100, sent=100, timeouts=0, waited=500))
    node.look()
    assert math.isnan(node.rows["n1/mnt/data"]["round_trip_s"])
    path.write_text(MOUNTSTATS.format(ops=110, sent=120, timeouts=5, waited=600))
    node.look()
    row = node.rows["n1/mnt/data"]
    assert (row["retransmissions_per_s"], row["timeouts_per_s"], row["round_trip_s"]) == (2.0, 1.0, pytest.approx(0.01))
    assert math.isnan(row["disconnected_servers"])


def test_twin_a_remounted_file_system_counts_from_the_start_again(node: Node) -> None:
    path = node.proc.root / "self" / "mountstats"
    path.write_text(MOUNTSTATS.format(ops=100, sent=150, timeouts=9, waited=500))
    node.look()
    path.write_text(MOUNTSTATS.format(ops=1, sent=1, timeouts=0, waited=5))
    node.look()
    assert math.isnan(node.rows["n1/mnt/data"]["retransmissions_per_s"])


def test_another_file_system_at_the_mount_point_invents_no_rate(node: Node) -> None:
    """As an export that has long been mounted elsewhere, too: the kernel counts both as one."""
    path = node.proc.root / "self" / "mountstats"
    path.write_text(MOUNTSTATS.format(ops=100, sent=100, timeouts=0, waited=500))
    node.look()
    node.proc.worker(PID, DISK, ("/mnt/other", "nfs4", "server:/other", "rw"), NFS, cwd="/mnt/data/run")  # a device number of its own
    path.write_text(MOUNTSTATS.format(ops=10**9, sent=2 * 10**9, timeouts=10**6, waited=10**12))
    node.look()
    row = node.rows["n1/mnt/data"]
    assert all(math.isnan(row[name]) for name in ("retransmissions_per_s", "timeouts_per_s", "round_trip_s"))
    path.write_text(MOUNTSTATS.format(ops=10**9 + 10, sent=2 * 10**9 + 10, timeouts=10**6, waited=10**12 + 50))
    node.look()
    assert node.rows["n1/mnt/data"]["round_trip_s"] == pytest.approx(0.005)


def test_round_trips_and_lost_connections_of_lustre(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.proc.worker(PID, DISK, ("/scratch", "lustre", "10.0.0.1@o2ib:/scratch/sub", "rw"), cwd="/scratch/run")
    node.proc.job(PID)
    statistics = tmp_path / "lustre" / "llite" / "scratch-ffff9c" / "stats"
    statistics.parent.mkdir(parents=True)
    for server, state in (("osc/scratch-OST0000-osc-ffff9c", "FULL"), ("osc/scratch-OST0001-osc-ffff9c", "DISCONN"), ("mdc/scratch-MDT0000-mdc-ffff9c", "IDLE")):
        (tmp_path / "lustre" / server).mkdir(parents=True)
        (tmp_path / "lustre" / server / "import").write_text(f"import:\n    name: x\n    state: {state}\n")
    statistics.write_text("snapshot_time 1 secs\nread_bytes 9 samples [bytes] 1 2 3 4\ngetattr 10 samples [usecs] 1 9 1000 500\n")
    node.look()
    statistics.write_text("read_bytes 19 samples [bytes] 1 2 3 4\ngetattr 20 samples [usecs] 1 9 21000 500\n")
    node.look()
    row = node.rows["n1/scratch"]
    assert (row["round_trip_s"], row["disconnected_servers"]) == (pytest.approx(0.002), 1.0)
    assert math.isnan(row["timeouts_per_s"])


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=400), st.integers(0, len(MOUNTSTATS)))
def test_whatever_mountstats_holds_nothing_fails(text: str, cut: int) -> None:
    whole = MOUNTSTATS.format(ops=1, sent=2, timeouts=3, waited=4)
    for content in (text, whole[:cut] + text, whole[cut:], "device " + text):
        assert isinstance(nfs_counts(content), dict)


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=200))
def test_whatever_mountinfo_holds_nothing_fails(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.mktemp("proc")
    (folder / "self").mkdir()
    (folder / "self" / "mountinfo").write_bytes(b"22 1 8:1 / / rw - ext4 /dev/vda rw\n" + content)
    assert [mount.point for mount in mounts_of("self", folder)][:1] == ["/"]


def test_of_two_mounts_at_one_point_the_later_one_counts(tmp_path: Path) -> None:
    proc = ProcMounts(tmp_path / "proc", tmp_path)
    proc.mounts("self", NFS, ("/mnt/data", "xfs", "/dev/sdb", "rw"))
    assert [(mount.point, mount.kind) for mount in mounts_of("self", tmp_path / "proc")] == [("/mnt/data", "xfs")]

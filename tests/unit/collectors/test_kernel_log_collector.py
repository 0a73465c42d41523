"""Kernel messages become events of the GPU, the worker or the node that they are about."""

import errno
import math
import os
from pathlib import Path

import msgspec
import pytest

from collectors import kernel_log
from collectors.agent.job_directory import LocalJob, LocalWorker
from collectors.kernel_log import GpuAddresses, KernelLogCollector
from collectors.log.kernel_sources import KernelLine, SourcePosition
from collectors.log.position_file import PositionFile
from eagle_eye.clock import Clock, FakeClock
from eagle_eye.types import Event, Kind

NOW = 1_700_000_000.0
UUID = "GPU-509665ad-b600-ac93-3616-d754b23d636d"


class Node:
    """A node whose kernel's log is a file."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "kern.log"
        self.log.touch()
        self.clock = FakeClock(now=NOW)
        self.collector = self.start()

    def start(self, **options: object) -> KernelLogCollector:
        """The agent's collector, as after its start."""
        made = KernelLogCollector(
            source="file", path=self.log, further_files=(), node="n1", run_dir=self.folder, state_dir=self.folder / "state", clock=self.clock, **options  # type: ignore[arg-type]
        )
        made.collect()
        return made

    def write(self, *lines: str) -> None:
        with self.log.open("a") as file:
            file.writelines(f"{line}\n" for line in lines)

    def told(self, *lines: str) -> list[Event]:
        self.write(*lines)
        return self.collector.collect()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_an_xid_is_an_event_of_the_gpu_that_its_address_belongs_to(node: Node) -> None:
    named = f"NVRM: GPU at PCI:0000:9b:00: {UUID}"
    xid = "NVRM: Xid (PCI:0000:9b:00): 145, pid=12, name=python, RLW_REMAP Nonfatal XC0 i0 Link 0 (0x4 0x1)"
    (event,) = node.told(named, xid)
    assert (event.name, event.entity.kind, event.entity.name, event.job) == ("gpu.xid", Kind.GPU, UUID, "")
    assert {name: event.attributes[name] for name in ("code", "qualifier", "pci", "pid", "process")} == {
        "code": "145", "qualifier": "nonfatal", "pci": "0000:9b:00.0", "pid": "12", "process": "python",
    }  # fmt: skip


def test_a_gpu_that_fell_off_the_bus_is_lost(node: Node) -> None:
    (event,) = node.told("NVRM: GPU at PCI:0000:29:00: GPU has fallen off the bus.")
    assert (event.name, event.entity.name, event.attributes["reason"]) == ("gpu.lost", "0000:29:00.0", "has fallen off the bus")


def test_what_is_no_gpus_is_the_nodes_with_component_and_remedy(node: Node) -> None:
    (event,) = node.told("nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress error")
    assert (event.name, event.entity.kind, event.entity.name) == ("kernel.error", Kind.NODE, "n1")
    told = event.attributes
    assert (told["component"], told["code"], told["number"], told["qualifier"], told["device"]) == ("nvswitch", "sxid", "12028", "nonfatal", "nvidia-nvswitch3")
    assert "reset all GPUs" in told["advice"]


def test_an_error_at_the_address_of_a_gpu_names_it_and_one_at_that_of_another_device_does_not(node: Node) -> None:
    lines = ["nvidia 0000:9b:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer", "mlx5_core 0000:5c:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=X"]
    gpus, card = node.told(f"NVRM: GPU at PCI:0000:9b:00: {UUID}", *lines)
    assert (gpus.entity.kind, gpus.attributes["gpu"], gpus.attributes["pci"]) == (Kind.NODE, UUID, "0000:9b:00.0")
    assert "gpu" not in card.attributes


XID = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, GPU has fallen off the bus."


@pytest.mark.parametrize(
    ("line", "program"),
    [
        (f'Nov 14 22:13:10 n1 watch[99]: saw "{XID}" yesterday', "watch"), (f"Nov 14 22:13:10 n1 sudo[8]: COMMAND=/usr/bin/grep {XID}", "sudo"), (f"12,101,300,-;runbook[1]: replay of {XID}", "a program"),
        ("Nov 14 22:13:10 n1 systemd[1]: Out of memory: Killed process 12 (x)", "systemd"), ("Nov 14 22:13:10 n1 python[9]: XFS (sda): Corruption detected", "python"),
        ("Nov 14 22:13:10 n1 sudo[8]: COMMAND=/usr/bin/grep Kernel panic /var/log/kern.log", "sudo"), ("Nov 14 22:13:10 n1 w[1]: NVRM: GPU at PCI:0000:29:00: GPU has fallen off the bus.", "w"),
    ],
)  # fmt: skip
def test_twin_a_program_that_quotes_the_kernel_informs_and_names_no_gpu(node: Node, line: str, program: str) -> None:
    (event,) = node.told(line)
    assert (event.name, event.entity.kind, event.attributes["written_by"]) == ("kernel.notice", Kind.NODE, program)


def test_a_quotation_hides_neither_the_xid_nor_the_gpu_that_it_is_of(node: Node) -> None:
    quoted, xid = node.told(f"Nov 14 22:13:09 n1 watch[9]: NVRM: GPU at PCI:0000:9b:00: {UUID}", f"Nov 14 22:13:10 n1 watch[9]: {XID}", f"Nov 14 22:13:10 n1 kernel: {XID}")
    assert quoted.name == "kernel.notice"
    assert (xid.name, xid.entity.name, xid.attributes.get("written_by")) == ("gpu.xid", "0000:9b:00.0", None)


def test_the_fabric_managers_own_lines_in_the_log_of_all_programs_are_errors(node: Node) -> None:
    (event,) = node.told("Nov 14 22:13:10 n1 nv-fabricmanager[841]: detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id 00000000:86:00.0 physical id 3 port 33")
    assert (event.name, event.attributes["number"]) == ("kernel.error", "20034")


def test_a_row_of_the_users_own_says_how_bad_a_programs_line_is(node: Node) -> None:
    own = node.folder / "own.toml"
    own.write_text('[[message]]\ncomponent = "disk"\ncode = "site_check"\npattern = "site check: (?P<device>.*) is broken"\n')
    node.collector = node.start(patterns=str(own))
    (event,) = node.told("Nov 14 22:13:10 n1 check[7]: site check: sda is broken")
    assert (event.name, event.attributes["written_by"]) == ("kernel.error", "check")


def test_twin_a_line_that_nobody_knows_is_no_event(node: Node) -> None:
    assert node.told("nvidia-nvswitch2: open (major=510)", "", "Xid") == []


def test_a_process_that_the_kernel_names_is_the_worker_of_its_job(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = LocalWorker(worker="r/n1/0", slot=0, rank=0, pid=os.getpid())
    (node.folder / "jobs").mkdir()
    (node.folder / "jobs" / "r.json").write_bytes(msgspec.json.encode(LocalJob(job="t/gpt/r", run="r", node="n1", workers=(worker,))))
    line = f"Memory cgroup out of memory: Killed process {os.getpid()} (python) total-vm:9kB"
    (event,) = node.told(line)
    assert (event.name, event.entity.kind, event.entity.name, event.job) == ("kernel.error", Kind.WORKER, "r/n1/0", "t/gpt/r")
    monkeypatch.setattr(kernel_log, "in_first_pid_namespace", lambda: False)
    node.clock.advance(61.0)
    (elsewhere,) = node.told(line)
    assert (elsewhere.entity.kind, elsewhere.job) == (Kind.NODE, ""), "in a container pids are not the kernel's: nobody is named by chance"


def test_equal_messages_are_one_event_a_minute_with_their_count(node: Node) -> None:
    line = "blk_update_request: I/O error, dev sda, sector {} op 0x0:(READ)"
    assert len(node.told(*(line.format(sector) for sector in range(1000)))) == 1
    assert [event.attributes["device"] for event in node.told(line.format(1), "I/O error, dev sdb, sector 4")] == ["sdb"]
    node.clock.advance(61.0)
    (event,) = node.told(line.format(2))
    assert event.attributes["repeated"] == "1000"


def test_the_next_agent_tells_what_came_meanwhile_and_nothing_twice(node: Node) -> None:
    assert len(node.told("I/O error, dev sda, sector 4")) == 1
    node.collector.collect()  # the agent has taken the events
    node.write("I/O error, dev sdb, sector 4")
    later = KernelLogCollector(source="file", path=node.log, further_files=(), node="n1", state_dir=node.folder / "state", clock=node.clock)
    assert [event.attributes["device"] for event in later.collect()] == ["sdb"]


def test_an_agent_that_was_killed_before_it_wrote_its_events_tells_them_again(node: Node) -> None:
    assert len(node.told("I/O error, dev sda, sector 4")) == 1
    later = KernelLogCollector(source="file", path=node.log, further_files=(), node="n1", state_dir=node.folder / "state", clock=node.clock)
    assert [event.attributes["device"] for event in later.collect()] == ["sda"]


def test_a_message_has_the_time_at_which_the_kernel_wrote_it(node: Node) -> None:
    (event,) = node.told("2023-11-14T22:13:10+00:00 n1 kernel: I/O error, dev sda, sector 4")
    assert event.time == NOW - 10.0
    (event,) = node.told("2031-11-14T22:13:10+00:00 n1 kernel: I/O error, dev sdb, sector 4")
    assert event.time == NOW, "a time of the future is not believed"


def test_secrets_in_a_line_do_not_leave_the_node(node: Node) -> None:
    (event,) = node.told("I/O error, dev sda, sector 4, mount option password=hunter2")
    assert "hunter2" not in event.message


def test_without_a_source_it_says_why_and_looks_again(tmp_path: Path) -> None:
    clock = FakeClock(now=NOW)
    collector = KernelLogCollector(source="file", path=tmp_path / "kern.log", further_files=(), node="n1", clock=clock)
    assert collector.collect() == []
    assert "CAP_SYSLOG" in collector.unavailable
    (tmp_path / "kern.log").write_text("I/O error, dev sda, sector 1\n")
    clock.advance(61.0)
    assert collector.collect() == []
    assert collector.unavailable == ""


def test_the_fabric_managers_log_is_read_beside_it(tmp_path: Path) -> None:
    main, fabric = tmp_path / "kern.log", tmp_path / "fabricmanager.log"
    main.touch()
    fabric.touch()
    collector = KernelLogCollector(source="file", path=main, further_files=(str(fabric),), node="n1", clock=FakeClock(now=NOW))
    collector.collect()
    line = "[Nov 14 2023 22:13:00] [ERROR] [tid 841] detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id 00000000:86:00.0 physical id 3 port 33\n"
    with fabric.open("a") as file:
        file.write(line)
    (event,) = collector.collect()
    assert (event.attributes["number"], event.attributes["qualifier"], event.attributes["pci"], event.time) == ("20034", "fatal", "0000:86:00.0", NOW - 20.0)


def test_gpus_are_named_by_the_drivers_files(node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "gpus" / "0000:9b:00.0"
    folder.mkdir(parents=True)
    (folder / "information").write_text(f"GPU UUID: \t {UUID}\n")
    monkeypatch.setattr(kernel_log, "GpuAddresses", lambda: GpuAddresses(tmp_path))
    node.collector = node.start()
    (event,) = node.told("NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.")
    assert event.entity.name == UUID


# --- PCI addresses of GPUs, from the driver's files and its log

INFORMATION = "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 501\nGPU UUID: \t {uuid}\nBus Type: \t PCIe\nBus Location: \t 0000:9b:00.0\nDevice Minor: \t 4\n"


def driver_files(folder: Path, uuid: str) -> Path:
    (folder / "gpus" / "0000:9b:00.0").mkdir(parents=True, exist_ok=True)
    (folder / "gpus" / "0000:9b:00.0" / "information").write_text(INFORMATION.format(uuid=uuid))
    return folder


def test_the_drivers_files_name_the_gpu_of_an_address(tmp_path: Path) -> None:
    gpus = GpuAddresses(driver_files(tmp_path, UUID))
    gpus.refresh()
    assert (gpus.name_of("0000:9b:00.0"), gpus.name_of("0000:18:00.0"), gpus.name_of("")) == (UUID, "0000:18:00.0", "")


def test_a_gpu_that_is_lost_keeps_its_name(tmp_path: Path) -> None:
    gpus = GpuAddresses(driver_files(tmp_path, UUID))
    gpus.refresh()
    driver_files(tmp_path, "GPU-????????-????-????-????-????????????")
    gpus.refresh()
    assert gpus.name_of("0000:9b:00.0") == UUID


def test_the_drivers_own_line_names_it_where_there_are_no_files(tmp_path: Path) -> None:
    gpus = GpuAddresses(tmp_path / "none")
    gpus.refresh()
    gpus.learn(f"NVRM: GPU at PCI:0000:9b:00: {UUID}")
    assert gpus.name_of("0000:9b:00.0") == UUID


# --- a journal whose place is gone

DISK = "I/O error, dev {}, sector 4"


class DamagedJournal:
    """Sources that know what was written, of which none can be read behind a cursor."""

    def __init__(self) -> None:
        self.failures = math.inf
        self.begun: list[SourcePosition] = []

    def open(self, _clock: Clock, position: SourcePosition) -> "DamagedSource":
        self.begun.append(position)
        return DamagedSource(self, position)


class DamagedSource:
    name, lost = "journald", 0

    def __init__(self, journal: DamagedJournal, position: SourcePosition) -> None:
        self._journal, self.position = journal, position

    def read(self) -> list[KernelLine]:
        if self.position.cursor and self._journal.failures > 0:
            self._journal.failures -= 1
            raise OSError(errno.EIO, "Failed to seek to cursor: Invalid argument")
        return [KernelLine(NOW, DISK.format("sdb"))]

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def damaged(monkeypatch: pytest.MonkeyPatch) -> DamagedJournal:
    made = DamagedJournal()
    monkeypatch.setattr(kernel_log, "JournalSource", made.open)
    return made


def of_journal(folder: Path, clock: FakeClock) -> KernelLogCollector:
    """The collector of an agent that stopped at a cursor."""
    positions = PositionFile(folder, "kernel_log", "n1", SourcePosition)
    positions.put("journald", SourcePosition(cursor="gone", time=NOW - 60.0))
    positions.save()
    return KernelLogCollector(source="journal", further_files=(), node="n1", run_dir=folder, state_dir=folder, clock=clock)


def test_a_cursor_that_fails_twice_is_given_up_and_the_journal_read_anew(tmp_path: Path, damaged: DamagedJournal, caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock(now=NOW)
    collector = of_journal(tmp_path, clock)
    for _ in range(2):
        with pytest.raises(OSError, match="Failed to seek"):
            collector.collect()
        clock.advance(61.0)
    assert [event.attributes["device"] for event in collector.collect()] == ["sdb"]
    assert damaged.begun[-1] == SourcePosition(time=NOW - 60.0)
    assert "nothing can be read behind the place where reading stopped" in caplog.text


def test_twin_a_cursor_that_fails_once_is_kept(tmp_path: Path, damaged: DamagedJournal) -> None:
    damaged.failures = 1
    clock = FakeClock(now=NOW)
    collector = of_journal(tmp_path, clock)
    with pytest.raises(OSError, match="Failed to seek"):
        collector.collect()
    clock.advance(61.0)
    assert len(collector.collect()) == 1
    assert [position.cursor for position in damaged.begun] == ["gone", "gone"]

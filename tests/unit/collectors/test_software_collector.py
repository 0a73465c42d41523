"""What changed on a node, told to its jobs."""

import doctest
from pathlib import Path

import msgspec
import pytest

from collectors import software
from collectors.agent.job_directory import LocalJob
from collectors.node import software_versions
from collectors.software import SoftwareCollector
from eagle_eye.changes import KEPT_S, change_told
from eagle_eye.clock import FakeClock
from eagle_eye.types import Event, Kind

LOOK_S, DAY_S = 600.0, 86_400.0
DRIVER, KERNEL, COMMAND = "sys/module/nvidia/version", "proc/sys/kernel/osrelease", "proc/cmdline"
VBIOS = "proc/driver/nvidia/gpus/0000:1b:00.0/information"


class Node:
    """A node whose files a test writes, and whose agent may be started again."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(software_versions.KUBERNETES, raising=False)
        self.folder, self.clock = folder, FakeClock(now=1_700_000_000.0)
        (folder / "jobs").mkdir()
        self.write(KERNEL, "6.1.0\n")
        self.write(DRIVER, "535.1\n")
        self.start()

    def start(self) -> None:
        at = self.folder
        self.collector = SoftwareCollector(node="n1", run_dir=at, state_dir=at / "state", proc=at / "proc", sysfs=at / "sys", root=at, clock=self.clock)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(text)

    def register(self, run: str, state: str = "running") -> None:
        new = self.folder / f"new-{run}"
        new.write_bytes(msgspec.json.encode(LocalJob(job=f"t/gpt/{run}", run=run, node="n1", state=state)))
        new.replace(self.folder / "jobs" / f"{run}.json")

    def look(self, seconds: float = LOOK_S) -> list[tuple[str, str]]:
        """(run, words) of each change that is told."""
        return [(event.job.rpartition("/")[2], event.message.removeprefix("n1: ")) for event in self.events(seconds)]

    def events(self, seconds: float = LOOK_S) -> list[Event]:
        self.clock.advance(seconds)
        return self.collector.collect()

    @property
    def memory(self) -> Path:
        return self.folder / "state" / "agent" / "software-n1.json"


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """With one job, after the first look."""
    made = Node(tmp_path, monkeypatch)
    made.register("r1")
    assert made.look() == [], "of the first look ever nothing has changed"
    return made


def test_the_examples_in_the_texts_are_true() -> None:
    assert doctest.testmod(software_versions).failed == 0


def test_a_change_is_told_once_to_each_job_and_to_one_that_comes_later(node: Node) -> None:
    node.register("r2")
    node.write(DRIVER, "550.2\n")
    [first, second] = node.events()
    assert {first.job, second.job} == {"t/gpt/r1", "t/gpt/r2"}
    assert (first.name, first.entity.kind, first.entity.name) == ("node.changed", Kind.NODE, "n1")
    now = node.clock.now()
    assert first.attributes == {"what": "nvidia driver", "before": "535.1", "after": "550.2", "known": f"{now - LOOK_S:.0f}", "seen": f"{now:.0f}"}
    assert node.look() == []
    node.register("r3")
    assert node.look(3 * DAY_S) == [("r3", "nvidia driver 535.1 → 550.2")]
    assert node.look() == []


def test_what_is_told_is_believed_of_the_nodes_own_agent(node: Node) -> None:
    node.write(DRIVER, "550.2\n")
    [event] = node.events()
    told = change_told(msgspec.structs.replace(event, node="n1"))
    assert told is not None
    assert (told.what, told.known, told.seen) == ("nvidia driver", node.clock.now() - LOOK_S, node.clock.now())


def test_a_change_while_no_agent_ran_is_seen_with_the_time_of_the_last_look(node: Node) -> None:
    last = node.clock.now()
    node.write(KERNEL, "6.8.0\n")
    node.start()
    [event] = node.events(2 * DAY_S)
    assert (event.attributes["what"], event.attributes["known"], event.attributes["seen"]) == ("kernel", f"{last:.0f}", f"{last + 2 * DAY_S:.0f}")


def test_twin_an_agent_that_is_started_again_tells_nothing_that_did_not_change(node: Node) -> None:
    node.start()
    assert node.look() == []
    node.write(KERNEL, "6.8.0\n")
    [told] = node.events()
    node.start()
    [again] = node.events()
    assert again.attributes == told.attributes, "the same change, which the ledger keeps once"


def test_twin_what_cannot_be_read_now_is_what_it_was(node: Node) -> None:
    (node.folder / DRIVER).unlink()
    assert node.look() == []
    node.write(DRIVER, "535.1\n")
    assert node.look() == []
    (node.folder / DRIVER).unlink()
    node.look()
    node.write(DRIVER, "550.2\n")
    assert node.look() == [("r1", "nvidia driver 535.1 → 550.2")], "it was unloaded, and another one loaded"


def test_twin_what_is_read_for_the_first_time_has_not_changed(node: Node) -> None:
    node.write("sys/module/mlx5_core/version", "24.04\n")
    assert node.look() == []
    node.write("sys/module/mlx5_core/version", "24.10\n")
    assert node.look() == [("r1", "mlx5 driver 24.04 → 24.10")]


@pytest.mark.parametrize("content", [b"", b"{", b'{"version":1}', b'{"version":2,"looked":0.0,"values":{"kernel":"5.0"}}', b"\xff\xfe", b"[" * 100_000])
def test_twin_a_torn_file_is_no_knowledge(node: Node, content: bytes) -> None:
    node.memory.write_bytes(content)
    node.write(KERNEL, "6.8.0\n")
    node.start()
    assert node.look() == []
    node.write(KERNEL, "6.9.0\n")
    assert node.look() == [("r1", "kernel 6.8.0 → 6.9.0")]


def test_a_state_directory_that_takes_nothing_ends_nothing(node: Node) -> None:
    node.memory.unlink()
    node.memory.parent.rmdir()
    node.memory.parent.write_text("no folder")
    node.write(KERNEL, "6.8.0\n")
    assert node.look() == [("r1", "kernel 6.1.0 → 6.8.0")]


def test_a_week_later_it_is_told_no_more(node: Node) -> None:
    node.write(DRIVER, "550.2\n")
    node.look()
    node.register("r2")
    assert node.look(KEPT_S + DAY_S) == []


def test_what_changes_each_time_is_told_to_a_new_job_in_part_and_fills_nothing(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "KEPT", 4)
    monkeypatch.setattr(software, "TOLD", 3)
    for number in range(8):
        node.write(KERNEL, f"6.{number + 2}")
        assert len(node.look()) == 1
    node.register("r2")
    assert node.look() == [("r2", f"kernel 6.{number} → 6.{number + 1}") for number in (6, 7, 8)]
    assert len(msgspec.json.decode(node.memory.read_bytes())["changes"]) == 4


def test_of_the_kernels_command_line_the_words_are_told_that_differ(node: Node) -> None:
    node.write(COMMAND, "BOOT_IMAGE=/vmlinuz-1 ro iommu=pt quiet")
    assert node.look() == []
    node.write(COMMAND, "BOOT_IMAGE=/vmlinuz-2 ro iommu=off quiet")
    assert node.look() == [("r1", "kernel command line iommu=pt → iommu=off")]


def test_the_firmware_of_several_devices_is_one_version_or_each_with_its_devices(node: Node) -> None:
    for device in ("mlx5_0", "mlx5_1"):
        node.write(f"sys/class/infiniband/{device}/fw_ver", "28.39\n")
    node.write(VBIOS, "Model: H100\nVideo BIOS: 96.00.30\nGPU Firmware: 535.1\n")
    assert node.look() == []
    node.write("sys/class/infiniband/mlx5_1/fw_ver", "28.40\n")
    node.write(VBIOS, "Model: H100\nVideo BIOS: 96.00.5E\nGPU Firmware: N/A\n")
    assert sorted(node.look()) == [("r1", "gpu vbios 96.00.30 → 96.00.5E"), ("r1", "nic firmware 28.39 → 28.39 of mlx5_0, 28.40 of mlx5_1")]


def test_twin_a_newer_image_of_the_agents_container_is_no_change_of_the_node(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.write("etc/os-release", 'PRETTY_NAME="Debian 12"\n')
    assert node.look() == []
    node.write("etc/os-release", 'PRETTY_NAME="Debian 13"\n')
    for container in ("kubernetes", "docker"):
        if container == "kubernetes":
            monkeypatch.setenv(software_versions.KUBERNETES, "10.0.0.1")
        else:
            monkeypatch.delenv(software_versions.KUBERNETES)
            node.write(".dockerenv", "")
        assert node.look() == [], container
    (node.folder / "proc" / "1").mkdir()
    (node.folder / "proc" / "1" / "root").symlink_to(node.folder)
    assert node.look() == [], "its process 1 is in the same container"
    (node.folder / "proc" / "1" / "root").unlink()
    node.write("proc/1/root/etc/os-release", 'PRETTY_NAME="Ubuntu 24.04"\n')
    assert node.look() == [("r1", "os Debian 12 → Ubuntu 24.04")], "the node's own"
    (node.folder / ".dockerenv").unlink()
    assert node.look() == [("r1", "os Ubuntu 24.04 → Debian 13")]

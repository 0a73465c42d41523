"""Where a node is, told to its jobs."""

from pathlib import Path

import msgspec
import pytest

from collectors.agent.job_directory import LocalJob
from collectors.node_topology import NodeTopologyCollector, place_of_neighbors
from collectors.site.lldp_neighbors import LldpNeighbor
from eagle_eye.clock import FakeClock
from eagle_eye.config import NodesConfig, TopologyConfig
from eagle_eye.node_devices import NodeGpu, gpus_told
from eagle_eye.node_places import place_told
from eagle_eye.place_file import NAME, read_place
from eagle_eye.types import Event, Kind, NodePlace
from fakes.sysfs import ACTIVE, DOWN, HDR, Sysfs

CONF = "SwitchName=leaf-1 Nodes=n[1-4]\nSwitchName=leaf-2 Nodes=n[5-8]\nBlockName=b1 Nodes=n[1-8]\n"


class Node:
    """A node with jobs, and an agent that looks each second."""

    def __init__(self, folder: Path, **options: object) -> None:
        self.folder, self.clock = folder, FakeClock(now=1_700_000_000.0)
        self.sysfs = Sysfs(folder / "sys")
        self.slurm, self.labels = folder / "slurm" / "topology.conf", folder / "labels"
        self.slurm.parent.mkdir()
        (folder / "jobs").mkdir()
        self.collector = NodeTopologyCollector(
            node="n1", run_dir=folder, sysfs=self.sysfs.root, slurm=(str(self.slurm.parent),), labels_files=(str(self.labels),), driver=folder / "driver", lldp=False, clock=self.clock, **options  # type: ignore[arg-type]
        )

    def gpu(self, pci: str, uuid: str, behind: str, minor: int = 0) -> Path:
        """The folder of its file in /proc."""
        self.sysfs.card(pci, behind, 0)
        folder = self.folder / "driver" / "gpus" / pci
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "information").write_text(f"GPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n")
        return folder

    def register(self, run: str, state: str = "running") -> None:
        body = msgspec.json.encode(LocalJob(job=f"t/gpt/{run}", run=run, node="n1", state=state))
        new = self.folder / f"new-{run}"
        new.write_bytes(body)
        new.replace(self.folder / "jobs" / f"{run}.json")

    def look(self, seconds: float = 1.0) -> list[Event]:
        self.clock.advance(seconds)
        return self.collector.collect()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def told(events: list[Event]) -> list[tuple[str, dict[str, str]]]:
    return [(event.job, dict(event.attributes)) for event in events if event.name == "node.place"]


def test_each_job_is_told_once_and_again_when_it_has_changed(node: Node) -> None:
    node.slurm.write_text(CONF)
    node.register("r1")
    (event,) = node.look()
    assert (event.name, event.entity.kind, event.entity.name, event.job) == ("node.place", Kind.NODE, "n1", "t/gpt/r1")
    assert event.attributes == {"switch": "leaf-1", "rack": "b1", "source": "slurm"}
    assert event.message == "n1 is at switch leaf-1, rack b1 (by slurm)"
    assert node.look(60.0) == []
    node.register("r2")
    assert told(node.look()) == [("t/gpt/r2", {"switch": "leaf-1", "rack": "b1", "source": "slurm"})]
    node.slurm.write_text(CONF.replace("n[1-4]", "n[2-4]").replace("n[5-8]", "n[1,5-8]"))
    assert node.look() == []
    assert sorted((job, place["switch"]) for job, place in told(node.look(60.0))) == [("t/gpt/r1", "leaf-2"), ("t/gpt/r2", "leaf-2")]


def test_a_job_that_comes_again_is_told_again_and_one_that_has_stopped_is_not(node: Node) -> None:
    node.slurm.write_text(CONF)
    node.register("r1", state="stopped")
    assert node.look() == []
    node.register("r1")
    assert len(node.look()) == 1
    (node.folder / "jobs" / "r1.json").unlink()
    node.look()
    node.register("r1")
    assert len(node.look()) == 1


def test_the_configuration_counts_before_slurm_and_slurm_before_labels_for_each_value(tmp_path: Path) -> None:
    node = Node(tmp_path, topology=TopologyConfig(nodes=(NodesConfig(hosts="n[1-9]", rack="a07"),)))
    node.slurm.write_text(CONF)
    node.labels.write_text('topology.kubernetes.io/zone="eu-1a"\nnetwork.topology.nvidia.com/leaf="other"\n')
    node.register("r1")
    assert told(node.look()) == [("t/gpt/r1", {"switch": "leaf-1", "rack": "a07", "zone": "eu-1a", "source": "configuration,slurm,labels"})]
    assert node.collector.knows == "switch leaf-1, rack a07, zone eu-1a (by configuration,slurm,labels); 0 GPUs and 0 ports of the fabric"


def test_a_node_that_nobody_knows_says_nothing_and_one_that_is_known_no_more_says_so(node: Node) -> None:
    node.register("r1")
    assert node.look() == []
    assert node.collector.knows == "location unknown; 0 GPUs and 0 ports of the fabric"
    node.slurm.write_text(CONF)
    assert len(node.look(60.0)) == 1
    node.slurm.unlink()
    (event,) = node.look(60.0)
    assert event.attributes == {}
    node.clock.advance(1.0)
    assert place_told(msgspec.structs.replace(event, node="n1")) == NodePlace()


def test_the_place_is_left_for_the_launchers_here_and_changes_with_it(node: Node) -> None:
    assert node.look() == []
    assert not (node.folder / NAME).exists(), "nothing is known"
    node.slurm.write_text(CONF)
    node.look(60.0)
    assert read_place(node.folder, "n1") == NodePlace(switch="leaf-1", rack="b1", source="slurm")
    (node.folder / NAME).unlink()
    node.look(60.0)
    assert read_place(node.folder, "n1").switch == "leaf-1", "removed by whoever it was"
    node.slurm.unlink()
    node.look(60.0)
    assert read_place(node.folder, "n1") == NodePlace()


def test_a_run_directory_that_takes_nothing_is_named_and_the_jobs_are_told_all_the_same(node: Node) -> None:
    node.slurm.write_text(CONF)
    node.register("r1")
    (node.folder / NAME).mkdir()
    assert told(node.look()) == [("t/gpt/r1", {"switch": "leaf-1", "rack": "b1", "source": "slurm"})]
    (problem,) = node.collector.problems
    assert f"{NAME} cannot be written" in problem


def test_a_source_that_is_broken_is_named_and_the_others_count(node: Node) -> None:
    node.slurm.write_text("SwitchName=leaf-1 Nodes=n[1-")
    node.labels.write_text('topology.kubernetes.io/rack="a07"\n')
    node.register("r1")
    assert told(node.look()) == [("t/gpt/r1", {"rack": "a07", "source": "labels"})]
    (problem,) = node.collector.problems
    assert "not closed" in problem


def test_a_node_hangs_at_a_switch_by_lldp_only_if_all_its_rails_do() -> None:
    known = {"eth0": LldpNeighbor("leaf-1", "1"), "eth1": LldpNeighbor("leaf-1", "2"), "eth2": LldpNeighbor("leaf-2", "1"), "mgmt": LldpNeighbor("office", "9")}
    assert place_of_neighbors(known, ["eth0", "eth1"]) == NodePlace(switch="leaf-1", source="lldp")
    assert place_of_neighbors(known, ["eth0", "eth2"]) == NodePlace()
    assert place_of_neighbors(known, []) == NodePlace()


# --- devices

UUIDS = [f"GPU-00000000-0000-0000-0000-00000000000{digit}" for digit in range(3)]
GONE = "GPU-????????-????-????-????-????????????"


def test_each_gpu_is_told_with_the_port_next_to_it_and_each_port_with_its_rail_and_switch(node: Node) -> None:
    for number in (0, 1):
        node.sysfs.card(f"0000:{number}8:00.0", f"pci0000:{number}5", 0)
        node.sysfs.rdma(f"mlx5_{number}", f"0000:{number}8:00.0", layer="Ethernet")
        node.sysfs.interface(f"eth{number}", f"0000:{number}8:00.0")
        node.gpu(f"0000:{number}b:00.0", UUIDS[number], f"pci0000:{number}5")
    node.sysfs.rdma("mlx5_9", "0000:40:00.0", rate=HDR)
    node.collector._lldp.known = {"eth1": LldpNeighbor("leaf-2", "swp7")}
    node.register("r1")
    place, devices = node.look()
    assert (place.name, dict(place.attributes)) == ("node.place", {"switch": "leaf-2", "source": "lldp"})
    assert (devices.name, devices.entity.name, devices.message) == ("node.devices", "n1", "n1 has 2 GPUs and 2 ports of the fabric")
    told = gpus_told(msgspec.structs.replace(devices, node="n1"))
    assert told == tuple(NodeGpu(uuid=UUIDS[index], index=index, pci=f"0000:{index}b:00.0", numa=0, port=f"mlx5_{index}:1") for index in (0, 1))
    assert msgspec.json.decode(devices.attributes["ports"]) == [
        {"name": "mlx5_0:1", "pci": "0000:08:00.0", "numa": 0, "rail": 0, "switch": "", "switch_port": ""},
        {"name": "mlx5_1:1", "pci": "0000:18:00.0", "numa": 0, "rail": 1, "switch": "leaf-2", "switch_port": "swp7"},
    ]
    assert node.look(60.0) == []


def test_a_port_that_is_down_and_a_gpu_that_is_lost_are_no_change_and_one_more_gpu_is(node: Node) -> None:
    port = node.sysfs.rdma("mlx5_0", "0000:18:00.0")
    node.sysfs.rdma("mlx5_1", "0000:28:00.0", rate=HDR)
    node.gpu("0000:1b:00.0", UUIDS[0], "pci0000:00")
    node.register("r1")
    assert [event.name for event in node.look()] == ["node.devices"]
    node.sysfs.write(port / "state", DOWN)
    node.sysfs.write(port / "rate", "10 Gb/sec (4X SDR)")
    node.gpu("0000:1b:00.0", GONE, "pci0000:00")
    assert node.look(60.0) == []
    node.sysfs.write(port / "state", ACTIVE)
    node.gpu("0000:1c:00.0", UUIDS[1], "pci0000:00", minor=1)
    (event,) = node.look(60.0)
    assert [gpu["uuid"] for gpu in msgspec.json.decode(event.attributes["gpus"])] == UUIDS[:2]


def test_configured_rails_are_the_ports_of_the_fabric(tmp_path: Path) -> None:
    node = Node(tmp_path, topology=TopologyConfig(nodes=(NodesConfig(hosts="n1", rails=("gone", "mlx5_1:1")),)))
    node.sysfs.rdma("mlx5_0", "0000:18:00.0")
    node.sysfs.rdma("mlx5_1", "0000:28:00.0", rate=HDR)
    node.register("r1")
    (event,) = node.look()
    assert [(port["name"], port["rail"]) for port in msgspec.json.decode(event.attributes["ports"])] == [("mlx5_1:1", 1)]

"""Where a node is, told to its jobs."""

from pathlib import Path

import msgspec
import pytest

from collectors.agent.job_directory import LocalJob
from collectors.node_topology import NodeTopologyCollector
from collectors.site.lldp_neighbors import LldpNeighbor
from collectors.site.place_sources import place_of_neighbors
from eagle_eye.clock import FakeClock
from eagle_eye.config import NodesConfig, TopologyConfig
from eagle_eye.node_places import place_told
from eagle_eye.types import Event, Kind, NodePlace
from fakes.sysfs import Sysfs

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
            node="n1", run_dir=folder, sysfs=self.sysfs.root, slurm=(str(self.slurm.parent),), labels_files=(str(self.labels),), lldp=False, clock=self.clock, **options  # type: ignore[arg-type]
        )

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
    assert node.collector.knows == "switch leaf-1, rack a07, zone eu-1a (by configuration,slurm,labels)"


def test_a_node_that_nobody_knows_says_nothing_and_one_that_is_known_no_more_says_so(node: Node) -> None:
    node.register("r1")
    assert node.look() == []
    assert node.collector.knows == "a place that nobody knows"
    node.slurm.write_text(CONF)
    assert len(node.look(60.0)) == 1
    node.slurm.unlink()
    (event,) = node.look(60.0)
    assert event.attributes == {}
    node.clock.advance(1.0)
    assert place_told(msgspec.structs.replace(event, node="n1")) == NodePlace()


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

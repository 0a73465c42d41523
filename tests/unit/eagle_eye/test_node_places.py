"""Where the nodes of a job are, in its layout, its topology and its snapshots."""

import pytest

from eagle_eye.frames import Frame
from eagle_eye.job_snapshots import JobSnapshots
from eagle_eye.node_devices import NodeGpu, devices_attributes
from eagle_eye.types import Entity, Event, Kind, Layout, NodePlace, RankPlacement
from eagle_eye.wire import Schemas, decode, encode
from fakes.frame_job import JOB, FrameJob


def layout(*nodes: str, epoch: int = 1) -> Layout:
    placements = tuple(RankPlacement(worker=f"r/{node}/0", node=node, rank=rank, local_rank=0, gpu=f"GPU-{node}") for rank, node in enumerate(nodes))
    return Layout(job=JOB, epoch=epoch, time=float(epoch), coordinator="a", launchers={"a": "", "spare": ""}, placements=placements)


def place(node: str, number: int = 1, *, of: str = "", **told: str) -> Event:
    return Event(name="node.place", job=JOB, entity=Entity(kind=Kind.NODE, name=of or node), time=0.0, node=node, incarnation="b", number=number, attributes=told)


def devices(node: str, number: int = 1, *, of: str = "", gpu: str = "", port: str = "mlx5_0:1", text: str = "") -> Event:
    told = devices_attributes([NodeGpu(uuid=gpu or f"GPU-{node}", index=0, pci="0000:1b:00.0", port=port)], [])
    entity = Entity(kind=Kind.NODE, name=of or node)
    return Event(name="node.devices", job=JOB, entity=entity, time=0.0, node=node, incarnation="c", number=number, attributes={"gpus": text} if text else told)


def ports(frame: Frame) -> dict[str, str]:
    assert frame.layout is not None
    assert {place.gpu: place.port for place in frame.layout.placements if place.port} == frame.topology.gpu_ports
    return dict(frame.topology.gpu_ports)


def switches(frame: Frame) -> dict[str, str]:
    return dict(frame.topology.nodes)


def test_a_place_is_in_the_layout_and_the_topology_before_and_after_a_new_epoch() -> None:
    job = FrameJob()
    job.builder.feed(place("a", switch="leaf-1", rack="r1", source="slurm"))
    job.builder.feed(layout("a", "b"))
    assert switches(job.tick()) == {"a": "leaf-1", "b": ""}
    job.builder.feed(place("b", switch="leaf-2"))
    job.builder.feed(place("spare", switch="leaf-2"))
    frame = job.tick()
    assert switches(frame) == {"a": "leaf-1", "b": "leaf-2", "spare": "leaf-2"}
    assert frame.layout is not None
    assert frame.layout.places["a"] == NodePlace(switch="leaf-1", rack="r1", source="slurm")
    job.builder.feed(layout("b", epoch=2))
    assert switches(job.tick()) == {"a": "leaf-1", "b": "leaf-2", "spare": "leaf-2"}, "a's launcher still votes"


def test_a_node_that_moves_has_its_new_place() -> None:
    job = FrameJob()
    job.builder.feed(layout("a"))
    job.builder.feed(place("a", switch="leaf-1"))
    job.tick()
    job.builder.feed(place("a", 2))
    assert switches(job.tick()) == {"a": ""}, "nobody knows any more"
    job.builder.feed(place("a", 3, switch="leaf-3"))
    assert switches(job.tick()) == {"a": "leaf-3"}


def test_who_begins_to_read_later_has_the_places_from_the_layout_that_was_written_down() -> None:
    first, later = FrameJob(), FrameJob()
    first.builder.feed(place("a", switch="leaf-1"))
    first.builder.feed(layout("a", "b"))
    written = first.tick().layout
    assert written is not None
    later.builder.feed(decode(encode(written), Schemas()))  # type: ignore[arg-type]
    assert switches(later.tick()) == {"a": "leaf-1", "b": ""}
    later.builder.feed(place("a", 2, switch="leaf-2"))
    later.tick()
    later.builder.feed(written)
    assert switches(later.tick()) == {"a": "leaf-2", "b": ""}, "what the node said since counts"


@pytest.mark.parametrize("event", [place("b", of="a", switch="leaf-9"), place("a", switch="x" * 401), place("a", rack="a\0b"), place("elsewhere", switch="leaf-9")])
def test_nobody_speaks_for_another_node_and_names_that_cannot_be_are_none(event: Event) -> None:
    job = FrameJob()
    job.builder.feed(layout("a", "b"))
    job.builder.feed(event)
    assert switches(job.tick()) == {"a": "", "b": ""}


def test_the_leader_is_told_with_the_layout_once_and_when_it_changes() -> None:
    job, snapshots = FrameJob(), JobSnapshots()
    job.builder.feed(layout("a", "b"))
    job.builder.feed(place("a", switch="leaf-1"))
    told = []
    for number in range(4):
        if number == 2:
            job.builder.feed(place("b", switch="leaf-2"))
        snapshot = snapshots.of(job.tick())
        told.append(snapshot and snapshot.layout and {node: each.switch for node, each in snapshot.layout.places.items()})
    assert told == [{"a": "leaf-1"}, None, {"a": "leaf-1", "b": "leaf-2"}, None]


def test_the_port_next_to_a_gpu_is_in_the_layout_and_the_topology_before_and_after_a_new_epoch() -> None:
    job, later = FrameJob(), FrameJob()
    job.builder.feed(devices("a"))
    job.builder.feed(layout("a", "b"))
    frame = job.tick()
    assert ports(frame) == {"GPU-a": "a/mlx5_0:1"}
    later.builder.feed(frame.layout)  # type: ignore[arg-type]
    for each in (job, later):
        each.builder.feed(layout("b", "a", epoch=2))
        assert ports(each.tick()) == {"GPU-a": "a/mlx5_0:1"}
        each.builder.feed(devices("a", 2, port="mlx5_1:1"))
        each.builder.feed(devices("b", port="mlx5_0:1"))
        assert ports(each.tick()) == {"GPU-a": "a/mlx5_1:1", "GPU-b": "b/mlx5_0:1"}
        each.builder.feed(devices("a", 3, port=""))
        assert ports(each.tick()) == {"GPU-b": "b/mlx5_0:1"}


@pytest.mark.parametrize("event", [devices("b", of="a", gpu="GPU-b"), devices("a", text="{"), devices("a", text="[7]"), devices("a", text='[{"uuid": "GPU-a"}]'), devices("a", text="[" * 100_000), devices("elsewhere")])
def test_devices_of_another_node_and_what_is_no_list_of_devices_count_for_nothing(event: Event) -> None:
    job = FrameJob()
    job.builder.feed(layout("a", "b"))
    job.builder.feed(event)
    assert ports(job.tick()) == {}

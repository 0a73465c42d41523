"""A node that no layout of a job names says nothing about it: a local user there may have registered the name of another's job."""

import msgspec
import numpy as np
import pytest

from detectors.diagnosis import Diagnosis
from detectors.runtime.evaluator import Evaluator
from detectors.xid_errors import XidErrors
from eagle_eye import wire
from eagle_eye.frames import FrameBuilder
from eagle_eye.outside_records import HELD_MOST, HELD_TICKS
from eagle_eye.types import Batch, Block, Entity, Event, Kind, Layout, Mark, RankPlacement, Reading

JOB = "victim/train/x"


def layout(*nodes: str, epoch: int = 1, launchers: tuple[str, ...] = (), excluded: tuple[str, ...] = ()) -> Layout:
    placements = tuple(RankPlacement(worker=f"x/{node}/0", node=node, rank=rank, local_rank=0, gpu=f"GPU-{node}") for rank, node in enumerate(nodes))
    named = dict.fromkeys((*nodes, *launchers), "")
    return Layout(job=JOB, epoch=epoch, time=float(epoch), coordinator=nodes[0], launchers=named, placements=placements, excluded=excluded)


def xid(node: str, number: int = 1, name: str = "gpu.xid") -> Event:
    entity = Entity(kind=Kind.GPU, name=f"GPU-{node}")
    return Event(name=name, job=JOB, entity=entity, time=100.0, node=node, incarnation="agent", number=number, message="Xid 79", attributes={"code": "79"})


class Job:
    """A builder that is fed real bytes."""

    def __init__(self) -> None:
        self.schemas, self.reader = wire.Schemas(), wire.RecordReader()
        self.builder = FrameBuilder(JOB, self.schemas)
        self.marks = 0

    def batch(self, node: str, number: int = 1) -> None:
        reading = Reading(source="gpu", kind=Kind.GPU, entities=(f"GPU-{node}",), names=("power_watts",), matrix=np.ones((1, 1), np.float32), time=100.0)
        block = Block(schema_id=self.schemas.schema_of(reading).id, reading=reading)
        record = self.reader.read(wire.encode(Batch(node=node, incarnation="agent", job=JOB, number=number, time=100.0, blocks=(block,))))
        assert isinstance(record, wire.SealedBatch)
        self.builder.feed(record)

    def tick(self) -> tuple[set[str], set[str]]:
        """Nodes of the events, and GPUs with readings, of the next frame."""
        self.marks += 1
        frame = self.builder.tick(Mark(mark="tick", generation=1, number=self.marks, time=100.0 + self.marks))
        return {event.node for event in frame.events}, set(frame.entities.get(Kind.GPU, ()))

    def tell(self, node: str, number: int = 1) -> None:
        self.builder.feed(xid(node, number))
        self.batch(node, number)


@pytest.fixture
def job() -> Job:
    return Job()


def test_what_a_node_outside_says_does_not_count(job: Job) -> None:
    job.builder.feed(layout("a", "b"))
    job.tell("n9")
    assert job.tick() == (set(), set())
    assert "GPU-n9" not in job.builder.topology.gpus
    for _ in range(HELD_TICKS):
        job.tick()
    assert (job.builder.outside.left_out, job.builder.outside.node) == (2, "n9")
    job.builder.feed(layout("a", "b", "n9", epoch=2))
    assert job.tick() == (set(), set()), "it was left out for good"


def test_twin_a_node_that_joins_is_heard_from_before_its_layout(job: Job) -> None:
    """Its agent sees the job file, and tells once where the node is, a moment before the coordinator's record is read."""
    job.builder.feed(layout("a", "b"))
    job.tell("c")
    assert job.tick() == (set(), set())
    job.builder.feed(layout("a", "b", "c", epoch=2))
    assert job.tick() == ({"c"}, {"GPU-c"})
    assert job.builder.outside.left_out == 0


@pytest.mark.parametrize("named", [layout("a", "b"), layout("a", launchers=("b",)), layout("a", excluded=("b",))], ids=["works", "spare", "evicted"])
def test_twin_a_node_that_the_layout_names_in_any_way_counts(job: Job, named: Layout) -> None:
    job.builder.feed(named)
    job.tell("b")
    assert job.tick() == ({"b"}, {"GPU-b"})


def test_twin_a_node_that_was_lost_a_moment_ago_still_tells_why(job: Job) -> None:
    job.builder.feed(layout("a", "b"))
    job.builder.feed(layout("a", epoch=2))
    job.tell("b")
    assert job.tick() == ({"b"}, {"GPU-b"})


def test_twin_a_job_without_a_layout_is_told_of_by_all(job: Job) -> None:
    """A plain torchrun has no launcher that would write one."""
    job.tell("n9")
    assert job.tick() == ({"n9"}, {"GPU-n9"})


def test_twin_what_a_server_says_comes_from_the_server_s_node(job: Job) -> None:
    job.builder.feed(layout("a", "b"))
    for number, name in enumerate(("session.lost", "claim.refused", "alert.firing"), 1):
        job.builder.feed(xid("head", number, name))
    assert job.tick()[0] == {"head"}


def test_a_node_that_never_stops_does_not_fill_the_memory(job: Job) -> None:
    job.builder.feed(layout("a", "b"))
    for number in range(1, 2 * HELD_MOST + 1):
        job.builder.feed(xid("n9", number))
    assert job.builder.outside.left_out == HELD_MOST


def incidents(*events: Event) -> tuple[list[str], list[str]]:
    """Entities that are accused, and notices."""
    notices: list[str] = []
    evaluator = Evaluator([("xid_errors", XidErrors())], Diagnosis(), notify=lambda name, message: notices.append(f"{name}: {message}"))
    evaluator.take(layout("a", "b"))
    accused: list[str] = []
    for event in events:
        evaluator.take(event)
    for number in range(1, HELD_TICKS + 20):
        evaluation = evaluator.take(Mark(mark="tick", generation=1, number=number, time=100.0 + number))
        assert evaluation is not None
        accused += [str(culprit.entity) for incident in evaluation.incidents for culprit in incident.culprits]
    return accused, notices


def test_the_gpu_of_a_node_that_is_no_part_of_the_job_is_no_incident_of_it() -> None:
    accused, notices = incidents(xid("n9"), msgspec.structs.replace(xid("n9", 2), attributes={"code": "48"}))
    assert accused == []
    assert notices == [
        f"claim.refused: n9 reports about {JOB}, and no layout of that job names it: what it says does not count; "
        "start its agent and launcher with the same --node, or see who has registered the job there (jobs/ of its run directory)"
    ], "told once"


def test_twin_the_gpu_of_a_node_of_the_job_is() -> None:
    accused, notices = incidents(xid("b"))
    assert (accused[0], notices) == ("gpu GPU-b", [])

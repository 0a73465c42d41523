"""What the process groups of workers say of their parallel ranks, in the layout of their frames."""

import pytest

from eagle_eye.frames import Frame
from eagle_eye.types import Entity, Event, Kind, Layout, RankPlacement
from fakes.frame_job import JOB, FrameJob


def layout(*workers: str, epoch: int = 1) -> Layout:
    places = tuple(RankPlacement(worker=worker, node=worker.split("/")[1], rank=rank, local_rank=rank) for rank, worker in enumerate(workers))
    return Layout(job=JOB, epoch=epoch, time=float(epoch), coordinator="n", launchers={}, placements=places)


def groups(number: int, worker: str, node: str, epoch: int = 1, **ranks: str) -> Event:
    entity = Entity(kind=Kind.WORKER, name=worker)
    return Event(name="worker.groups", job=JOB, entity=entity, time=0.0, node=node, incarnation="b", number=number, attributes={"epoch": str(epoch), **ranks})


def placed(frame: Frame) -> list[tuple[int, int]]:
    assert frame.layout is not None
    return [(place.pp, place.tp) for place in frame.layout.placements]


def test_what_the_groups_of_a_worker_say_is_in_the_layout() -> None:
    job = FrameJob()
    job.builder.feed(layout("r/a/0", "r/b/0"))
    job.builder.feed(groups(1, "r/b/0", "b", pp="1", tp="0"))
    frame = job.tick()
    assert placed(frame) == [(0, 0), (1, 0)]
    job.builder.feed(groups(1, "r/a/0", "a", tp="1"))
    assert placed(job.tick()) == [(0, 1), (1, 0)]
    job.builder.feed(groups(2, "r/a/0", "a", tp="1"))  # again, for those who read later
    assert job.tick().layout is job.builder.layout
    job.builder.feed(layout("r/a/0", "r/b/0"))  # the same epoch, from a record that is read twice
    assert placed(job.tick()) == [(0, 1), (1, 0)]


def test_a_new_epoch_has_ranks_of_its_own() -> None:
    job = FrameJob()
    job.builder.feed(layout("r/a/0", "r/b/0"))
    job.builder.feed(groups(1, "r/b/0", "b", pp="1"))
    job.tick()
    job.builder.feed(layout("r/b/0", "r/a/0", epoch=2))
    job.builder.feed(groups(2, "r/b/0", "b", pp="1", epoch=1))  # late
    assert placed(job.tick()) == [(0, 0), (0, 0)]
    job.builder.feed(groups(3, "r/a/0", "a", pp="1", epoch=2))
    assert placed(job.tick()) == [(0, 0), (1, 0)]


@pytest.mark.parametrize("event", [groups(1, "r/b/0", "a", pp="1"), groups(1, "r/c/0", "c", pp="1"), groups(1, "r/b/0", "b", pp="x"), groups(1, "r/b/0", "b", epoch=0, pp="1")])
def test_a_worker_of_another_node_of_no_epoch_or_of_nowhere_moves_nobody(event: Event) -> None:
    job = FrameJob()
    job.builder.feed(layout("r/a/0", "r/b/0"))
    job.builder.feed(event)
    assert placed(job.tick()) == [(0, 0), (0, 0)]

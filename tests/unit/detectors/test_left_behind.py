"""On GPUs all wait for their GPU: torch's flight recorder tells who has not come to the collective of the others."""

from dataclasses import replace

import numpy as np
import pytest

from detectors.features.collective_ranks import left_behind
from detectors.stall import Stall
from eagle_eye.activity.last_collective import LastCollective
from eagle_eye.frames import Frame
from eagle_eye.types import Event, Kind
from fakes.synthetic_events import event, with_events, worker
from fakes.synthetic_frames import BEGAN, job_frames, layout_of

LAYOUT = layout_of(2, 2, gpus=True)
LATE = "run/node-0/1"
GPUS = tuple(place.gpu for place in LAYOUT.placements)


def told(late: int = 123) -> list[Event]:
    return [
        event("stall", worker(place.node, place.local_rank), BEGAN + 0.5, epoch=1, state="S", age_s=2.0, step="", marks="", phase="", activity="awaits gpu",
              place="train.py:30 step", doing="waits for its GPU", collective="all_reduce", collective_group="0 default_pg nccl",
              collective_number=late if rank == 1 else 124, collective_pending=int(rank != 1))
        for rank, place in enumerate(LAYOUT.placements)
    ]  # fmt: skip


def frames(used: float, moves: bool = False) -> list[Frame]:
    """One a second; the GPU of the late one is used so much, the others' wait within NCCL."""
    plain = [with_events(each) for each in job_frames(2, 2, 8, np.random.default_rng(0))]
    out = []
    for number, frame in enumerate(plain):
        metrics = dict(frame.metrics) | {Kind.GPU: {"utilisation_percent": np.array([100.0, used, 100.0, 100.0], dtype=np.float32)}}
        rows = dict(metrics[Kind.WORKER]) | {"progress_age_s": np.full(4, number + 2.0), "activity_seen_s": np.full(4, 0.6)}
        rows |= {name: np.full(4, np.nan) for name in ("step", "marks", "step_marks", "phase")}
        bare = replace(frame, steps=(), layout=LAYOUT, entities=dict(frame.entities) | {Kind.GPU: GPUS}, metrics=metrics | {Kind.WORKER: rows})
        out.append(with_events(bare, *(told(100 + number) if moves or not number else [])))
    return out


@pytest.mark.parametrize(("used", "moves", "named"), [(0.0, False, True), (0.0, True, False), (98.0, False, False), (np.nan, False, False)])
def test_fault_and_twins_who_has_not_come_to_the_collective_of_the_others(used: float, moves: bool, named: bool) -> None:
    """Numbers that still move, a GPU that computes, and one of which nothing is known accuse nobody."""
    detector = Stall()
    claims = [claim for frame in frames(used, moves) for claim in detector.update(frame)]
    assert {claim.entity.name for claim in claims if claim.kind == "worker.stalled"} == ({LATE} if named else set())


def test_only_one_that_waits_in_no_collective_is_left_behind() -> None:
    waits, late = LastCollective("0 a", 124, "all_reduce", pending=True), LastCollective("0 a", 123, "all_reduce", pending=False)
    assert left_behind("abc", {"a": waits, "b": late, "c": waits}) == "b"
    for other in (late._replace(pending=True), late._replace(group="1 b"), waits):
        assert left_behind("abc", {"a": waits, "b": other, "c": waits}) == ""
    assert left_behind("abc", {"a": waits, "b": late, "c": late}) == "", "two"
    assert left_behind("abc", {"a": waits, "b": late}) == "", "nothing is known of c"

"""What a snapshot keeps of a frame."""

import uuid
import zlib
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace as replace_fields

from eagle_eye.clock import FakeClock
from eagle_eye.frames import Frame
from eagle_eye.job_snapshots import (
    COMPRESSED_FROM,
    LARGEST,
    JobSnapshots,
    decode_snapshot,
    encode_snapshot,
    snapshot_of,
)
from eagle_eye.stream.partitioner import MAX_RECORD_BYTES
from eagle_eye.types import Entity, Event, JobSnapshot, Kind, Step
from fakes.synthetic_job import SyntheticJob


@pytest.fixture
def paper() -> SyntheticJob:
    return SyntheticJob(clock=FakeClock())


def a_tick(paper: SyntheticJob) -> Frame:
    return next(frame for _ in range(100) for frame in paper.frames(0.1) if frame.tick and frame.steps)


def a_step(**values: list[float]) -> Step:
    arrays = {name: np.array(numbers, dtype=np.float32) for name, numbers in values.items()}
    return Step(number=1, epoch=1, workers=("a", "b"), end=10.0, values=arrays)


def test_it_survives_the_wire_also_where_numbers_are_missing(paper):
    frame = replace(a_tick(paper), steps=(a_step(loss=[np.nan, np.inf], tokens=[np.nan, np.nan]),))
    snapshot = snapshot_of(frame)
    assert msgspec.json.decode(msgspec.json.encode(snapshot), type=JobSnapshot) == snapshot
    [step] = snapshot.steps
    assert (step.tokens, step.loss, step.finite) == (None, None, False)


def test_a_step_is_summed_up_over_its_workers(paper):
    frame = replace(a_tick(paper), steps=(a_step(loss=[2.0, 4.0], tokens=[100.0, 50.0], step_s=[0.1, 0.5]),))
    [step] = snapshot_of(frame).steps
    assert (step.workers, step.loss, step.tokens) == (2, pytest.approx(400 / 150), 150.0)
    assert step.step_s == pytest.approx(0.5)
    assert step.finite


def test_a_loss_counts_by_the_tokens_it_is_of_and_as_it_is_where_none_are_told(paper):
    given = a_step(loss=[2.0, 4.0], tokens=[100.0, 0.0]), a_step(loss=[2.0, 4.0]), a_step(loss=[np.nan, 4.0], tokens=[100.0, np.nan])
    assert [step.loss for step in snapshot_of(replace(a_tick(paper), steps=given)).steps] == [2.0, 3.0, 4.0]


def test_a_loss_that_is_told_now_and_then_is_no_bad_number_but_a_logged_nan_is(paper):
    silent, logged = a_step(loss=[np.nan, np.nan]), a_step(loss=[np.nan, 2.0], loss_nan=[1.0, np.nan])
    steps = snapshot_of(replace(a_tick(paper), steps=(silent, logged))).steps
    assert [step.finite for step in steps] == [True, False]


def test_heard_is_the_time_of_the_node_that_was_silent_for_longest(paper):
    frame = a_tick(paper)
    late = replace(frame, reporting={"node-a": frame.time, "node-b": frame.time - 7.0})
    assert snapshot_of(late).heard == frame.time - 7.0
    assert snapshot_of(late).behind_s == 0.0
    assert snapshot_of(replace(frame, reporting={"node-a": frame.time})).heard == 0.0, "one that never reported"


def test_nodes_whose_batches_are_not_of_now_are_named(paper):
    frame = a_tick(paper)
    now = frame.time
    assert snapshot_of(frame).late == {}
    odd = replace(frame, reporting={"node-a": now + 20.0, "node-b": now - 7.0, "elsewhere": 0.0})
    assert snapshot_of(odd).late == {"node-a": pytest.approx(-20.0), "node-b": pytest.approx(7.0)}
    assert snapshot_of(replace(frame, reporting={"node-a": now})).late == {"node-b": now}


def test_only_events_that_decisions_hang_on_travel(paper):
    entity = Entity(kind=Kind.JOB, name=paper.name)
    events = tuple(Event(name=name, job=paper.name, entity=entity, time=1.0, node="n", incarnation="b", number=1) for name in ("xid", "resumed"))
    assert [event.name for event in snapshot_of(replace(a_tick(paper), events=events)).events] == ["resumed"]


def test_the_layout_travels_once_and_again_when_it_changes(paper):
    snapshots = JobSnapshots()
    taken = [snapshots.of(frame) for _ in range(50) for frame in paper.frames(0.1)]
    assert [snapshot.layout is not None for snapshot in taken] == [True] + [False] * (len(taken) - 1)
    paper.lose("node-b")
    changed = [snapshot.layout.nodes for frame in paper.frames(0.1) if (snapshot := snapshots.of(frame)) and snapshot.layout]
    assert changed == [("node-a",)]


def test_a_node_without_a_job_makes_no_snapshot(paper):
    assert JobSnapshots().of(replace(a_tick(paper), layout=None, steps=(), events=())) is None


def test_a_small_snapshot_is_json(paper):
    snapshot = snapshot_of(a_tick(paper))
    assert msgspec.json.decode(encode_snapshot(snapshot), type=JobSnapshot) == snapshot == decode_snapshot(encode_snapshot(snapshot))


def test_the_layout_of_80_000_workers_fits_into_a_record_of_the_stream(paper):
    frame = a_tick(paper)
    [place, *_] = frame.layout.placements
    gpu = f"GPU-{uuid.UUID(int=7)}"
    places = tuple(
        replace_fields(place, rank=rank, gpu=f"{gpu}{rank:05}", port="mlx5_0", node=f"node-{rank // 8:05}", worker=f"run/node-{rank // 8:05}/{rank % 8}") for rank in range(80_000)
    )
    snapshot = snapshot_of(replace(frame, layout=replace_fields(frame.layout, placements=places)))
    value = encode_snapshot(snapshot)
    assert len(msgspec.json.encode(snapshot)) > MAX_RECORD_BYTES > len(value)
    assert decode_snapshot(value) == snapshot


def test_a_compressed_snapshot_that_is_torn_or_has_no_end_is_refused(paper):
    value = zlib.compress(b" " * COMPRESSED_FROM + encode_snapshot(snapshot_of(a_tick(paper))))
    assert decode_snapshot(value).job
    for torn in (value[:-5], value[:40], b"x", value[:20] + b"?" + value[21:], zlib.compress(b" " * (LARGEST + 1))):
        with pytest.raises(msgspec.DecodeError, match="compressed snapshot"):
            decode_snapshot(torn)

"""Records → frames: what is late, missing, twice or in disorder, who joins, leaves and moves."""

from collections.abc import Mapping

import msgspec
import numpy as np
import pytest

from eagle_eye import frame_columns, frames, wire
from eagle_eye.deduplication import KEPT_GAPS, SeenNumbers, Writers
from eagle_eye.frames import Frame, FrameBuilder
from eagle_eye.step_assembly import WAIT_TICKS
from eagle_eye.types import (
    Baseline,
    Batch,
    Block,
    Entity,
    Event,
    Kind,
    Layout,
    Mark,
    RankPlacement,
    Reading,
    StepReading,
    Topology,
)

JOB = "t/n/r"
NAN = float("nan")


class Job:
    """Feeds a builder through real bytes and closes frames."""

    def __init__(self, topology: Topology | None = None) -> None:
        self.schemas = wire.Schemas()
        self.sender = wire.Schemas()
        self.builder = FrameBuilder(JOB, self.schemas, topology)
        self.reader = wire.RecordReader()
        self.number = 0

    def send(self, node: str, number: int, *readings: Reading | StepReading, incarnation: str = "b", time: float = 0.0) -> None:
        blocks = []
        for reading in readings:
            schema = self.sender.schema_of(reading)
            self.schemas.add(schema)
            blocks.append(Block(schema_id=schema.id, reading=reading))
        batch = Batch(node=node, incarnation=incarnation, job=JOB, number=number, time=time or float(number), blocks=tuple(blocks))
        self.builder.feed(self.reader.read(wire.encode(batch)))

    def tick(self) -> Frame:
        return self.builder.tick(self._mark("tick"))

    def cut(self) -> Frame:
        return self.builder.cut(self._mark("cut"))

    def _mark(self, kind: str) -> Mark:
        self.number += 1
        return Mark(mark=kind, generation=1, number=self.number, time=100.0 + self.number)  # type: ignore[arg-type]


def gpus(rows: Mapping[str, float], name: str = "power_watts", source: str = "gpu") -> Reading:
    matrix = np.array([[value] for value in rows.values()], dtype=np.float32)
    return Reading(source=source, kind=Kind.GPU, entities=tuple(rows), names=(name,), matrix=matrix, time=0.0)


def steps(number: int, workers: Mapping[str, float], epoch: int = 1) -> StepReading:
    """The workers' step times; NaN = not completed."""
    values = np.array(list(workers.values()))
    return StepReading(
        source="training",
        workers=tuple(workers),
        names=("step_s",),
        numbers=np.array([number]),
        epochs=np.array([epoch]),
        ends=np.where(np.isnan(values), np.nan, 50.0 + values)[None, :],
        values=values[None, :, None],
    )


def layout(*workers: str, epoch: int = 1, gpu: str = "") -> Layout:
    places = tuple(
        RankPlacement(worker=worker, node=worker.split("/")[1], rank=rank, local_rank=rank, gpu=gpu and f"{gpu}-{rank}")
        for rank, worker in enumerate(workers)
    )
    return Layout(job=JOB, epoch=epoch, time=float(epoch), coordinator="n", launchers={}, placements=places)


def event(number: int, incarnation: str = "b") -> Event:
    entity = Entity(kind=Kind.NODE, name="n")
    return Event(name="exit", job=JOB, entity=entity, time=0.0, node="n", incarnation=incarnation, number=number)


def seen(frame: Frame, name: str = "power_watts") -> dict[str, float]:
    return dict(zip(frame.entities[Kind.GPU], frame.metrics[Kind.GPU][name].tolist(), strict=True))


# --- readings ----------------------------------------------------------------------------------------------------


def test_batches_of_many_nodes_become_one_aligned_array() -> None:
    job = Job()
    job.send("a", 1, gpus({"g0": 1, "g1": 2}))
    job.send("b", 1, gpus({"g2": 3}))
    frame = job.tick()
    assert seen(frame) == {"g0": 1, "g1": 2, "g2": 3}
    assert frame.moved[Kind.GPU].tolist() == [-1, -1, -1]
    assert frame.metrics[Kind.GPU]["power_watts"].dtype == np.float32
    job.send("b", 2, gpus({"g2": 6}))
    job.send("a", 2, gpus({"g0": 4, "g1": 5}))
    frame = job.tick()
    assert seen(frame) == {"g0": 4, "g1": 5, "g2": 6}
    assert frame.moved[Kind.GPU].tolist() == [0, 1, 2]


def test_what_is_missing_is_not_a_number_and_not_the_value_before() -> None:
    job = Job()
    job.send("a", 1, gpus({"g0": 1}))
    job.send("b", 1, gpus({"g1": 2}))
    job.tick()
    job.send("a", 2, gpus({"g0": 3}))
    np.testing.assert_equal(seen(job.tick()), {"g0": 3, "g1": NAN})
    np.testing.assert_equal(seen(job.tick()), {"g0": NAN, "g1": NAN})


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_of_several_rows_between_two_ticks_the_newest_counts(order: tuple[int, int]) -> None:
    job = Job()
    for number in order:
        rows: dict[str, float] = {"g0": float(number)} if number == 2 else {"g0": 1, "only in the older": 7}
        job.send("a", number, gpus(rows))
    assert seen(job.tick()) == {"g0": 2, "only in the older": 7}


def test_a_batch_later_than_a_newer_one_in_an_earlier_frame_changes_nothing() -> None:
    job = Job()
    job.send("a", 5, gpus({"g0": 5}))
    job.tick()
    job.send("a", 4, gpus({"g0": 4}))
    np.testing.assert_equal(seen(job.tick()), {"g0": NAN})
    assert job.builder.counts.late == 1


def test_within_a_boot_numbers_decide_even_when_the_clock_was_set_back() -> None:
    job = Job()
    job.send("a", 1, gpus({"g0": 1}), time=5000.0)
    job.tick()
    job.send("a", 2, gpus({"g0": 2}), time=1000.0)
    assert seen(job.tick()) == {"g0": 2}


def test_a_restarted_agent_counts_although_its_numbers_begin_again() -> None:
    job = Job()
    job.send("a", 900, gpus({"g0": 1}), incarnation="first", time=10.0)
    job.tick()
    job.send("a", 1, gpus({"g0": 2}), incarnation="second", time=11.0)
    job.send("a", 901, gpus({"g0": 3}), incarnation="first", time=9.0)
    assert seen(job.tick()) == {"g0": 2}


def test_a_duplicate_is_dropped_by_its_identity() -> None:
    job = Job()
    job.send("a", 1, gpus({"g0": 1}))
    job.tick()
    job.send("a", 1, gpus({"g0": 9}))
    np.testing.assert_equal(seen(job.tick()), {"g0": NAN})
    assert job.builder.counts.duplicates == 1


def test_an_entity_joins_and_leaves_and_the_others_move() -> None:
    job = Job()
    job.send("a", 1, gpus({"g0": 1}))
    job.send("b", 1, gpus({"g1": 2}))
    job.tick()
    for number in range(2, frame_columns.LEAVE_TICKS + 3):
        job.send("b", number, gpus({"g1": 2}))
        frame = job.tick()
    assert seen(frame) == {"g1": 2}
    assert frame.moved[Kind.GPU].tolist() == [1]
    job.send("b", 1000, gpus({"g1": 5, "g3": 4}))
    job.send("a", 1000, gpus({"g0": 3}))
    frame = job.tick()
    assert seen(frame) == {"g1": 5, "g3": 4, "g0": 3}
    assert frame.moved[Kind.GPU].tolist() == [0, -1, -1]


def test_a_gpu_that_moves_to_another_node_keeps_its_column() -> None:
    job = Job()
    job.send("a", 1, gpus({"g0": 1, "g1": 1}))
    job.tick()
    job.send("b", 1, gpus({"g1": 2}), time=2.0)
    frame = job.tick()
    np.testing.assert_equal(seen(frame), {"g0": NAN, "g1": 2})
    assert frame.moved[Kind.GPU].tolist() == [0, 1]


def test_two_schemas_may_share_a_name() -> None:
    job = Job()
    job.send("a", 1, gpus({"g0": 1}))
    job.send("b", 1, gpus({"g1": 2}, source="newer agent"))
    assert seen(job.tick()) == {"g0": 1, "g1": 2}


def test_a_batch_waits_for_its_schema() -> None:
    job = Job()
    reading = gpus({"g0": 1})
    schema = job.sender.schema_of(reading)
    block = Block(schema_id=schema.id, reading=reading)
    payload = wire.encode(Batch(node="a", incarnation="b", job=JOB, number=1, time=1.0, blocks=(block,)))
    job.builder.feed(job.reader.read(payload))
    frame = job.tick()
    assert not frame.entities
    assert frame.reporting == {"a": 1.0}
    assert job.builder.counts.waiting == 1
    job.builder.feed(schema)
    assert seen(job.tick()) == {"g0": 1}


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "WAITING_KEPT", 2)
    job = Job()
    reading = gpus({"g0": 1})
    for number in range(5):
        block = Block(schema_id="never comes", reading=reading)
        batch = Batch(node="a", incarnation="b", job=JOB, number=number, time=1.0, blocks=(block,))
        job.builder.feed(job.reader.read(wire.encode(batch)))
    job.tick()
    assert job.builder.counts.dropped == 3


def test_reporting_shows_the_newest_batch_of_each_node_and_stays() -> None:
    job = Job()
    job.send("a", 1, gpus({"g0": 1}), time=11.0)
    job.send("b", 1, gpus({"g1": 1}), time=12.0)
    job.tick()
    job.send("a", 2, gpus({"g0": 1}), time=13.0)
    assert job.tick().reporting == {"a": 13.0, "b": 12.0}


def test_arrays_of_a_frame_cannot_be_changed() -> None:
    job = Job()
    job.send("a", 1, gpus({"g0": 1}))
    frame = job.tick()
    with pytest.raises(ValueError, match="read-only"):
        frame.metrics[Kind.GPU]["power_watts"][0] = 0


# --- steps -------------------------------------------------------------------------------------------------------


def test_a_step_comes_when_all_workers_of_its_layout_have_reported_it() -> None:
    job = Job()
    job.builder.feed(layout("r/a/0", "r/b/0"))
    job.send("a", 1, steps(7, {"r/a/0": 0.5}))
    assert job.tick().steps == ()
    job.send("b", 1, steps(7, {"r/b/0": 0.75}))
    [step] = job.tick().steps
    assert (step.number, step.epoch, step.workers, step.end) == (7, 1, ("r/a/0", "r/b/0"), 50.75)
    assert step.values["step_s"].tolist() == [0.5, 0.75]
    assert job.tick().steps == ()


def test_a_step_that_somebody_never_reports_comes_after_three_ticks() -> None:
    job = Job()
    job.builder.feed(layout("r/a/0", "r/b/0"))
    job.send("a", 1, steps(7, {"r/a/0": 0.5}))
    waited = [job.tick().steps for _ in range(WAIT_TICKS + 1)]
    assert waited[:-1] == [()] * WAIT_TICKS
    [step] = waited[-1]
    np.testing.assert_equal(step.values["step_s"].tolist(), [0.5, NAN])
    job.send("b", 1, steps(7, {"r/b/0": 0.75}))
    assert [job.tick().steps for _ in range(5)] == [()] * 5


def test_a_worker_may_report_later_than_its_neighbour_in_the_same_block() -> None:
    job = Job()
    job.builder.feed(layout("r/a/0", "r/a/1"))
    job.send("a", 1, steps(7, {"r/a/0": 0.5, "r/a/1": NAN}))
    assert job.tick().steps == ()
    job.send("a", 2, steps(7, {"r/a/0": 0.5, "r/a/1": 0.6}))
    [step] = job.tick().steps
    assert step.values["step_s"].tolist() == pytest.approx([0.5, 0.6])


def test_steps_before_any_layout_come_with_those_who_reported() -> None:
    job = Job()
    job.send("a", 1, steps(1, {"r/a/1": 1.0, "r/a/0": 2.0}))
    found = [step for _ in range(WAIT_TICKS + 1) for step in job.tick().steps]
    assert [(step.workers, step.values["step_s"].tolist()) for step in found] == [(("r/a/0", "r/a/1"), [2.0, 1.0])]


def test_a_step_done_again_in_a_later_epoch_is_another_step() -> None:
    job = Job()
    for epoch in (1, 2):
        job.builder.feed(layout("r/a/0", epoch=epoch))
        job.send("a", epoch, steps(7, {"r/a/0": 0.5}, epoch=epoch))
        assert [(step.number, step.epoch) for step in job.tick().steps] == [(7, epoch)]


def test_an_epoch_that_nobody_has_declared_ends_nothing() -> None:
    """One record of epoch 2³¹ by whoever can write to the stream, and no layout, event or step of the job would count any more."""
    job = Job()
    job.builder.feed(msgspec.structs.replace(layout("r/a/0", epoch=7), launchers={"a": "", "x": ""}))
    job.builder.feed(layout("r/x/0", epoch=2**31))
    job.builder.feed(msgspec.structs.replace(event(1), name="epoch.started", attributes={"epoch": str(2**31)}))
    for number, epoch in enumerate(range(2**31, 2**31 + 40)):
        job.send("x", number, steps(7, {"r/x/0": 0.5}, epoch=epoch))
    job.send("a", 1, steps(7, {"r/a/0": 0.5}, epoch=7))
    frame = job.tick()
    assert (frame.layout.epoch, frame.events) == (7, ())
    assert [(step.number, step.epoch) for step in frame.steps] == [(7, 7)]
    assert [job.tick().steps for _ in range(WAIT_TICKS + 1)] == [()] * (WAIT_TICKS + 1)
    assert job.builder.counts.unbelieved == 42


OF_THE_JOB = ("job.finished", "job.failed", "budget.exhausted", "restart.delayed")


def said(name: str, epoch: str, number: int = 1) -> Event:
    return msgspec.structs.replace(event(number), name=name, entity=Entity(kind=Kind.JOB, name=JOB), attributes={"epoch": epoch} if epoch else {})


@pytest.mark.parametrize("name", OF_THE_JOB)
def test_a_coordinator_that_was_left_behind_does_not_say_how_its_job_is(name: str) -> None:
    """It was cut off and is stopped, or its spool comes late: the job of the others would be over, and nothing of it would be judged or healed."""
    job = Job()
    job.builder.feed(layout("r/a/0", "r/b/0", epoch=3))
    job.builder.feed(layout("r/b/0", epoch=4))
    job.builder.feed(said(name, "3"))
    assert job.cut().events == ()
    assert job.builder.counts.outdated == 1


@pytest.mark.parametrize("name", OF_THE_JOB)
@pytest.mark.parametrize("epoch", ["4", "5", "", "none"])
def test_twin_who_knows_the_newest_epoch_or_names_none_is_believed(name: str, epoch: str) -> None:
    job = Job()
    job.builder.feed(said(name, "3"))
    job.builder.feed(layout("r/b/0", epoch=4))
    job.builder.feed(said(name, epoch, number=2))
    assert [each.number for each in job.cut().events] == [1, 2], "one that was read before the newer epoch was true then"
    assert job.builder.counts.outdated == 0


def test_twin_a_step_of_an_epoch_whose_layout_comes_later_counts() -> None:
    job = Job()
    job.builder.feed(layout("r/a/0", epoch=7))
    job.send("a", 1, steps(8, {"r/a/0": 0.5}, epoch=9))
    job.tick()
    job.builder.feed(layout("r/a/0", epoch=9))
    assert [(step.number, step.epoch) for step in job.tick().steps] == [(8, 9)]
    assert job.builder.counts.unbelieved == 0


def test_steps_of_late_batches_still_count_once() -> None:
    job = Job()
    job.builder.feed(layout("r/a/0"))
    job.send("a", 9, gpus({"g0": 1}), steps(9, {"r/a/0": 0.5}))
    assert [step.number for step in job.tick().steps] == [9]
    job.send("a", 8, gpus({"g0": 1}), steps(8, {"r/a/0": 0.5}))
    assert [step.number for step in job.tick().steps] == [8]


# --- events, layouts, marks ----------------------------------------------------------------------------------------


def test_events_come_in_order_in_exactly_one_frame() -> None:
    job = Job()
    job.send("a", 1, gpus({"g0": 1}))
    for number in (2, 1, 2, 3):
        job.builder.feed(event(number))
    frame = job.cut()
    assert [each.number for each in frame.events] == [2, 1, 3]
    assert (frame.tick, dict(frame.entities), dict(frame.metrics), frame.steps) == (False, {}, {}, ())
    job.builder.feed(event(3))
    job.builder.feed(event(3, incarnation="another incarnation"))
    frame = job.tick()
    assert [(each.number, each.incarnation) for each in frame.events] == [(3, "another incarnation")]
    assert seen(frame) == {"g0": 1}
    with pytest.raises(LookupError, match="only tick frames"):
        job.cut().past(Kind.GPU, "power_watts", 10.0)


def test_a_cut_does_not_count_as_a_tick() -> None:
    job = Job()
    job.builder.feed(layout("r/a/0", "r/b/0"))
    job.send("a", 1, gpus({"g0": 1}), steps(1, {"r/a/0": 1.0}))
    job.tick()
    for _ in range(frame_columns.LEAVE_TICKS + 5):
        job.cut()
    job.send("b", 1, steps(1, {"r/b/0": 1.0}))
    frame = job.tick()
    assert len(frame.steps) == 1
    assert frame.moved[Kind.GPU].tolist() == [0]


def test_layout_baselines_and_topology_stand_in_every_frame() -> None:
    job = Job(Topology(nodes={"a": "leaf-1"}))
    job.builder.feed(layout("r/a/0", "r/b/0", gpu="GPU"))
    job.builder.feed(Baseline(name="forest", job=JOB, digest="d2", fitted=2.0, data=b""))
    job.builder.feed(Baseline(name="forest", job=JOB, digest="d1", fitted=1.0, data=b""))
    for frame in (job.cut(), job.tick()):
        assert frame.layout is not None
        assert frame.topology.nodes == {"a": "leaf-1", "b": ""}
        assert frame.topology.gpus == {"GPU-0": "a", "GPU-1": "b"}
        assert frame.baselines["forest"].digest == "d2"


def test_a_worker_that_changes_its_rank_and_gpu_keeps_its_column() -> None:
    job = Job()
    workers = {"r/a/0": 1.0, "r/b/0": 2.0}
    reading = Reading(
        source="training",
        kind=Kind.WORKER,
        entities=tuple(workers),
        names=("step",),
        matrix=np.array([[1.0], [2.0]], dtype=np.float32),
        time=0.0,
    )
    job.builder.feed(layout("r/a/0", "r/b/0", gpu="old"))
    job.send("a", 1, reading)
    job.tick()
    job.builder.feed(layout("r/b/0", "r/a/0", epoch=2, gpu="new"))
    job.builder.feed(layout("r/a/0", "r/b/0", epoch=1, gpu="old"))  # comes again with the bootstrap records
    job.send("a", 2, reading)
    frame = job.tick()
    assert frame.layout is not None
    assert [frame.layout.rank_of(worker) for worker in frame.entities[Kind.WORKER]] == [1, 0]
    assert frame.moved[Kind.WORKER].tolist() == [0, 1]
    assert frame.topology.gpus == {"new-0": "b", "new-1": "a"}


def test_the_same_records_give_the_same_frames() -> None:
    def run() -> list[tuple[object, ...]]:
        job, rng = Job(), np.random.default_rng(5)
        job.builder.feed(layout("r/a/0", "r/b/0"))
        result: list[tuple[object, ...]] = []
        for number in range(30):
            for node in rng.permutation(["a", "b"]).tolist():
                if rng.random() < 0.8:
                    job.send(node, number, gpus({f"g{node}": number}), steps(number, {f"r/{node}/0": 0.1}))
            frame = job.tick()
            result.append((repr(seen(frame)) if frame.entities else "", [step.number for step in frame.steps]))
        return result

    assert run() == run()


# --- identity ----------------------------------------------------------------------------------------------------


def test_numbers_in_any_order_are_seen_once() -> None:
    numbers = np.random.default_rng(1).integers(0, 300, 2000).tolist()
    seen_numbers, reference = SeenNumbers(), set()
    for number in numbers:
        assert seen_numbers.first_time(number) == (number not in reference)
        reference.add(number)


def test_gaps_and_boots_are_bounded() -> None:
    seen_numbers, writers = SeenNumbers(), Writers()
    for number in range(0, 10 * KEPT_GAPS, 2):
        assert seen_numbers.first_time(number)
    assert 1 in seen_numbers  # in a gap so old that it counts as seen
    assert 10 * KEPT_GAPS - 3 not in seen_numbers
    for incarnation in range(100):
        assert writers.first_time(str(incarnation), 1)
    assert not writers.first_time("99", 1)


# --- the topology ------------------------------------------------------------------------------------------------


def test_the_topology_knows_the_gpu_of_each_worker_and_the_node_of_each_gpu() -> None:
    job = Job()
    job.builder.feed(layout("r/a/0", "r/b/0", gpu="GPU"))
    topology = job.tick().topology
    assert topology.worker_gpus == {"r/a/0": "GPU-0", "r/b/0": "GPU-1"}
    assert topology.gpus == {"GPU-0": "a", "GPU-1": "b"}


def test_a_gpu_that_no_layout_names_is_on_the_node_whose_agent_tells_of_it() -> None:
    job = Job()
    fell = Event(name="gpu.xid", job=JOB, entity=Entity(kind=Kind.GPU, name="GPU-x"), time=0.0, node="n3", incarnation="b", number=1)
    job.builder.feed(fell)
    assert job.cut().topology.gpus == {"GPU-x": "n3"}
    job.builder.feed(layout("r/a/0"))
    assert job.tick().topology.gpus == {"GPU-x": "n3"}, "also when another epoch has begun"

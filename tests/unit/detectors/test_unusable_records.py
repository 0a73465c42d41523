"""What one record does to detection: it costs itself. The detectors, the other records and the next owner go on."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np
import pytest

from detectors.diagnosis import Diagnosis
from detectors.features.forest_model import VERSION, Forest, Forests
from detectors.isolation_forest import NAME, IsolationForest
from detectors.runtime import catch_up, evaluator, open_findings
from detectors.runtime.detector_set import LONGEST_TEXT
from detectors.runtime.evaluator import Evaluator
from detectors.runtime.hot_window import HotWindow
from detectors.runtime.incident_recorder import MAGIC, read_records
from detectors.runtime.replay import recorded_messages, replay
from detectors.stall import Stall
from eagle_eye.errors import WireError
from eagle_eye.frames import Frame
from eagle_eye.job_snapshots import JobSnapshots
from eagle_eye.metrics.event_metrics import EventMetrics
from eagle_eye.stream import DEAD_LETTERS, FINDINGS, INCIDENTS, OBSERVATIONS
from eagle_eye.stream.memory import MemoryStream
from eagle_eye.types import (
    Baseline,
    Claim,
    ConfigChange,
    Entity,
    Event,
    Evidence,
    Finding,
    Kind,
    Layout,
    Mark,
    RankPlacement,
    SchemaRecord,
)
from fakes.diagnosis_chain import Chain
from fakes.runner_partition import JOB, NODE, Exited, World, settle
from fakes.synthetic_events import event
from fakes.synthetic_frames import Draft, FrozenWorker, job_frames


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


# --- the stream's other topics -----------------------------------------------------------------------------------


@pytest.mark.parametrize("garbage", [b"", b"E", b"garbage", b"[" * 20_000, b'{"id": "\xff"}'])
def test_an_owner_that_finds_garbage_among_findings_and_incidents_begins_all_the_same(world: World, garbage: bytes) -> None:
    runner = world.runner(Exited())
    world.exit()
    settle(runner)
    for topic in (FINDINGS, INCIDENTS):
        world.stream.append(topic, [(JOB, garbage)])
    again = world.runner(Exited(), generation=2)
    assert len(again.evaluator.open_findings()) == len(again.evaluator.incidents) == 1


@pytest.mark.parametrize("short", [b"", b"E", b"EE\x01"])
def test_a_record_of_less_than_four_bytes_does_not_keep_an_owner_with_a_long_past_from_beginning(world: World, monkeypatch: pytest.MonkeyPatch, short: bytes) -> None:
    monkeypatch.setattr(catch_up, "AT_ONCE", 10)
    runner = world.runner(Exited())
    for _ in range(70):
        world.second(runner)
        world.stream.append(OBSERVATIONS, [(JOB, short)])
    again = world.runner(Exited(), generation=2)
    world.exit()
    settle(again)
    assert [incident.cause for incident in world.incidents[-1:]] == ["worker.exited"]


def test_a_replay_passes_over_what_nobody_could_read(world: World) -> None:
    runner = world.runner(Exited())
    world.exit()
    settle(runner)
    world.stream.append(FINDINGS, [(JOB, b"garbage"), (JOB, b"[" * 20_000)])
    result = replay(recorded_messages(world.stream), [("exited", Exited())], Diagnosis(), from_start=True)
    assert len(result.findings) == 1
    [recorded] = [message.value for message in world.stream.read(FINDINGS, 0, 0, 1)]
    forged = recorded[:-1] + b',"more":"\xff"}'
    world.stream.append(FINDINGS, [(JOB, forged.replace(b'"revision":1', b'"revision":7'))])
    assert "differ" in replay(recorded_messages(world.stream), [("exited", Exited())], Diagnosis(), from_start=True).summary


def test_a_file_of_records_whose_lengths_lie_is_read_as_far_as_it_goes(tmp_path) -> None:
    path = tmp_path / "i1.records"
    for size in (0, 5, 2**31, 2**32 - 1):
        path.write_bytes(MAGIC + size.to_bytes(4, "little") + b"[" * 30_000)
        assert list(read_records(path)) == []


# --- what does not fit into the stream -------------------------------------------------------------------------------


def test_a_bad_record_as_large_as_the_stream_takes_is_kept_aside(world: World) -> None:
    runner = world.runner(Exited())
    world.stream.append(OBSERVATIONS, [(JOB, b"x" * (16 << 20))])
    world.exit()
    settle(runner)
    [message] = world.stream.read(DEAD_LETTERS, 0, 0)
    assert msgspec.json.decode(message.value)["size"] == 16 << 20
    assert len(world.incidents) == 1


@dataclass
class Wordy:
    """Claims every exit, with all that its message says."""

    lines: int = 1

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        for each in frame.events:
            proof = Evidence(text=each.message, value=math.inf, threshold=-1e305)
            yield Claim(entity=NODE, kind="wordy", score=math.nan, since=-math.inf, evidence=(proof,) * self.lines)


@pytest.mark.parametrize("lines", [1, 5000])
def test_a_claim_of_any_length_and_with_any_number_becomes_a_finding_that_can_be_read(world: World, lines: int) -> None:
    runner = world.runner(Wordy(lines))
    entity = Entity(kind=Kind.WORKER, name="r/n/0")
    world.put(Event(name="exit", job=JOB, entity=entity, time=1.0, node="n", incarnation="b", number=1, message="x" * 1_000_000))
    settle(runner)
    [message] = world.stream.read(FINDINGS, 0, 0)
    finding = msgspec.json.decode(message.value, type=Finding)
    assert len(finding.evidence[0].text) == LONGEST_TEXT
    assert (finding.evidence[0].value, finding.evidence[0].threshold, finding.score) == (None, None, 0.0)
    assert finding.since == finding.time
    assert "detector.failing" not in world.notices


class Narrow(MemoryStream):
    """A stream that never takes an incident of more than so many bytes."""

    def append(self, topic, items):
        from eagle_eye.errors import StreamRefused

        if topic == INCIDENTS and any(len(value) > 200 for _, value in items):
            raise StreamRefused("it is too large")
        return super().append(topic, items)


def test_what_the_stream_can_never_take_does_not_keep_the_rest_waiting() -> None:
    world = World()
    world.stream = Narrow(clock=world.clock)
    runner = world.runner(Exited())
    world.exit()
    settle(runner)
    world.second(runner)
    assert "record.refused" in world.notices
    assert len(world.stream.read(FINDINGS, 0, 0)) == 1
    assert runner.counts.last_tick == world.clock.now()
    world.close()


# --- numbers and times -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("column", "value"), [("phase", 57.0), ("phase", -1.0), ("phase", 1e30), ("state", 1.2e6), ("state", -5.0), ("state", 1e30), ("activity", 1e9)])
def test_an_odd_number_of_a_worker_mutes_no_detector(column: str, value: float) -> None:
    def odd(draft: Draft) -> None:
        draft.metrics[Kind.WORKER][column][1] = value

    chain = Chain()  # it fails the test when a detector fails
    chain.feed(*job_frames(2, 2, 40, np.random.default_rng(0), faults=[FrozenWorker(worker=1, begin=8), odd]))
    assert chain.reported, "the stall is told all the same"


def test_a_mark_of_the_future_does_not_keep_the_window_for_ever() -> None:
    window = HotWindow(seconds=60.0)
    metrics = {Kind.NODE: {"x": np.zeros(1000, np.float32)}}

    def tick(time: float) -> None:
        window.add(Frame(job=JOB, number=1, generation=1, time=time, tick=True, entities={Kind.NODE: ("n",) * 1000}, metrics=metrics, moved={Kind.NODE: np.arange(1000)}))

    for second in range(50):
        tick(1000.0 + second)
    tick(1e9)
    for second in range(500):
        tick(1050.0 + second)
    assert window.nbytes <= 61 * 4000


@pytest.mark.parametrize("count", ["9" * 5000, "9" * 400, "-3", "x", ""])
def test_metrics_of_events_can_be_scraped_whatever_an_event_counts(count: str) -> None:
    metrics = EventMetrics()
    metrics.observe_events([event("spool.dropped", NODE, 1.0, count=count), event("exit", NODE, 1.0)])
    samples = {sample.name: sample.value for family in metrics.collect() for sample in family.samples if not sample.labels}
    assert samples["eagle_eye_node_dropped_records_total"] == 1.0


# --- configuration, schemas, jobs --------------------------------------------------------------------------------------


def evaluator_over(*detectors: object, **options: object) -> tuple[Evaluator, list[str]]:
    told: list[str] = []
    named = [(type(each).__name__, each) for each in detectors]
    made = Evaluator(named, Diagnosis(), notify=lambda name, text: told.append(f"{name}: {text}"), **options)  # type: ignore[arg-type]
    return made, told


def tick_of(made: Evaluator, number: int, time: float = 0.0) -> None:
    made.take(Mark(mark="tick", generation=1, number=number, time=time or 100.0 + number))


def test_a_configuration_that_makes_the_reader_fail_changes_nothing() -> None:
    def broken(_: ConfigChange) -> list:
        raise KeyError("a bug")

    made, told = evaluator_over(Stall(), configure=broken)
    made.take(ConfigChange(digest="d", text="x"))
    tick_of(made, 1)
    tick_of(made, 2)
    assert [line.partition(":")[0] for line in told] == ["config.refused"]


def test_nobody_gives_other_names_to_a_schema_that_says_what_it_is() -> None:
    made, _ = evaluator_over()
    layout = Layout(job=JOB, epoch=1, time=1.0, coordinator="n", launchers={}, placements=(RankPlacement(worker="r/n/0", node="n", rank=0, local_rank=0),))
    world = World()
    world.batch(5.0)
    schema, batch = world.records()
    assert isinstance(schema, SchemaRecord)
    forged = msgspec.structs.replace(schema, names=("power_watts",))
    for record in (forged, layout, batch):
        made.take(record)  # type: ignore[arg-type]
    tick_of(made, 1)
    made.take(schema)
    with pytest.raises(WireError, match="stands for 1 names of 'host'"):
        made.take(forged)
    world.batch(7.0)
    made.take(world.records()[-1])  # type: ignore[arg-type]
    evaluation = made.take(Mark(mark="tick", generation=1, number=2, time=102.0))
    assert evaluation is not None
    assert evaluation.frames[0].metrics[Kind.NODE]["temperature_celsius"].tolist() == [7.0]
    world.close()


def test_jobs_that_nobody_has_declared_do_not_keep_the_others_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluator, "UNDECLARED", 5)
    made, told = evaluator_over(Exited())
    declared = Layout(job=JOB, epoch=1, time=1.0, coordinator="n", launchers={}, placements=())
    made.take(declared)
    for number in range(50):
        made.take(event_of(f"t/n/{number}", number))
        made.take(event_of(f"idle/n{number}", number))
    tick_of(made, 1)
    tick_of(made, 2)
    names = set(made.jobs)
    assert JOB in names
    assert len([name for name in names if name.startswith("t/n/") and name != JOB]) == 5
    assert len([name for name in names if name.startswith("idle/")]) == 50, "nodes without a job are watched"
    assert [line.partition(":")[0] for line in told] == ["claim.refused"]


def test_the_end_of_an_epoch_that_is_over_withdraws_nothing_and_is_told_once() -> None:
    """A launcher that was cut off is stopped, and says that the job has finished: the others have gone on without it."""
    made, told = evaluator_over(Exited())
    for epoch in (3, 4):
        made.take(Layout(job=JOB, epoch=epoch, time=1.0, coordinator="n", launchers={}, placements=()))
    made.take(event_of(JOB, 1, Entity(kind=Kind.WORKER, name="r/n/1")))
    tick_of(made, 1)
    for number in (2, 3):
        made.take(msgspec.structs.replace(event_of(JOB, number, Entity(kind=Kind.JOB, name=JOB)), name="job.finished", attributes={"epoch": "3"}))
        evaluation = made.take(Mark(mark="tick", generation=1, number=number, time=100.0 + number))
        assert evaluation is not None
        assert not evaluation.frames[0].events
    assert [line.partition(":")[0] for line in told] == ["claim.refused"]


def event_of(job: str, number: int, entity: Entity = NODE) -> Event:
    return Event(name="exit", job=job, entity=entity, time=1.0, node="n", incarnation="b", number=number)


def test_a_job_has_no_more_open_findings_than_anybody_looks_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_findings, "OPEN_MOST", 20)
    made, _ = evaluator_over(Exited())
    for number in range(100):
        made.take(event_of(JOB, number, Entity(kind=Kind.WORKER, name=f"r/n/{number}")))
    tick_of(made, 1)
    assert len(made.open_findings()) == 20


def test_the_layouts_of_jobs_that_are_gone_are_forgotten() -> None:
    snapshots = JobSnapshots()
    for number in range(10):
        layout = Layout(job=str(number), epoch=1, time=1.0, coordinator="n", launchers={}, placements=())
        snapshots.of(Frame(job=str(number), number=1, generation=1, time=1.0, tick=False, layout=layout))
        snapshots.forget({str(number)})
    assert len(snapshots._sent) == 1


# --- baselines -------------------------------------------------------------------------------------------------------


def grown(**changes: object) -> Forest:
    """One tree that asks for the temperature of a node."""
    forest = Forest(
        names=("temperature_celsius",), median=[20.0], spread=[1.0], cutoff=0.5, raised=0.5, depth=1, expected=1.0, feature=[[0, 0, 0]], threshold=[[50.0, 0.0, 0.0]],
        left=[[1, 1, 2]], right=[[2, 1, 2]], path=[[0.0, 2.0, 0.1]],
    )  # fmt: skip
    return msgspec.structs.replace(forest, **changes)


def stored(forest: Forest) -> bytes:
    return msgspec.msgpack.encode(Forests(VERSION, {"node": forest}))


def frame_with(digest: str, data: bytes) -> Frame:
    baseline = Baseline(name=NAME, job=JOB, digest=digest, fitted=1.0, data=data)
    metrics = {Kind.NODE: {"temperature_celsius": np.array([90.0], np.float32)}}
    return Frame(job=JOB, number=1, generation=1, time=1.0, tick=True, entities={Kind.NODE: ("n",)}, metrics=metrics, baselines={NAME: baseline})


@pytest.mark.parametrize(
    "bad",
    [
        b"", b"\xc1", b"\x91" * 20_000 + b"\xc0", b"\xdd\xff\xff\xff\xff", stored(grown(depth=10**12)), stored(grown(expected=math.inf)),
        stored(grown(expected=1e-300)), stored(grown(path=[[-1e300, 1e300, 0.0]])), stored(grown(median=[math.nan])),
        stored(grown(feature=[[0] * 100_000], threshold=[[0.0] * 100_000], left=[[0] * 100_000], right=[[0] * 100_000], path=[[0.0] * 100_000], depth=100_000)),
        msgspec.msgpack.encode(Forests(1, {"node": grown()})), msgspec.msgpack.encode(Forests(VERSION, {"moon": grown()})), stored(grown(cutoff=math.nan)),
    ],
    ids=["nothing", "no msgpack", "deep", "huge", "depth", "endless", "no length", "odd paths", "no number", "a long chain", "another version", "no kind", "no limit"],
)  # fmt: skip
def test_a_baseline_that_cannot_be_used_leaves_the_one_before_in_use(bad: bytes) -> None:
    detector = IsolationForest(sustained=1)
    good = stored(grown())
    assert [claim.kind for claim in detector.update(frame_with("good", good))] == ["node.unusual"]
    list(detector.update(frame_with("bad", bad)))
    assert detector._forests[Kind.NODE].forest == grown()

"""Nodes without a job: no window, a frame every fifteen seconds, one each second once something happened; what is told of them stays the same."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from detectors.liveness import Liveness
from detectors.runtime.evaluator import AWAKE_TICKS, IDLE_TICK_S, RETIRE_TICKS, Evaluation, Evaluator
from eagle_eye import wire
from eagle_eye.frames import Frame
from eagle_eye.types import Batch, Block, Claim, Entity, Event, Evidence, Kind, Layout, Mark, Reading
from fakes.runner_partition import Exited, OneToOne

NODES = 20
T0 = 1000.0
JOB = "t/n/r"


@dataclass
class Hot:
    """Claims each node that is hot now."""

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        for name, value in zip(frame.entities.get(Kind.NODE, ()), frame.metrics.get(Kind.NODE, {}).get("temperature_celsius", ()), strict=False):
            proof = Evidence(text="temperature", metric="temperature_celsius", value=float(value))
            yield Claim(entity=Entity(kind=Kind.NODE, name=name), kind="node.hot", score=1.0, since=0.0, evidence=(proof,), active=bool(value > 80.0))


@dataclass
class LooksBack:
    """How many ticks it could look back to."""

    past_s: ClassVar[float] = 5.0
    seen: list[int] = field(default_factory=list)

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        if frame.tick and Kind.NODE in frame.entities:
            self.seen.append(len(frame.past(Kind.NODE, "temperature_celsius", 5.0)))
        return iter(())


@dataclass
class OfJobs:
    """Has nothing to say without a job."""

    needs_job: ClassVar[bool] = True
    past_s: ClassVar[float] = 600.0

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        proof = Evidence(text="it was asked")
        yield Claim(entity=Entity(kind=Kind.JOB, name=frame.job), kind="asked", score=1.0, since=0.0, evidence=(proof,))


class Cluster:
    """Real records of nodes that report each second, and the evaluator of their partition."""

    def __init__(self, *detectors: object) -> None:
        self.evaluator = Evaluator([(type(each).__name__.lower(), each) for each in detectors], OneToOne())  # type: ignore[misc]
        self.schemas, self.reader, self.second = wire.Schemas(), wire.RecordReader(), 0
        self.hot: set[str] = set()
        self.silent: set[str] = set()

    def report(self, job: str, node: str) -> None:
        matrix = np.array([[95.0 if node in self.hot else 40.0 + self.second / 100]], dtype=np.float32)
        reading = Reading(source="host", kind=Kind.NODE, entities=(node,), names=("temperature_celsius",), matrix=matrix, time=T0)
        schema = self.schemas.schema_of(reading)
        self.evaluator.schemas.add(schema)
        batch = Batch(node=node, incarnation="b", job=job, number=self.second, time=T0 + self.second - 0.5, blocks=(Block(schema_id=schema.id, reading=reading),))
        self.evaluator.take(self.reader.read(wire.encode(batch)))

    def tick(self, jobs: list[str]) -> Evaluation:
        self.second += 1
        for job in jobs:
            if job not in self.silent:
                self.report(job, job.rpartition("/")[2])
        evaluation = self.evaluator.take(Mark(mark="tick", generation=1, number=self.second, time=T0 + self.second))
        assert evaluation is not None
        return evaluation

    def event(self, job: str, name: str, **attributes: str) -> None:
        entity = Entity(kind=Kind.NODE, name=job.rpartition("/")[2])
        event = Event(name=name, job=job, entity=entity, time=T0 + self.second, node="leader", incarnation="e", number=self.second, attributes=attributes)
        self.evaluator.take(event)


IDLE = [f"idle/node-{index:02}" for index in range(NODES)]


def jobs_of(evaluation: Evaluation) -> list[str]:
    return [frame.job for frame in evaluation.frames]


def test_idle_nodes_take_turns_and_each_has_a_frame_in_fifteen_seconds_with_its_newest_numbers() -> None:
    cluster = Cluster(Hot())
    seen: dict[str, list[float]] = {}
    most = 0
    for _ in range(3 * IDLE_TICK_S):
        evaluation = cluster.tick(IDLE)
        most = max(most, len(evaluation.frames))
        for frame in evaluation.frames:
            seen.setdefault(frame.job, []).append(round(frame.time - T0))
            assert frame.metrics[Kind.NODE]["temperature_celsius"][0] == np.float32(40.0 + cluster.second / 100), "the newest of fifteen readings"
    assert set(seen) == set(IDLE)
    assert all(np.diff(times).tolist() == [IDLE_TICK_S] * (len(times) - 1) for times in seen.values())
    assert most < NODES / 2, "not all of them at one tick"


def test_what_waits_for_an_idle_nodes_next_frame_is_its_newest_batch_alone() -> None:
    cluster = Cluster(Hot())
    for _ in range(3 * IDLE_TICK_S):
        cluster.tick(IDLE)
        assert all(len(job.builder._pending) <= 1 for job in cluster.evaluator.jobs.values())


def test_a_job_has_a_frame_each_second() -> None:
    cluster = Cluster(Hot())
    cluster.evaluator.take(Layout(job=JOB, epoch=1, time=1.0, coordinator="n", launchers={}, placements=()))
    assert [jobs_of(cluster.tick([JOB])) for _ in range(IDLE_TICK_S)] == [[JOB]] * IDLE_TICK_S


def test_a_fault_of_an_idle_node_is_found_and_its_end_within_a_second() -> None:
    cluster = Cluster(Hot())
    cluster.tick(IDLE)
    cluster.hot = {"node-03"}
    opened = [finding for _ in range(IDLE_TICK_S) for finding in cluster.tick(IDLE).findings]
    assert [(finding.job, finding.active) for finding in opened] == [("idle/node-03", True)]
    cluster.hot = set()
    assert [finding.active for finding in cluster.tick(IDLE).findings] == [False], "a node with an open finding is looked at each second"


def test_an_event_of_an_idle_node_is_judged_at_once_and_the_ticks_after_it_each() -> None:
    cluster = Cluster(Exited())
    for _ in range(3):
        cluster.tick(IDLE)
    cluster.event("idle/node-05", "exit")
    cut = cluster.evaluator.take(Mark(mark="cut", generation=1, number=500, time=T0 + cluster.second))
    assert cut is not None
    assert [finding.job for finding in cut.findings] == ["idle/node-05"]
    cluster.second = 500
    cluster.event("idle/node-06", "node.place")
    times = [jobs_of(cluster.tick(IDLE)).count("idle/node-06") for _ in range(AWAKE_TICKS + 2 * IDLE_TICK_S)]
    assert times[:AWAKE_TICKS] == [1] * AWAKE_TICKS
    assert sum(times[AWAKE_TICKS:]) == 2, "and then it rests again"


def test_a_lost_idle_node_is_told_as_soon_as_ever() -> None:
    cluster = Cluster(Liveness())
    for _ in range(2 * IDLE_TICK_S):
        cluster.tick(IDLE)
    cluster.silent = {"idle/node-07"}
    for _ in range(3):
        cluster.tick(IDLE)
    cluster.event("idle/node-07", "session.lost", role="agent")
    gone = cluster.second
    told = [(finding.kind, cluster.second - gone) for _ in range(IDLE_TICK_S) for finding in cluster.tick(IDLE).findings]
    assert [kind for kind, _ in told] == ["node.lost"]
    assert told[0][1] <= 6, "7.5 s of silence, of which three had passed"


def test_a_silent_idle_node_is_let_go_as_before() -> None:
    cluster = Cluster(Hot())
    cluster.tick(IDLE)
    for _ in range(RETIRE_TICKS + 1):
        cluster.tick(IDLE[1:])
    assert set(cluster.evaluator.jobs) == set(IDLE[1:])


def test_a_replay_that_begins_elsewhere_judges_an_idle_node_at_the_same_marks() -> None:
    """Who takes over a partition, and who replays it, sees the same frames."""
    first, second = Cluster(Hot()), Cluster(Hot())
    frames: list[list[tuple[str, float]]] = []
    for cluster, begin in ((first, 0), (second, 7)):
        cluster.second = begin
        told = [[(frame.job, frame.time) for frame in cluster.tick(IDLE).frames] for _ in range(begin, 40)]
        frames.append([each for tick in told[18 - begin :] for each in tick])
    assert frames[0] == frames[1]


def test_without_a_detector_that_looks_back_nothing_is_kept() -> None:
    cluster = Cluster(Hot(), OfJobs())
    for _ in range(3 * IDLE_TICK_S):
        cluster.tick([*IDLE, JOB])
    assert {job.window.nbytes for name, job in cluster.evaluator.jobs.items() if name != JOB} == {0}
    assert cluster.evaluator.jobs[JOB].window.nbytes > 0, "one detector of jobs looks back"


def test_a_detector_looks_back_as_far_as_it_says() -> None:
    cluster, detector = Cluster(LooksBack()), LooksBack()
    cluster.evaluator._detectors = [("looks", detector)]
    for _ in range(12):
        cluster.tick([JOB])
    [slot] = cluster.evaluator.jobs[JOB].detectors._slots
    assert slot.detector.seen == [1, 2, 3, 4, *[5] * 8]  # type: ignore[attr-defined]


def test_a_detector_that_looks_back_and_does_not_say_so_is_told_how() -> None:
    class Silent(LooksBack):
        past_s: ClassVar[float] = 0.0

    told: list[str] = []
    cluster = Cluster()
    cluster.evaluator = Evaluator([("silent", Silent())], OneToOne(), notify=lambda _, message: told.append(message))
    cluster.tick([JOB])
    assert "past_s: ClassVar[float] = 5.0" in told[0]


def test_a_detector_of_jobs_is_not_asked_about_an_idle_node() -> None:
    cluster = Cluster(OfJobs())
    found = [finding.job for _ in range(2 * IDLE_TICK_S) for finding in cluster.tick([*IDLE, JOB]).findings]
    assert found == [JOB]
